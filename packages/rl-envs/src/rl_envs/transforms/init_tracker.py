"""``InitTracker``: marks the first step of every episode."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Categorical, Columns, Composite, RowProgram, Transform
from rl_core.errors import EnvError
from rl_core.keys import Key, join
from rl_envs.transforms.end_groups import EndKeys, ends_along_time, groups_before, specs_seen
from rl_envs.transforms.number_rows import number_rows

__all__ = ["InitTracker"]


class InitTracker(Transform):
    """``is_init`` is True at the root of rows that were just reset, False elsewhere and always False under "next".

    Recurrent policies read it to start from their initial state. It has the shape of the end flags, beside each
    group's.

    Args:
        init_key: the flag's name.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=2), InitTracker())
        >>> env.rollout(4, break_when_any_done=False)["is_init"].flatten()
        tensor([ True, False,  True, False])
    """

    def __init__(self, init_key: str = "is_init") -> None:
        super().__init__()
        if not isinstance(init_key, str):
            raise ValueError(f"init_key is one name, which is used in every group of end flags; got {init_key!r}")
        self.init_key = init_key
        self._groups: list[EndKeys] = []
        self._seen: int | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner; its end flags are read at the first use."""
        super().set_container(owner)
        self._groups, self._seen = [], None

    def _keys(self) -> list[tuple[Key, EndKeys]]:
        seen = specs_seen(self)
        if not self._groups or (seen is not None and seen != self._seen):
            self._groups, self._seen = groups_before(self), seen
        return [(join(group.prefix, self.init_key) if group.prefix else self.init_key, group) for group in self._groups]

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the flag."""
        for key, group in self._keys():
            if key in observation_spec:
                raise EnvError(f"the environment already has {key!r}; give this InitTracker another init_key")
            observation_spec.set(key, Categorical(2, shape=group.shape, dtype=torch.bool))
        return observation_spec

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for key, group in self._keys():
            tensordict_reset.set(key, torch.ones_like(tensordict_reset.get(group.done)))
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, group in self._keys():
            next_tensordict.set(key, torch.zeros_like(next_tensordict.get(group.done)))
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Mark the first steps in stored steps: those after an end, and the very first one unless it says otherwise."""
        for prefix, ended, dim in ends_along_time(tensordict, type(self).__name__):
            key = join(prefix, self.init_key) if prefix else self.init_key
            start = tensordict.get(key, None)
            first = torch.ones_like(ended.narrow(dim, 0, 1)) if start is None else start.narrow(dim, 0, 1)
            tensordict.set(key, torch.cat([first, ended.narrow(dim, 0, ended.shape[dim] - 1)], dim))
            tensordict.set(join("next", key), torch.zeros_like(ended))
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """False after every step, True after every reset."""
        arrays = [after[key] for key, _ in self._keys()]
        numbers = number_rows(arrays[0])

        def step_number(t: int) -> None:
            numbers[t + 1] = False

        def step(t: int) -> None:
            for array in arrays:
                array[t + 1] = False

        def reset(t: int, mask: np.ndarray | None) -> None:
            for array in arrays:
                if mask is None:
                    array[t] = True
                else:
                    array[t][mask] = True

        return RowProgram(step_number if len(arrays) == 1 and numbers is not None else step, reset)
