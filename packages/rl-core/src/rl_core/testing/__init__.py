"""Conformance kits and toy environments for plugin authors. A kit is subclassed in a plugin's own tests."""

from rl_core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
