"""Further steps of the environment before a transform: on TensorDicts, and on rows of columns of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Columns, EnvBase, Transform
from rl_core.envs.array_env import allocate
from rl_core.errors import EnvError
from rl_envs.transforms.end_groups import specs_seen

__all__ = ["InnerRows", "InnerSteps", "ended_in", "ended_rows"]


class InnerSteps(Transform):
    """Base of transforms that step the environment before them themselves."""

    def __init__(self) -> None:
        super().__init__()
        self._inner: EnvBase | None = None
        self._seen: int | None = None

    def inner_env(self) -> EnvBase:
        """The environment before this transform.

        Raises:
            EnvError: it belongs to none.
        """
        seen = specs_seen(self)
        if self._inner is None or seen != self._seen:
            self._inner, self._seen = self.parent, seen
        if self._inner is None:
            name = type(self).__name__
            raise EnvError(f"{name} steps an environment; append it to one: TransformedEnv(env, {name}(...))")
        return self._inner

    def set_container(self, owner: Any) -> None:
        """Take an owner; the environment is found at the first use."""
        super().set_container(owner)
        self._inner = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_inner": None}


class InnerRows:
    """One step at a time of an environment on columns of its own, from and to rows of others.

    Args:
        env: the environment before the transform.
        outer: the columns in which it stands.
    """

    def __init__(self, env: EnvBase, outer: Columns) -> None:
        self.outer, self.own = outer, allocate(env, 1)
        self.program = env.row_program(self.own)
        self.actions, self.rewards = list(env.action_keys), list(env.reward_keys)
        self.flags = [key for group in env.end_groups for key in (group.terminated, group.truncated) if key is not None]
        self.root_flags = [flag for flag in self.flags if isinstance(flag, str)]
        self.done = [group.done for group in env.end_groups]

    def take(self, t: int) -> None:
        """Carried row t of the others becomes where the next step starts."""
        for key in self.own.carried:
            self.own[key][0] = self.outer[key][t]

    def act(self, key: str | tuple[str, ...], action: np.ndarray) -> None:
        """The action of the next step."""
        self.own[key][0] = action

    def step(self) -> None:
        """Take it."""
        if self.program.ahead is not None:
            self.program.ahead(0)
        if self.program.before is not None:
            self.program.before(0)
        self.program.step(0)

    def reset(self) -> None:
        """Start anew, as if after that step."""
        self.program.reset(1, None)
        for key in (*self.flags, *self.done):
            self.own[key][1] = False

    def ended(self) -> np.ndarray:
        """The rows of the batch that the step ended, bool ``[*B]``."""
        return ended_rows(self.own, self.root_flags, 1)

    def carry(self) -> None:
        """What it led to becomes where the next one starts."""
        self.own.carry_over()

    def give(self, t: int, rows: np.ndarray | None = None) -> None:
        """What the step led to becomes carried row t of the others."""
        for key in self.own.carried:
            if rows is None:
                self.outer[key][t] = self.own[key][1]
            else:
                self.outer[key][t][rows] = self.own[key][1][rows]


def ended_rows(columns: Columns, flags: list[str], t: int) -> np.ndarray:
    """Where any of the flags is set in carried row t, bool ``[*B]``."""
    batch = tuple(columns.batch_size)
    ended = np.zeros(batch, dtype=bool)
    for flag in flags:
        ended = ended | columns[flag][t].reshape(*batch, -1).any(-1)
    return ended


def ended_in(tensordict: TensorDictBase) -> torch.Tensor:
    """The rows whose ``done`` at the root is set, bool ``[*B]``."""
    return tensordict.get("done").reshape(*tensordict.batch_size, -1).any(-1)
