"""``ActionDiscretizer``: numbered intervals for an action between bounds."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from rl_core import Bounded, Columns, Composite, MultiCategorical, MultiOneHot, RowProgram, TensorSpec, Transform
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.end_groups import specs_seen
from rl_envs.transforms.entry_map import inward_program

__all__ = ["ActionDiscretizer"]


class ActionDiscretizer(Transform):
    """Cuts ``[low, high]`` of every dimension into K equal intervals, of which the policy names one.

    Interval i is ``[low + i (high - low) / K, low + (i + 1) (high - low) / K]``.

    Args:
        num_intervals: K, one number, or one per dimension of the action.
        action_key: the environment's action, with finite bounds.
        out_action_key: what the policy writes; default: the same key.
        sampling: which value stands for an interval: its middle (``MEDIAN``, the default), lower (``LOW``) or upper end
            (``HIGH``), or one drawn from it (``RANDOM``).
        categorical: the policy writes numbers (True), or one-hot vectors side by side (False).

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_envs import PendulumEnv
        >>> env = TransformedEnv(PendulumEnv(), ActionDiscretizer(4))  # torques in [-2, 2]
        >>> [env.transform._inv_apply_transform(torch.tensor([i])).item() for i in range(4)]
        [-1.5, -0.5, 0.5, 1.5]
    """

    class SamplingStrategy(Enum):
        """Which value stands for an interval."""

        MEDIAN = 0
        LOW = 1
        HIGH = 2
        RANDOM = 3

    def __init__(
        self,
        num_intervals: int | Sequence[int] | Tensor,
        action_key: Key = "action",
        out_action_key: Key | None = None,
        sampling: SamplingStrategy | None = None,
        categorical: bool = True,
    ) -> None:
        action = as_key(as_path(action_key))
        super().__init__(
            in_keys_inv=[action], out_keys_inv=[action if out_action_key is None else as_key(as_path(out_action_key))]
        )
        self.num_intervals = torch.as_tensor(num_intervals, dtype=torch.int64)
        if self.num_intervals.ndim > 1 or bool((self.num_intervals < 1).any()):
            raise ValueError(
                f"ActionDiscretizer got num_intervals={num_intervals!r}; give one number of at least 1, or one per "
                "dimension of the action"
            )
        self.sampling = self.SamplingStrategy.MEDIAN if sampling is None else self.SamplingStrategy(sampling)
        self.categorical = categorical
        self._bounds: tuple[int, Bounded, Tensor] | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner; its action's bounds are looked at at the first use."""
        super().set_container(owner)
        self._bounds = None

    def _found(self) -> tuple[Bounded, Tensor]:
        """The action's spec, and the number of intervals of each dimension ``[A]``."""
        seen = specs_seen(self)
        if self._bounds is None or (seen is not None and seen != self._bounds[0]):
            parent = self.parent
            if parent is None or seen is None:
                raise EnvError(
                    "ActionDiscretizer needs the bounds of an environment's action; append it to one: "
                    "TransformedEnv(env, ActionDiscretizer(...))"
                )
            self._bounds = (seen, *self._checked(parent.full_action_spec, len(parent.batch_size)))
        return self._bounds[1:]

    def _checked(self, action_spec: Composite, batch_dims: int) -> tuple[Bounded, Tensor]:
        leaf = action_spec.get(self.in_keys_inv[0], None)
        if not isinstance(leaf, Bounded) or not leaf.dtype.is_floating_point or leaf.ndim <= batch_dims:  # type: ignore[union-attr]
            raise EnvError(
                f"ActionDiscretizer needs a bounded floating-point vector; the action {self.in_keys_inv[0]!r} is "
                f"{leaf!r}, of {list(action_spec.keys(True, True))}. Name it with action_key=..."
            )
        if not bool(torch.isfinite(leaf.high - leaf.low).all()):
            raise EnvError(f"the bounds of the action {self.in_keys_inv[0]!r} are not finite, so nothing can be cut")
        counts = self.num_intervals.to(leaf.device)
        if counts.ndim and len(counts) != leaf.shape[-1]:
            raise EnvError(
                f"ActionDiscretizer got {len(counts)} numbers of intervals; the action {self.in_keys_inv[0]!r} has "
                f"{leaf.shape[-1]} dimensions"
            )
        return leaf, counts.expand(leaf.shape[-1])

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        leaf, counts = self._found()
        chosen = value if self.categorical else _numbers(value, counts)
        low, high = leaf.low.expand(leaf.shape), leaf.high.expand(leaf.shape)
        result = low + (high - low) * ((chosen + self._place(chosen, leaf.dtype)) / counts.to(leaf.dtype))  # type: ignore[arg-type]
        return torch.maximum(torch.minimum(result, high), low)

    def _place(self, chosen: Tensor, dtype: torch.dtype) -> Tensor | float:
        """Where in the interval, in [0, 1]."""
        if self.sampling is self.SamplingStrategy.RANDOM:
            return torch.rand(chosen.shape, dtype=dtype, device=chosen.device)
        places = {self.SamplingStrategy.MEDIAN: 0.5, self.SamplingStrategy.LOW: 0.0, self.SamplingStrategy.HIGH: 1.0}
        return places[self.sampling]

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """A choice for each dimension."""
        leaf, counts = self._found()
        key, out_key = self.in_keys_inv[0], self.out_keys_inv[0]
        if out_key != key:
            action_spec.pop(key)
        action_spec.set(out_key, self._choices(leaf, counts))
        return action_spec

    def _choices(self, leaf: Bounded, counts: Tensor) -> TensorSpec:
        if self.categorical:
            return MultiCategorical(counts, shape=leaf.shape, device=leaf.device)
        return MultiOneHot(counts, shape=(*leaf.shape[:-1], int(counts.sum())), device=leaf.device)

    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """The inverse alone."""
        return inward_program(self, before, after)


def _numbers(one_hot: Tensor, counts: Tensor) -> Tensor:
    return torch.stack([part.long().argmax(-1) for part in one_hot.split(counts.tolist(), -1)], -1)
