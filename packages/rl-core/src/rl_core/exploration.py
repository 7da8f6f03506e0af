"""Exploration: which value a stochastic policy writes, its mode or a sample.

The names are tensordict's own interaction types under the field's names, so that one context manager steers every
probabilistic module, ours or tensordict's.
"""

from __future__ import annotations

from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn import set_interaction_type as set_exploration_type
from tensordict.nn.probabilistic import interaction_type as exploration_type

__all__ = ["ExplorationType", "exploration_type", "set_exploration_type"]
