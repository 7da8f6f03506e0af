"""One simulator of gym's kind on rows, through what its adapter says of its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core import Columns, RowProgram
from rl_core.envs.columns import nest
from rl_core.errors import EnvError
from rl_envs.gym.rows import check_rows, item_rows, observation_writer
from rl_envs.gym.single import not_running

if TYPE_CHECKING:
    from rl_envs.gym_like.env import GymLikeEnv

__all__ = ["gym_like_program"]

_STEP = "observation, reward, terminated, truncated, done, info"


def gym_like_program(sim: GymLikeEnv, columns: Columns) -> RowProgram:
    """Bind a simulator to columns."""
    program = _GymLikeProgram(sim, columns)
    return RowProgram(program.step, program.reset)


class _GymLikeProgram:
    def __init__(self, sim: GymLikeEnv, columns: Columns) -> None:
        self.sim, self.columns = sim, columns
        self.parts = sim.observation_parts(columns)
        self.write = observation_writer(self.parts)
        self.write_info = sim.info_writer(columns)
        self.actions = [leaf.key for leaf in sim.action_leaves]
        self.reward = columns["reward"]
        self.terminated, self.truncated = item_rows(columns["terminated"]), item_rows(columns["truncated"])
        self.fresh = True

    def step(self, t: int) -> None:
        """One step of ``frame_skip`` frames, those after an end left out."""
        sim = self.sim
        if not sim.running[0]:
            raise not_running(sim)
        action, total = sim.read_action(self._action(t)), None
        for _ in range(sim.frame_skip):
            result = sim._output_transform(sim.advance(action))
            if len(result) != 6:
                raise _wrong_transform(sim, "_output_transform", result, _STEP)
            observation, reward, terminated, truncated, done, info = result
            gain = sim.read_reward(reward)
            total = gain if total is None else total + gain
            ended, cut = sim.read_done(terminated, truncated, done)
            if ended or cut:
                sim.running[0] = False
                break
        self._observe(t + 1, observation, info)
        if self.fresh:
            self._check_reward(total)
            self.fresh = False
        self.reward[t] = total
        self.terminated[t + 1], self.truncated[t + 1] = ended, cut

    def reset(self, t: int, mask: np.ndarray | None) -> None:
        """Begin an episode."""
        sim = self.sim
        if mask is not None and not mask.any():
            return
        result = sim._reset_output_transform(sim.begin(*sim.next_reset()))
        if len(result) != 2:
            raise _wrong_transform(sim, "_reset_output_transform", result, "observation, info")
        self._observe(t, *result)
        sim.running[0] = True

    def _observe(self, t: int, observation: Any, info: dict[str, Any]) -> None:
        values = self.sim.read_obs(observation)
        if self.fresh:
            check_rows(self.sim.name, self.parts, values)
        self.write(t, values)
        if self.write_info is not None:
            self.write_info(t, info)

    def _check_reward(self, total: Any) -> None:
        expected = self.reward.shape[1:]
        if np.shape(total) not in ((), expected) or (np.shape(total) == () and np.prod(expected) != 1):
            raise EnvError(
                f"{self.sim.name} gave a reward of shape {np.shape(total)}; its reward_spec says {tuple(expected)}. "
                "Bring it into that shape in read_reward, or declare another reward_spec"
            )

    def _action(self, t: int) -> Any:
        tensors = self.columns.tensors
        if self.actions == ["action"]:
            return tensors["action"][t].clone()
        return nest({key: tensors[key][t].clone() for key in self.actions}, self.sim.batch_size)["action"]


def _wrong_transform(sim: GymLikeEnv, method: str, result: Any, expected: str) -> EnvError:
    return EnvError(f"{type(sim).__name__}.{method} returned {len(result)} values; ({expected}) is expected")
