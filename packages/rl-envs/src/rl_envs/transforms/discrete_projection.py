"""``DiscreteActionProjection``: a policy with more choices than the environment has."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Categorical, Columns, Composite, OneHot, RowProgram, Transform
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.entry_map import inward_program

__all__ = ["DiscreteActionProjection"]


class DiscreteActionProjection(Transform):
    """Lets one policy with ``max_actions`` choices act in environments that have fewer.

    A choice that the environment lacks is replaced by one drawn from those it has.

    Args:
        num_actions_effective: how many the environment has.
        max_actions: how many the policy has.
        action_key: the action, OneHot or Categorical.
        include_forward: one-hot actions of stored data get ``max_actions`` columns at sampling.

    Example:
        >>> DiscreteActionProjection(3, 4)._inv_apply_transform(torch.tensor([0, 1, 0, 0]))
        tensor([0, 1, 0])
    """

    def __init__(
        self, num_actions_effective: int, max_actions: int, action_key: Key = "action", include_forward: bool = True
    ) -> None:
        if not 1 <= num_actions_effective <= max_actions:
            raise ValueError(
                f"DiscreteActionProjection got num_actions_effective={num_actions_effective} and "
                f"max_actions={max_actions}; wanted 1 <= num_actions_effective <= max_actions"
            )
        key = as_key(as_path(action_key))
        super().__init__(in_keys_inv=[key])
        self.num_actions_effective, self.max_actions = num_actions_effective, max_actions
        self.include_forward = include_forward
        if include_forward:
            self.in_keys = self.out_keys = [key]
        self._one_hot: bool | None = None

    def _apply_transform(self, value: Tensor) -> Tensor:
        """Stored one-hot actions, with as many columns as the policy has."""
        if value.ndim and value.shape[-1] == self.num_actions_effective and not self._is_number(value):
            return torch.nn.functional.pad(value, (0, self.max_actions - self.num_actions_effective))
        return value

    def _inv_apply_transform(self, value: Tensor) -> Tensor:
        if self._is_number(value):
            return torch.where(value < self.num_actions_effective, value, self._any(value.shape, value))
        if value.shape[-1] != self.max_actions:
            raise EnvError(
                f"DiscreteActionProjection({self.num_actions_effective}, {self.max_actions}) got an action of shape "
                f"{tuple(value.shape)}; a one-hot action has {self.max_actions} columns"
            )
        number = value.long().argmax(-1)
        legal = torch.where(number < self.num_actions_effective, number, self._any(number.shape, value))
        return torch.nn.functional.one_hot(legal, self.num_actions_effective).to(value.dtype)

    def _any(self, shape: torch.Size, like: Tensor) -> Tensor:
        return torch.randint(self.num_actions_effective, shape, device=like.device)

    def _is_number(self, value: Tensor) -> bool:
        """Whether actions are numbers; without an environment that is not known, and they are taken as one-hot."""
        parent = self.parent if self._one_hot is None else None
        if parent is not None:
            self._one_hot = isinstance(parent.full_action_spec.get(self.in_keys_inv[0], None), OneHot)
        return self._one_hot is False

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """``max_actions`` choices."""
        key = self.in_keys_inv[0]
        leaf = action_spec.get(key, None)
        if not isinstance(leaf, (OneHot, Categorical)) or leaf.n != self.num_actions_effective:
            raise EnvError(
                f"DiscreteActionProjection(num_actions_effective={self.num_actions_effective}) needs {key!r} to be a "
                f"choice of so many; it is {leaf!r}. Name the action with action_key=..."
            )
        self._one_hot = isinstance(leaf, OneHot)
        assert leaf.dtype is not None  # a choice has one
        if isinstance(leaf, OneHot):
            shape = (*leaf.shape[:-1], self.max_actions)
            action_spec.set(key, OneHot(self.max_actions, shape=shape, dtype=leaf.dtype, device=leaf.device))
        else:
            action_spec.set(key, Categorical(self.max_actions, leaf.shape, device=leaf.device, dtype=leaf.dtype))
        return action_spec

    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """The inverse alone."""
        return inward_program(self, before, after)
