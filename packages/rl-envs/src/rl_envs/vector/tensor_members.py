"""Stateless environments over tensors (``TensorEnv``) side by side: called without a container, all at once or each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch import Tensor

from rl_core import TensorEnv
from rl_core.checking import checks_enabled
from rl_core.envs.ends import EndGroup, complete_ends, no_ends
from rl_core.keys import END_NAMES
from rl_envs.vector.members import Members

__all__ = ["TensorMembers"]

_NOT_READ = ("next", *END_NAMES)  # what a step that is taken does not depend on


class TensorMembers:
    """Steps environments whose step is a function of tensors.

    Those of one kind that say so (``TensorEnv.stack_key``) are stepped by one call. Any others are called each by
    itself, so that a row's numbers do not depend on how many rows there are: vectorised arithmetic may differ in the
    last bit.

    Args:
        members: the environments.
    """

    def __init__(self, members: Members) -> None:
        self.members = members
        self.able = all(isinstance(env, TensorEnv) and env.device is None for env in members.envs)
        self._envs = [env for env in members.envs if isinstance(env, TensorEnv)]
        self._steps = [env._step_entries for env in self._envs]
        self.as_one = self.able and _steps_as_one(self._envs)
        self._constants: dict[str, tuple[list[Any], list[Any]]] = {}

    def step(self, tensordict: TensorDictBase, groups: list[EndGroup]) -> TensorDictBase | None:
        """One step of all of them; None where something asks for the long way (a first step, checks, an end).

        Args:
            tensordict: the root, ``[N, ...]``.
            groups: the end flags of the batch.
        """
        on_cpu = tensordict.device is None or tensordict.device.type == "cpu"
        if not self.able or not on_cpu or checks_enabled():
            return None
        if not all(env._validated and env._steps_plainly() for env in self._envs):
            return None
        read = {name: value for name, value in tensordict.items() if name not in _NOT_READ}
        if self.as_one and all(type(value) is Tensor or type(value) is TensorDict for value in read.values()):
            self.members.draws_nothing("step")
            return self._completed(self._steps[0](read), tensordict, groups)
        columns = [(name, self._rows(name, value)) for name, value in read.items()]
        written: list[dict[str, Any]] = []
        members, plain = self.members, self.members.plain
        for index, step in enumerate(self._steps):
            entries = {name: rows[index] for name, rows in columns}
            if plain[index]:
                members.at = index
                written.append(step(entries))
            else:
                written.append(members.run(index, "step", step, entries))
        return self._stacked(written, tensordict, groups)

    def _rows(self, name: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.unbind(0)
        leaves = [value] if not isinstance(value, TensorDictBase) else list(value.values())
        kept, rows = self._constants.get(name, ([], []))
        if len(kept) != len(leaves) or any(a is not b for a, b in zip(kept, leaves, strict=True)):
            rows = list(value.unbind(0))
            self._constants[name] = (leaves, rows)  # constants are the same tensors at every step
        return rows

    def _stacked(self, written: list[dict[str, Any]], like: TensorDictBase, groups: list[EndGroup]) -> TensorDictBase:
        size, device = like.batch_size, like.device
        names = written[0].keys()
        alike = all(row.keys() == names for row in written)
        if alike and all(isinstance(value, Tensor) for value in written[0].values()):
            return self._completed({name: torch.stack([row[name] for row in written]) for name in names}, like, groups)
        rows = [TensorDict(row, batch_size=size[1:], device=device) for row in written]
        for row, env in zip(rows, self.members.envs, strict=True):
            complete_ends(row, env.end_groups, batch_locked=False)
        return LazyStackedTensorDict.maybe_dense_stack(rows, 0)

    def _completed(self, written: dict[str, Any], like: TensorDictBase, groups: list[EndGroup]) -> TensorDictBase:
        """What is written under "next", end flags included where no episode ends."""
        leaves: dict[Any, Any] = dict(written)
        if written.keys().isdisjoint(END_NAMES):
            leaves.update(no_ends(groups, like.batch_size, like.device))
        return TensorDict(leaves, batch_size=like.batch_size, device=like.device)


def _steps_as_one(envs: Sequence[TensorEnv]) -> bool:
    """Whether one of several environments can step for all of them."""
    first = envs[0]
    if "stack_key" not in vars(type(first)) or first.stack_key is None:
        return False
    same = (type(first), first.batch_size, first.stack_key)
    return all((type(env), env.batch_size, env.stack_key) == same for env in envs)
