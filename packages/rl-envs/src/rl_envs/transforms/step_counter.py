"""``StepCounter``: how many steps an episode has taken, and an end to it after so many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Categorical, Columns, Composite, RowProgram, Transform, Unbounded
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, join
from rl_envs.transforms.end_groups import EndKeys, ends_along_time, groups_before, groups_in, specs_seen
from rl_envs.transforms.number_rows import number_rows

__all__ = ["StepCounter"]


class StepCounter(Transform):
    """Counts steps: 0 at the root after a reset, one more under "next" (int64, of the end flags' shape).

    With ``max_steps``, an episode that has taken so many is truncated: ``truncated |= step_count >= max_steps`` and
    ``done |= truncated``; ``terminated`` is left alone. Every group of end flags has its own count beside them, and is
    truncated with the groups around it.

    Args:
        max_steps: steps in an episode, at least 1; None only counts.
        truncated_key: the flag that is set. Any other name than "truncated" is a mere observation, and needs
            ``update_done=False``.
        step_count_key: the count's name.
        update_done: let ``done`` follow.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=10), StepCounter(max_steps=3))
        >>> data = env.rollout(5)
        >>> data["next", "step_count"].flatten(), data["next", "truncated"].flatten()
        (tensor([1, 2, 3]), tensor([False, False,  True]))
    """

    def __init__(
        self,
        max_steps: int | None = None,
        truncated_key: str = "truncated",
        step_count_key: str = "step_count",
        update_done: bool = True,
    ) -> None:
        super().__init__()
        if max_steps is not None and max_steps < 1:
            raise ValueError(f"max_steps is the number of steps in an episode, at least 1; got {max_steps}")
        if max_steps is not None and (truncated_key == "truncated") != update_done:
            raise ValueError(
                f"StepCounter(truncated_key={truncated_key!r}, update_done={update_done}): 'truncated' always "
                "implies done, and no other flag does; give the flag another name together with update_done=False"
            )
        self.max_steps = max_steps
        self.truncated_key, self.step_count_key, self.update_done = truncated_key, step_count_key, update_done
        self._groups: list[EndKeys] = []
        self._seen: int | None = None

    # ---------------------------------------------------------------- specs
    def set_container(self, owner: object) -> None:
        """Take an owner; its end flags are read at the first use."""
        super().set_container(owner)
        self._groups, self._seen = [], None

    def _end_groups(self) -> list[EndKeys]:
        seen = specs_seen(self)
        if not self._groups or (seen is not None and seen != self._seen):
            self._groups, self._seen = groups_before(self), seen
        return self._groups

    def _count_key(self, group: EndKeys) -> Key:
        return join(group.prefix, self.step_count_key) if group.prefix else self.step_count_key

    def _flag_key(self, group: EndKeys) -> Key:
        return join(group.prefix, self.truncated_key) if group.prefix else self.truncated_key

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the count."""
        for group in self._end_groups():
            if self._count_key(group) in observation_spec:
                raise EnvError(
                    f"the environment already has {self._count_key(group)!r}; give this StepCounter another "
                    "step_count_key"
                )
            observation_spec.set(self._count_key(group), Unbounded(shape=group.shape, dtype=torch.int64))
            if self.max_steps is not None and not self.update_done:
                observation_spec.set(self._flag_key(group), Categorical(2, shape=group.shape, dtype=torch.bool))
        return observation_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """A step reads the count."""
        for group in self._end_groups():
            state_spec.set(self._count_key(group), Unbounded(shape=group.shape, dtype=torch.int64))
        return state_spec

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Adds ``truncated`` where it is missing."""
        if self.max_steps is None or not self.update_done:
            return done_spec
        for group in groups_in(done_spec):
            if self._flag_key(group) not in done_spec:
                done_spec.set(self._flag_key(group), Categorical(2, shape=group.shape, dtype=torch.bool))
        return done_spec

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for group in self._end_groups():
            done = tensordict_reset.get(group.done)
            tensordict_reset.set(self._count_key(group), torch.zeros_like(done, dtype=torch.int64))
            if self.max_steps is not None and not self.update_done:
                tensordict_reset.set(self._flag_key(group), torch.zeros_like(done))
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        cut: dict[tuple[str, ...], torch.Tensor] = {}
        for group in self._end_groups():  # from the outside inwards
            key = self._count_key(group)
            before = tensordict.get(key, None)
            if before is None:
                raise KeyMissingError(
                    f"StepCounter needs {key!r} at the root; reset through the TransformedEnv that has the StepCounter "
                    "(td = env.reset(), or env.reset(td)), or keep the key in what is stepped"
                )
            count = before + 1
            next_tensordict.set(key, count)
            if self.max_steps is not None:
                over = count >= self.max_steps
                for prefix, around in cut.items():
                    if group.prefix[: len(prefix)] == prefix:
                        over = over | around.reshape(*around.shape, *(1,) * (over.ndim - around.ndim))
                cut[group.prefix] = over
                self._cut(next_tensordict, group, over)
        return next_tensordict

    def _cut(self, nxt: TensorDictBase, group: EndKeys, over: torch.Tensor) -> None:
        flag = self._flag_key(group)
        present = nxt.get(flag, None) if self.update_done else None
        nxt.set(flag, over if present is None else present | over)
        if self.update_done:
            nxt.set(group.done, nxt.get(group.done) | over)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Count along "time" in stored steps, afresh after every end; goes on from a count at the first step.

        End flags are data and stay as they were stored.
        """
        for prefix, ended, dim in ends_along_time(tensordict, type(self).__name__):
            key = join(prefix, self.step_count_key) if prefix else self.step_count_key
            start = tensordict.get(key, None)
            count = torch.zeros_like(ended.select(dim, 0), dtype=torch.int64) if start is None else start.select(dim, 0)
            root, nxt = [], []
            for over in ended.unbind(dim):
                root.append(count)
                nxt.append(count + 1)
                count = torch.where(over, 0, count + 1)
            tensordict.set(key, torch.stack(root, dim))
            tensordict.set(join("next", key), torch.stack(nxt, dim))
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Count in place; ORs into the truncated row, from which the runner completes ``done``."""
        programs = [self._group_rows(group, before, after) for group in self._end_groups()]
        if len(programs) == 1:
            return programs[0]

        def step(t: int) -> None:
            for program in programs:
                program.step(t)

        def reset(t: int, mask: np.ndarray | None) -> None:
            for program in programs:
                program.reset(t, mask)

        return RowProgram(step, reset)

    def _group_rows(self, group: EndKeys, before: Columns, after: Columns) -> RowProgram:
        count_key, flag_key = self._count_key(group), self._flag_key(group)
        count = after[count_key]
        flag = None if self.max_steps is None else after[flag_key]
        owns_flag = flag_key not in before
        numbers = number_rows(count)
        if numbers is not None:
            step = _scalar_step(numbers, None if flag is None else number_rows(flag), self.max_steps, owns_flag)
        else:
            step = _batched_step(count, flag, self.max_steps, owns_flag)
        observed = [count] if self.update_done or flag is None else [count, flag]

        def reset(t: int, mask: np.ndarray | None) -> None:
            for array in observed:
                if mask is None:
                    array[t] = 0
                else:
                    array[t][mask] = 0

        return RowProgram(step, reset)


def _scalar_step(count: Any, flag: Any, max_steps: int | None, owns_flag: bool) -> Callable[[int], None]:
    if flag is None or max_steps is None:

        def only_count(t: int) -> None:
            count[t + 1] = count[t] + 1

        return only_count

    def step(t: int) -> None:
        taken = count[t] + 1
        count[t + 1] = taken
        if taken >= max_steps:
            flag[t + 1] = True
        elif owns_flag:
            flag[t + 1] = False

    return step


def _batched_step(
    count: np.ndarray, flag: np.ndarray | None, max_steps: int | None, owns_flag: bool
) -> Callable[[int], None]:
    add, at_least = np.add, np.greater_equal

    def step(t: int) -> None:
        row = count[t + 1]
        add(count[t], 1, row)
        if flag is not None and max_steps is not None:
            if owns_flag:
                at_least(row, max_steps, flag[t + 1])
            else:
                flag[t + 1] |= row >= max_steps

    return step
