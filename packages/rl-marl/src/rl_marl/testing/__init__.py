"""The conformance kit of grouped environments, and PettingZoo games that follow a script."""

from rl_core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
