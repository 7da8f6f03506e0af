"""What every loss shares: the key map, the reduction with masks, target networks, and the module that ties them."""

from rl_core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
