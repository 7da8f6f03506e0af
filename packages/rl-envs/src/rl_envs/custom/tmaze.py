"""``TMazeEnv``: a corridor whose first step says where to turn at its end; the best return without memory is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_core import ArrayEnv, Bounded, Categorical, Columns, Composite, RowProgram, Unbounded
from rl_core.errors import EnvError

__all__ = ["TMazeEnv"]

FORWARD, UP, DOWN = 0, 1, 2


class TMazeEnv(ArrayEnv):
    """Walk along a corridor and turn at its end to the side that a sign at its beginning had shown.

    The observation is one of four one-hot vectors: sign up, sign down (these two in the first cell only), corridor,
    junction. Actions: 0 goes one cell forward; 1 and 2 turn up and down. A turn at the junction ends the episode, with
    reward 1 to the side of the sign and -1 to the other; a bump into a wall (a turn in the corridor, forward at the
    junction) costs 0.1 and changes nothing. After ``max_steps`` the episode is truncated. So the best return is 1 with
    memory, and 0 in the mean without.

    Args:
        num_envs: environments stepped together; None: one, without a batch dimension.
        length: cells between the sign and the junction, at least 1: what has to be remembered for so many steps.
        max_steps: steps after which an episode is cut; five times the shortest way where None.
        seed: of the signs; drawn from torch's generator where None.

    Raises:
        EnvError: the corridor is too short.

    Bakker, 2001, Reinforcement Learning with Long Short-Term Memory, section 4.

    >>> env = TMazeEnv(length=3, seed=0)
    >>> steps = env.rollout(5, lambda td: td.set("action", torch.tensor(0)))
    >>> steps["observation"].argmax(-1)[1:].tolist(), steps["next", "reward"][-2:].flatten()
    ([2, 2, 2, 3], tensor([ 0.0000, -0.1000]))
    """

    def __init__(
        self, num_envs: int | None = None, length: int = 10, max_steps: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(batch_size=() if num_envs is None else (num_envs,))
        if length < 1:
            raise EnvError(f"TMazeEnv needs a corridor of at least one cell; got length={length}")
        self.length = length
        self.max_steps = 5 * (length + 1) if max_steps is None else max_steps
        batch = self.batch_size
        self.observation_spec = Composite(
            observation=Bounded(low=0.0, high=1.0, shape=(*batch, 4), dtype=torch.float32), shape=batch
        )
        self.action_spec = Categorical(3, shape=batch, dtype=torch.int64)
        self.reward_spec = Unbounded(shape=(*batch, 1), dtype=torch.float32)
        flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
        self.done_spec = Composite({name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=batch)
        count = batch.numel()
        self._cell, self._steps = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self._sign = np.full(count, UP, dtype=np.int64)
        self._generator: torch.Generator | None = None
        if seed is not None:
            self.set_seed(seed)

    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the mazes to columns."""
        count = self._cell.shape[0]
        observation = columns["observation"].reshape(-1, count, 4)
        action = columns["action"].reshape(-1, count)
        reward, terminated, truncated = (
            columns[name].reshape(-1, count) for name in ("reward", "terminated", "truncated")
        )
        eye, end = np.eye(4, dtype=np.float32), self.length + 1

        def look(rows: np.ndarray) -> np.ndarray:
            cell = self._cell[rows]
            place = np.where(cell == end, 3, np.where(cell == 0, self._sign[rows] - UP, 2))
            return eye[place]

        everywhere = np.arange(count)

        def step(t: int) -> None:
            taken, junction = action[t], self._cell == end
            forward = taken == FORWARD
            turned = junction & ~forward
            bump = np.where(junction == forward, -0.1, 0.0)  # a turn in the corridor, or forward at the junction
            reward[t] = np.where(turned, np.where(taken == self._sign, 1.0, -1.0), bump)
            self._cell += forward & ~junction
            self._steps += 1
            terminated[t + 1] = turned
            truncated[t + 1] = ~turned & (self._steps >= self.max_steps)
            observation[t + 1] = look(everywhere)

        def reset(t: int, mask: np.ndarray | None) -> None:
            rows = everywhere if mask is None else np.flatnonzero(mask)
            signs = torch.randint(UP, DOWN + 1, (len(rows),), generator=self._generator)
            self._cell[rows], self._steps[rows], self._sign[rows] = 0, 0, signs.numpy()
            observation[t, rows] = look(rows)

        return RowProgram(step, reset)

    def _set_seed(self, seed: int) -> None:
        """A generator of this environment's own, from then on."""
        self._generator = torch.Generator().manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """The mazes as they stand, and the generator of the signs to come."""
        arrays = {"cell": self._cell, "steps": self._steps, "sign": self._sign}
        state: dict[str, Any] = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        return state if self._generator is None else {**state, "generator": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        """Go on where the state was taken."""
        self._cell[:], self._steps[:], self._sign[:] = (state_dict[name].numpy() for name in ("cell", "steps", "sign"))
        if "generator" in state_dict:
            self._generator = torch.Generator()
            self._generator.set_state(state_dict["generator"])
        return True
