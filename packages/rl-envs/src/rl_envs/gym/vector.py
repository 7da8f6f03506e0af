"""A gymnasium vector environment on rows: three autoreset modes, one kind of transition.

Whatever the mode, ``("next", observation)`` of an episode's last step is its true last observation, no step is spent
on a reset, and an episode begins where the caller resets the row:

- DISABLED: rows are reset through ``reset(options={"reset_mask": mask})``;
- SAME_STEP: the simulator resets within the step. The last observation is ``info["final_obs"]``; the first one of the
next
  episode, which the step returned, waits until the caller resets the row;
- NEXT_STEP: rows are reset by mask (:mod:`rl_envs.gym.row_resets`) before the simulator would spend a step on it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core import Columns, RowProgram
from rl_core.errors import EnvError
from rl_envs.gym.library import gymnasium
from rl_envs.gym.results import wrong_step
from rl_envs.gym.row_resets import reset_rows_of, row_reset_of
from rl_envs.gym.rows import Part, action_reader, bind_parts, check_rows, observation_writer, reach
from rl_envs.gym.single import not_running

if TYPE_CHECKING:
    from rl_envs.gym.env import GymWrapper

__all__ = ["VectorProgram", "autoreset_mode", "lost_value", "vector_program"]

AutoresetMode = gymnasium.vector.AutoresetMode


def autoreset_mode(env: Any) -> Any:
    """The declared autoreset mode of a vector environment.

    Raises:
        EnvError: none is declared, or NEXT_STEP where rows cannot be reset by mask (dummy transitions would result).
    """
    declared = env.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(declared)
    except ValueError:
        raise EnvError(
            f"{env} declares no autoreset mode (metadata['autoreset_mode'] is {declared!r}), so it cannot be known "
            "which observations belong to which episode. Set it to what the environment does: "
            "env.metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.DISABLED (or SAME_STEP, NEXT_STEP)"
        ) from None
    if mode == AutoresetMode.NEXT_STEP and row_reset_of(env) is None:
        raise EnvError(
            f"{env} has the autoreset mode NEXT_STEP and cannot reset single rows, so every episode would begin with "
            "a dummy step. Use AutoresetMode.SAME_STEP or DISABLED if it offers them, or build it of single "
            "environments: GymEnv(id, num_envs=N), or gymnasium.vector.SyncVectorEnv(env_fns, "
            "autoreset_mode='Disabled'); or say how its rows are reset: rl_envs.register_row_reset("
            f"{type(env.unwrapped).__name__}, function)"
        )
    return mode


def vector_program(sim: GymWrapper, columns: Columns) -> RowProgram:
    """Bind a vector environment to columns."""
    program = VectorProgram(sim, columns)
    return RowProgram(program.step, program.reset)


class VectorProgram:
    """What :func:`vector_program` binds.

    The state of the rows themselves (running, waiting first observations) lies in the environment object.
    """

    def __init__(self, sim: GymWrapper, columns: Columns) -> None:
        self.sim, self.env = sim, sim.simulator
        self.parts = bind_parts(sim.observation_leaves, columns, batched=True)
        self.write = observation_writer(self.parts)
        self.read = action_reader(sim.gym_action_space, sim.action_leaves, columns, batched=True)
        self.reward = columns["reward"] if sim.reward_shape else columns["reward"][..., 0]
        self.terminated, self.truncated = columns["terminated"][..., 0], columns["truncated"][..., 0]
        self.pixels = columns["pixels"] if sim.from_pixels else None
        self.same_step = sim.autoreset_mode == AutoresetMode.SAME_STEP
        self.row_reset = row_reset_of(self.env)
        self.info = sim.vector_info(columns)
        self.kept = [part.array for part in self.parts] + (self.info.arrays if self.info is not None else [])
        self.one_row = columns.n_steps == 1
        self.fresh = True

    # ---------------------------------------------------------------- step
    def step(self, t: int) -> None:
        """Step every environment of the batch."""
        running = self.sim.running
        if not running.all():
            self._step_past_ends(t)
            return
        self._step(t)

    def _step(self, t: int) -> None:
        result = self.env.step(self.read(t))
        try:
            observation, gain, ended, cut, info = result
        except (TypeError, ValueError) as error:
            raise wrong_step(self.sim.name, result) from error
        if self.fresh:
            check_rows(self.sim.name, self.parts, observation)
            self._check_gain(gain)
            self.fresh = False
        self.write(t + 1, observation)
        if self.info is not None:
            self.info.write(t + 1, info)
        self.reward[t] = gain
        self.terminated[t + 1] = ended
        self.truncated[t + 1] = cut
        over = np.logical_or(ended, cut)
        if over.any():
            self.sim.running[over] = False
            if self.same_step:
                self._take_final(t + 1, over, info)
        if self.pixels is not None:
            self.pixels[t + 1] = self.env.render()

    def _check_gain(self, gain: Any) -> None:
        expected = (self.sim.batch_size[0], *self.sim.reward_shape)
        if np.shape(gain) != expected:
            raise EnvError(
                f"{self.sim.name} gave rewards of shape {np.shape(gain)}; {expected} is expected: one number for each "
                "environment, unless it has a reward_space. Combine their parts in a "
                "gymnasium.vector.VectorRewardWrapper"
            )

    def _take_final(self, t: int, over: np.ndarray, info: dict[str, Any]) -> None:
        """SAME_STEP: keep the first observations of the next episodes, write the last ones of those that ended."""
        final = info.get("final_obs")
        if final is None and self.sim.missing_obs_value is None:
            raise EnvError(
                f"{self.sim.name} has the autoreset mode SAME_STEP but its info has no 'final_obs' at the end of an "
                f"episode (it has {', '.join(map(repr, info)) or 'nothing'}), so last observations are lost. Write "
                "it, use the mode DISABLED, or say what to write in their place (missing_obs_value=float('nan'))"
            )
        waiting = self.sim.waiting
        for row in np.flatnonzero(over).tolist():
            waiting[row] = [array[t, row : row + 1].copy() for array in self.kept]
            for part, encode in zip(self.parts, self.sim.encoders, strict=True):
                if final is None:
                    part.array[t, row] = lost_value(part.array.dtype, self.sim.missing_obs_value)
                    continue
                native = _final_of(final, part, row)
                part.array[t, row] = native if encode is None else encode(native)
            if self.info is not None:
                self.info.write_final(t, info, row)

    def _step_past_ends(self, t: int) -> None:
        """Rows that ended and were not reset keep their last values (end flags set, reward 0) while the others step."""
        sim = self.sim
        if not self.one_row or not sim.was_reset:
            raise not_running(sim)
        held = ~sim.running
        kept = [array[t + 1][held] for array in self.kept]
        flags = self.terminated[t + 1][held], self.truncated[t + 1][held]
        if sim.autoreset_mode == AutoresetMode.DISABLED:
            self.env.reset(options={"reset_mask": held})
        sim.waiting.clear()  # the simulator goes on in the episodes that waited: they cannot be entered any more
        self._step(t)
        for array, values in zip(self.kept, kept, strict=True):
            array[t + 1][held] = values
        self.reward[t][held] = 0.0
        self.terminated[t + 1][held], self.truncated[t + 1][held] = flags
        sim.running[held] = False
        for row in np.flatnonzero(held).tolist():
            sim.waiting.pop(row, None)

    # ---------------------------------------------------------------- reset
    def reset(self, t: int, mask: np.ndarray | None) -> None:
        """Begin episodes in some rows, or in all of them."""
        sim = self.sim
        rows = np.ones(sim.batch_size[0], dtype=bool) if mask is None else mask.copy()
        if not rows.any():
            return
        chosen = np.flatnonzero(rows).tolist()
        seeds, options = sim.next_seeds(chosen), sim.next_options()
        forced = options is not None or any(seeds[row] is not None for row in chosen)
        for row in chosen:
            first = sim.waiting.pop(row, None)
            if first is not None and not forced:
                for array, value in zip(self.kept, first, strict=True):
                    array[t, row : row + 1] = value
                rows[row] = False
        if rows.any():
            self._reset_rows(t, rows, seeds, options)
        sim.running[chosen] = True
        if self.pixels is not None:
            frames = np.stack(self.env.render())
            self.pixels[t][chosen] = frames[chosen]

    def _reset_rows(self, t: int, rows: np.ndarray, seeds: list[int | None], options: dict[str, Any] | None) -> None:
        observation, info = reset_rows_of(self.sim, self.row_reset, rows, seeds, options)
        every = np.count_nonzero(rows) == len(rows)
        if every:
            check_rows(self.sim.name, self.parts, observation)
            self.write(t, observation)
        else:
            for part in self.parts:
                part.array[t][rows] = np.asarray(part.value(observation))[rows]
        if self.info is not None:
            self.info.write(t, info, None if every else rows)


def lost_value(dtype: np.dtype, value: float | None) -> Any:
    """What stands for a lost observation: the value, of integers -1 (unsigned: the largest) if it is NaN, False."""
    if dtype.kind == "f":
        return value
    if dtype.kind not in "iu":
        return False if dtype.kind == "b" else None
    if value is not None and not math.isnan(value):
        return int(value)
    return np.iinfo(dtype).max if dtype.kind == "u" else -1


def _final_of(final: Any, part: Part, row: int) -> Any:
    """One environment's last observation of a leaf, from an array of observations or an observation of arrays."""
    if isinstance(final, dict):
        return reach(final, part.path)[row]
    return reach(final[row], part.path)
