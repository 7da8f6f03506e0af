"""A gymnasium vector environment on rows: three autoreset modes, one kind of transition.

Whatever the mode, ``("next", observation)`` of an episode's last step is its true last observation, no step is spent
on a reset, and an episode begins where the caller resets the row:

- DISABLED: rows are reset through ``reset(options={"reset_mask": mask})``;
- SAME_STEP: the simulator resets within the step. The last observation is ``info["final_obs"]``; the first one of the
next
  episode, which the step returned, waits until the caller resets the row;
- NEXT_STEP: rows are reset by mask before the simulator would spend a step on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core import Columns, RowProgram
from rl_core.errors import EnvError
from rl_envs.gym.library import gymnasium
from rl_envs.gym.rows import Part, action_reader, bind_parts, check_rows, observation_writer, reach
from rl_envs.gym.single import not_running

if TYPE_CHECKING:
    from rl_envs.gym.env import GymWrapper

__all__ = ["autoreset_mode", "resets_by_mask", "vector_program"]

AutoresetMode = gymnasium.vector.AutoresetMode


def resets_by_mask(env: Any) -> bool:
    """Whether rows of a vector environment can be reset alone, autoreset flags included."""
    inner = env.unwrapped
    if isinstance(inner, gymnasium.vector.AsyncVectorEnv):
        # Without shared memory its workers keep their autoreset flag through a reset (gymnasium 1.1 to 1.4).
        return inner.shared_memory or inner.autoreset_mode != AutoresetMode.NEXT_STEP
    return (
        isinstance(inner, gymnasium.vector.SyncVectorEnv)
        or env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED
    )


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
    if mode == AutoresetMode.NEXT_STEP and not resets_by_mask(env):
        raise EnvError(
            f"{env} has the autoreset mode NEXT_STEP and cannot reset single rows, so every episode would begin with "
            "a dummy step. Use AutoresetMode.SAME_STEP or DISABLED if it offers them, or build it of single "
            "environments: GymEnv(id, num_envs=N), or gymnasium.vector.SyncVectorEnv(env_fns, "
            "autoreset_mode='Disabled')"
        )
    return mode


def vector_program(sim: GymWrapper, columns: Columns) -> RowProgram:
    """Bind a vector environment to columns."""
    program = _VectorProgram(sim, columns)
    return RowProgram(program.step, program.reset)


class _VectorProgram:
    """The state of the rows themselves (running, waiting first observations) lies in the environment object."""

    def __init__(self, sim: GymWrapper, columns: Columns) -> None:
        self.sim, self.env = sim, sim.simulator
        self.parts = bind_parts(sim.observation_leaves, columns, batched=True)
        self.write = observation_writer(self.parts)
        self.read = action_reader(sim.gym_action_space, sim.action_leaves, columns, batched=True)
        self.reward = columns["reward"][..., 0]
        self.terminated, self.truncated = columns["terminated"][..., 0], columns["truncated"][..., 0]
        self.pixels = columns["pixels"] if sim.from_pixels else None
        self.same_step = sim.autoreset_mode == AutoresetMode.SAME_STEP
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
        observation, gain, ended, cut, info = self.env.step(self.read(t))
        if self.fresh:
            check_rows(self.sim.name, self.parts, observation)
            self._check_gain(gain)
            self.fresh = False
        self.write(t + 1, observation)
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
        expected = (self.sim.batch_size[0],)
        if np.shape(gain) != expected:
            raise EnvError(
                f"{self.sim.name} gave rewards of shape {np.shape(gain)}; one number for each environment is expected, "
                f"{expected}. Combine their parts in a gymnasium.vector.VectorRewardWrapper"
            )

    def _take_final(self, t: int, over: np.ndarray, info: dict[str, Any]) -> None:
        """SAME_STEP: keep the first observations of the next episodes, write the last ones of those that ended."""
        final = info.get("final_obs")
        if final is None:
            raise EnvError(
                f"{self.sim.name} has the autoreset mode SAME_STEP but its info has no 'final_obs' at the end of an "
                f"episode (it has {', '.join(map(repr, info)) or 'nothing'}), so last observations are lost. Write "
                "it, or use the mode DISABLED"
            )
        waiting = self.sim.waiting
        for row in np.flatnonzero(over).tolist():
            waiting[row] = [part.array[t, row : row + 1].copy() for part in self.parts]
            for part, encode in zip(self.parts, self.sim.encoders, strict=True):
                native = _final_of(final, part, row)
                part.array[t, row] = native if encode is None else encode(native)

    def _step_past_ends(self, t: int) -> None:
        """Rows that ended and were not reset keep their last values (end flags set, reward 0) while the others step."""
        sim = self.sim
        if not self.one_row or not sim.was_reset:
            raise not_running(sim)
        held = ~sim.running
        kept = [part.array[t + 1][held] for part in self.parts]
        flags = self.terminated[t + 1][held], self.truncated[t + 1][held]
        if sim.autoreset_mode == AutoresetMode.DISABLED:
            self.env.reset(options={"reset_mask": held})
        sim.waiting.clear()  # the simulator goes on in the episodes that waited: they cannot be entered any more
        self._step(t)
        for part, values in zip(self.parts, kept, strict=True):
            part.array[t + 1][held] = values
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
                for part, value in zip(self.parts, first, strict=True):
                    part.array[t, row : row + 1] = value
                rows[row] = False
        if rows.any():
            self._reset_rows(t, rows, seeds if any(seed is not None for seed in seeds) else None, options)
        sim.running[chosen] = True
        if self.pixels is not None:
            frames = np.stack(self.env.render())
            self.pixels[t][chosen] = frames[chosen]

    def _reset_rows(self, t: int, rows: np.ndarray, seeds: Any, options: dict[str, Any] | None) -> None:
        if rows.all():
            observation, _ = self.env.reset(seed=seeds, options=options)
            check_rows(self.sim.name, self.parts, observation)
            self.write(t, observation)
            return
        if not resets_by_mask(self.env):
            raise EnvError(
                f"{self.sim.name} cannot reset the rows {np.flatnonzero(rows).tolist()} alone: it has the autoreset "
                f"mode {self.sim.autoreset_mode.name} and knows no reset mask. Let it end these episodes itself (a "
                "time limit in the environment instead of StepCounter), or use gymnasium.vector.SyncVectorEnv"
            )
        observation, _ = self.env.reset(seed=seeds, options={**(options or {}), "reset_mask": rows.copy()})
        for part in self.parts:
            part.array[t][rows] = np.asarray(part.value(observation))[rows]


def _final_of(final: Any, part: Part, row: int) -> Any:
    """One environment's last observation of a leaf, from an array of observations or an observation of arrays."""
    if isinstance(final, dict):
        return reach(final, part.path)[row]
    return reach(final[row], part.path)
