"""``ClipTransform`` and ``RewardClipping``: entries kept within a range."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from rl_core import Bounded, TensorSpec
from rl_core.keys import Key
from rl_envs.transforms.entry_map import EntryMap

__all__ = ["ClipTransform", "RewardClipping"]


class ClipTransform(EntryMap):
    """``min(max(x, low), high)``, of observations and rewards, and of actions on their way in.

    Args:
        in_keys: observations and rewards.
        out_keys: where to write them; default: the same keys.
        in_keys_inv: actions (or states) to clip before the environment reads them. Their spec stays: what is outside is
            accepted, and clipped.
        out_keys_inv: what the policy writes for them; default: the same keys.
        low: the lower bound, a number or a tensor that broadcasts to the entry; None: none.
        high: the upper bound, likewise. At least one of the two is given.

    Example:
        >>> ClipTransform(in_keys=["x"], low=0.0)._apply_transform(torch.tensor([-2.0, 3.0]))
        tensor([0., 3.])
    """

    low: Tensor | None
    high: Tensor | None

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        *,
        low: float | Tensor | None = None,
        high: float | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        if low is None and high is None:
            raise ValueError(f"{type(self).__name__} needs a bound; give it low=, high= or both")
        if low is not None and high is not None and bool((torch.as_tensor(low) > torch.as_tensor(high)).any()):
            raise ValueError(f"{type(self).__name__} got low={low} above high={high}")
        self.register_buffer("low", None if low is None else torch.as_tensor(low))
        self.register_buffer("high", None if high is None else torch.as_tensor(high))

    def _bounds(self, value: Tensor) -> tuple[Tensor | None, Tensor | None]:
        low, high = self.low, self.high
        return (
            None if low is None else low.to(value.device, value.dtype),
            None if high is None else high.to(value.device, value.dtype),
        )

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value.clamp(*self._bounds(value))

    _inv_apply_transform = _apply_transform

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        bounds = leaf if isinstance(leaf, Bounded) else None
        low = _bound(self.low, None if bounds is None else bounds.low, leaf)
        high = _bound(self.high, None if bounds is None else bounds.high, leaf)
        if bounds is not None:  # the spec's own bounds are mapped as its values are
            low, high = (self._apply_transform(bound.expand(leaf.shape)) for bound in (bounds.low, bounds.high))
        return Bounded(low=low, high=high, shape=leaf.shape, dtype=leaf.dtype, device=leaf.device)

    def _write(self, source: np.ndarray, target: np.ndarray) -> None:
        low, high = (None if bound is None else bound.numpy() for bound in (self.low, self.high))
        np.clip(source, low, high, out=target, casting="unsafe")

    _write_back = _write


def _bound(own: Tensor | None, present: Tensor | None, leaf: TensorSpec) -> Tensor | None:
    chosen = present if own is None else own
    return None if chosen is None else chosen.to(leaf.device, leaf.dtype)


class RewardClipping(ClipTransform):
    """``min(max(reward, clamp_min), clamp_max)``.

    Args:
        clamp_min: the lower bound; None: none.
        clamp_max: the upper bound; None: none.
        in_keys: rewards; default ``["reward"]``.
        out_keys: where to write them; default: the same keys.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=3), RewardClipping(-1, 2))  # rewards 1, 2, 3
        >>> env.rollout(5)["next", "reward"].flatten()
        tensor([1., 2., 2.])
    """

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
    ) -> None:
        if clamp_min is None and clamp_max is None:
            raise ValueError("RewardClipping needs a bound; give it clamp_min=, clamp_max= or both")
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys, low=clamp_min, high=clamp_max)
