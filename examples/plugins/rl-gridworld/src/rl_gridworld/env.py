"""`GridWorldEnv`: walk to the far corner of a square grid; the best return from every cell is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Categorical, Composite, EnvBase, OneHot, Unbounded, reset_rows

__all__ = ["GridWorldEnv"]

MOVES = torch.tensor([[-1, 0], [0, 1], [1, 0], [0, -1]])  # up, right, down, left, as (row, column)


class GridWorldEnv(EnvBase):
    """A batch of walkers on a grid, each on its own.

    An episode begins in a random cell other than the goal, the last corner. A step costs 1; a walker that steps
    against the border stays where it is. At the goal the episode terminates, so the best return is minus the distance.

    Args:
        size: cells along a side, at least 2.
        batch_size: `[]` for one walker, `[N]` for N of them.

    Example:
        >>> env = GridWorldEnv(4, batch_size=[64])
        >>> rollout = env.rollout(10, break_when_any_done=False)
        >>> rollout["observation"].shape, rollout["action"].shape, rollout["next", "reward"].shape
        (torch.Size([64, 10, 16]), torch.Size([64, 10]), torch.Size([64, 10, 1]))
    """

    def __init__(self, size: int = 4, batch_size: Sequence[int] = ()) -> None:
        super().__init__(batch_size=batch_size)
        self.size = size
        self.position = torch.zeros(*self.batch_size, 2, dtype=torch.int64)  # [*B, 2]: row and column
        self._generator: torch.Generator | None = None  # torch's own, until the environment is seeded

        batch = self.batch_size
        self.observation_spec = Composite(
            {"observation": OneHot(size**2, shape=(*batch, size**2), dtype=torch.float32)}, shape=batch
        )
        self.action_spec = Categorical(len(MOVES), shape=batch, dtype=torch.int64)
        self.reward_spec = Unbounded(shape=(*batch, 1), dtype=torch.float32)

    def best_return(self) -> Tensor:
        """The return of a shortest walk from where each walker stands, `[*B, 1]`."""
        return -(2 * (self.size - 1) - self.position.sum(-1, keepdim=True)).float()

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        goal = self.size**2 - 1
        cell = torch.randint(goal, self.batch_size, generator=self._generator)
        fresh = torch.stack([cell // self.size, cell % self.size], -1)
        rows = reset_rows(tensordict)  # bool [*B], None for all
        self.position = fresh if rows is None else torch.where(rows.unsqueeze(-1), fresh, self.position)
        return TensorDict({"observation": self._observation()}, batch_size=self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.position = (self.position + MOVES[tensordict["action"]]).clamp(0, self.size - 1)
        return TensorDict(
            {
                "observation": self._observation(),
                "reward": -torch.ones(*self.batch_size, 1),
                "terminated": self.best_return() == 0,
            },
            batch_size=self.batch_size,
        )

    def _set_seed(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def _observation(self) -> Tensor:
        cell = self.position[..., 0] * self.size + self.position[..., 1]
        return torch.nn.functional.one_hot(cell, self.size**2).float()  # [*B, size * size]
