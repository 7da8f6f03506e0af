"""Actions of several parts: one log-probability and one entropy of a distribution that has one for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import CompositeDistribution
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, leaf_name

__all__ = ["action_log_prob", "stored_log_prob", "total_over_parts", "weighted_parts"]

_LOG_PROB = "_log_prob"
_ENTROPY = "_entropy"


def action_log_prob(distribution: Any, batch: TensorDictBase, action: Any) -> Tensor:
    """Log pi of the stored action, [*B]; the sum over the parts of a composite one.

    Args:
        distribution: a torch Distribution, or tensordict's CompositeDistribution over entries of the batch.
        batch: [*B], with the parts of the action.
        action: the action, for a distribution of one part.
    """
    if not isinstance(distribution, CompositeDistribution):
        return distribution.log_prob(action)
    log_prob = distribution.log_prob(batch)
    return log_prob if isinstance(log_prob, Tensor) else total_over_parts(log_prob, batch.ndim)


def stored_log_prob(batch: TensorDictBase, key: Key, action_key: Key) -> Tensor | None:
    """Log mu of the stored action, [*B], or None where the batch has none.

    It is the entry itself; where that is absent or a TensorDict, the sum over the parts of the action (entries of the
    action named ``..._log_prob``).
    """
    stored = batch.get(key, None)
    if isinstance(stored, Tensor):
        return stored
    if stored is not None:
        return total_over_parts(stored, batch.ndim)
    action = batch.get(action_key, None)
    if not isinstance(action, TensorDictBase):
        return None
    parts = [value for name, value in _leaves(action).items() if leaf_name(name).endswith(_LOG_PROB)]
    return _total(parts, batch.ndim) if parts else None


def total_over_parts(values: TensorDictBase, ndim: int) -> Tensor:
    """The sum of all entries, and over what dimensions they have beyond the ``ndim`` of the batch."""
    return _total(list(_leaves(values).values()), ndim)


def weighted_parts(entropies: TensorDictBase, weights: Mapping[str, float], ndim: int) -> Tensor:
    """A weighted sum of the entropies of the parts of an action.

    Args:
        entropies: one entry per part, named ``<part>_entropy``.
        weights: a number per part; a part that is not named weighs 0.
        ndim: the number of batch dimensions of the result.

    Raises:
        SpecError: a weight names no part.
    """
    parts = {leaf_name(key).removesuffix(_ENTROPY): value for key, value in _leaves(entropies).items()}
    unknown = [name for name in weights if name not in parts]
    if unknown:
        raise SpecError(f"the action has no part named {', '.join(map(repr, unknown))}; it has {', '.join(parts)}")
    return _total([weight * parts[name] for name, weight in weights.items()], ndim)


def _leaves(values: TensorDictBase) -> dict[Key, Tensor]:
    return {as_key(key): values.get(key) for key in values.keys(include_nested=True, leaves_only=True)}


def _total(values: Sequence[Tensor], ndim: int) -> Tensor:
    return torch.stack([value.flatten(ndim).sum(-1) if value.ndim > ndim else value for value in values]).sum(0)
