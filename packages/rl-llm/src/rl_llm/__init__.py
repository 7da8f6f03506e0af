"""Post-training of language models for rl-core: chats, tokens, policies, tools and losses.

Every public name is imported at its first use; ``__init__.pyi`` beside this file lists them.
"""

from rl_core.lazy import attach
from rl_llm.__about__ import __version__ as __version__

__getattr__, __dir__, __all__ = attach(__name__, __file__)
