"""The core of a TensorDict-first reinforcement-learning library: specs, contracts, registry, hooks, ``rl``.

Every public name is imported at its first use; ``__init__.pyi`` beside this file lists them.
"""

from rl_core.__about__ import __version__ as __version__
from rl_core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
