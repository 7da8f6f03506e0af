"""Toy environments whose trajectories are known in closed form.

``CountingEnv`` speaks TensorDict, ``ArrayCountingEnv`` writes rows of columns; both count: the observation is the
number of steps since the reset, the reward is the observation that the step led to, and the episode ends after
``length`` steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_core.envs.array_env import ArrayEnv
from rl_core.envs.base import EnvBase
from rl_core.envs.columns import Columns, RowProgram
from rl_core.envs.partial_reset import reset_rows
from rl_core.specs import Bounded, Categorical, Composite, Unbounded

__all__ = ["ArrayCountingEnv", "CountingEnv", "GroupCountingEnv"]


def _declare(env: EnvBase, truncate: bool) -> None:
    batch = env.batch_size
    env.observation_spec = Composite({"observation": Unbounded(shape=(*batch, 1), dtype=torch.float32)}, shape=batch)
    env.action_spec = Bounded(low=-1.0, high=1.0, shape=(*batch, 1), dtype=torch.float32)
    env.reward_spec = Unbounded(shape=(*batch, 1), dtype=torch.float32)
    flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
    names = ("done", "terminated", "truncated") if truncate else ("done", "terminated")
    env.done_spec = Composite({name: flag.clone() for name in names}, shape=batch)


class CountingEnv(EnvBase):
    """Counts steps; a batch of them may have episodes of different lengths.

    Args:
        length: steps in an episode, one number for all rows or one for each.
        batch_size: ``[]`` or ``[N]``.
        truncate: end by truncation instead of termination.

    Example:
        >>> CountingEnv(length=3).rollout(10)["next", "observation"].squeeze(-1)
        tensor([1., 2., 3.])
    """

    def __init__(self, length: int | Sequence[int] = 5, batch_size: Sequence[int] = (), truncate: bool = False) -> None:
        super().__init__(batch_size=batch_size)
        self.length = torch.as_tensor(length).expand(self.batch_size).unsqueeze(-1)
        self.truncate = truncate
        self.count = torch.zeros(*self.batch_size, 1)
        _declare(self, truncate)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows = reset_rows(tensordict)
        self.count = self.count.clone()
        self.count[... if rows is None else rows] = 0
        return TensorDict({"observation": self.count.clone()}, batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count = self.count + 1
        end = self.count >= self.length
        return TensorDict(
            {
                "observation": self.count.clone(),
                "reward": self.count.clone(),
                ("truncated" if self.truncate else "terminated"): end,
                **({"terminated": torch.zeros_like(end)} if self.truncate else {}),
            },
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        self.count = state_dict["count"].clone()
        return True


class ArrayCountingEnv(ArrayEnv):
    """The same environment on numpy rows."""

    def __init__(self, length: int | Sequence[int] = 5, batch_size: Sequence[int] = (), truncate: bool = False) -> None:
        super().__init__(batch_size=batch_size)
        self.length = np.broadcast_to(np.asarray(length), tuple(self.batch_size))[..., None]
        self.truncate = truncate
        self.count = np.zeros((*self.batch_size, 1), dtype=np.float32)
        _declare(self, truncate)

    def row_program(self, columns: Columns) -> RowProgram:
        observation, reward = columns["observation"], columns["reward"]
        flag = columns["truncated" if self.truncate else "terminated"]

        def step(t: int) -> None:
            self.count += 1
            observation[t + 1] = self.count
            reward[t] = self.count
            flag[t + 1] = self.count >= self.length

        def reset(t: int, mask: np.ndarray | None) -> None:
            if mask is None:
                self.count[...] = 0
                observation[t] = 0
            else:
                self.count[mask] = 0
                observation[t][mask] = 0

        return RowProgram(step, reset)

    def _set_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        return {"count": torch.from_numpy(self.count.copy())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        self.count = state_dict["count"].numpy().copy()
        return True


class GroupCountingEnv(EnvBase):
    """A group of agents that count, each to its own length; the root ends when all of them have.

    Under "agents" lie observation, action, reward and end flags, each ``[*B, A, 1]``; a second action "signal" and a
    second reward "team_reward" lie at the root. An agent that has ended stands still and earns nothing.

    Args:
        lengths: steps after which each agent ends.
        batch_size: ``[]`` or ``[N]``.

    Example:
        >>> GroupCountingEnv([1, 3]).rollout(9)["next", "agents", "done"].squeeze(-1)
        tensor([[ True, False],
                [ True, False],
                [ True,  True]])
    """

    def __init__(self, lengths: Sequence[int] = (2, 3), batch_size: Sequence[int] = ()) -> None:
        super().__init__(batch_size=batch_size)
        batch, shape = self.batch_size, (*self.batch_size, len(lengths), 1)
        self.lengths = torch.as_tensor(lengths).unsqueeze(-1)
        self.count = torch.zeros(shape)

        agent = Categorical(2, shape=shape, dtype=torch.bool)
        flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
        ends = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.observation_spec = Composite({("agents", "observation"): Unbounded(shape=shape)}, shape=batch)
        self.full_action_spec = Composite(
            {("agents", "action"): Bounded(-1.0, 1.0, shape), "signal": Categorical(3, shape=batch)}, shape=batch
        )
        self.full_reward_spec = Composite(
            {("agents", "reward"): Unbounded(shape=shape), "team_reward": Unbounded(shape=(*batch, 1))}, shape=batch
        )
        self.full_done_spec = Composite({**ends, **{("agents", name): agent.clone() for name in ends}}, shape=batch)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows = reset_rows(tensordict)
        self.count = self.count.clone()
        self.count[... if rows is None else rows] = 0
        return TensorDict({("agents", "observation"): self.count.clone()}, batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        alive = self.count < self.lengths
        self.count = torch.where(alive, self.count + 1, self.count)
        reward = torch.where(alive, self.count, 0)
        ended = self.count >= self.lengths
        return TensorDict(
            {
                ("agents", "observation"): self.count.clone(),
                ("agents", "reward"): reward,
                ("agents", "terminated"): ended,
                "team_reward": reward.sum(-2),
                "terminated": ended.all(-2),
            },
            batch_size=self.batch_size,
        )
