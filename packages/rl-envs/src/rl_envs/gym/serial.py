"""Several environments in one process on the rows of one batch: each is stepped by itself and writes its own row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core import Columns, RowProgram
from rl_envs.gym.library import gymnasium
from rl_envs.gym.results import wrong_reset, wrong_step
from rl_envs.gym.rows import action_reader, bind_parts, check_rows, item_rows, observation_writer
from rl_envs.gym.single import bind_replay, check_reward, not_running, reward_rows

if TYPE_CHECKING:
    from rl_envs.gym.env import GymWrapper

__all__ = ["serial_program"]


def serial_program(sim: GymWrapper, columns: Columns) -> RowProgram:
    """Bind the environments ``sim.simulator.envs`` to the columns of their batch.

    A row whose episode ended and that is stepped again keeps its last values (end flags set, reward 0) until it is
    reset.
    """
    envs = sim.simulator.envs
    steppers = [env.step for env in envs]
    parts = [bind_parts(sim.observation_leaves, columns, index) for index in range(len(envs))]
    writers = [_writer(sim, columns, index, parts[index]) for index in range(len(envs))]
    info_writers = [sim.info_writer(columns, index) for index in range(len(envs))]
    read = batch_reader(sim, columns, len(envs))
    terminated, truncated = item_rows(columns["terminated"]), item_rows(columns["truncated"])
    reward, shape = reward_rows(sim, columns), sim.reward_shape
    replay, seen, record = bind_replay(sim, columns)
    running, name, one_row = sim.running, sim.name, columns.n_steps == 1
    fresh, unseen, to_number = True, True, None

    def step(t: int) -> None:
        nonlocal fresh, to_number
        after = t + 1
        record(t)
        for index, action in enumerate(read(t)):
            if not running[index]:
                if not one_row or not sim.was_reset:
                    raise not_running(sim)
                reward[t, index] = 0.0  # the other rows of this column still hold the end of the episode
                continue
            result = steppers[index](action)
            try:
                observation, gain, ended, cut, info = result
            except (TypeError, ValueError) as error:
                raise wrong_step(name, result) from error
            seen[index] = observation
            if fresh:
                check_rows(name, parts[index], observation)
                to_number = to_number or check_reward(name, gain, shape)
            writers[index](after, observation)
            write_info = info_writers[index]
            if write_info is not None:
                write_info(after, info)
            reward[t, index] = gain if to_number is None else to_number(gain)
            terminated[after, index] = ended
            truncated[after, index] = cut
            if ended or cut:
                running[index] = False
                replay.end(index)
        fresh = False

    def reset(t: int, mask: np.ndarray | None) -> None:
        nonlocal unseen
        chosen = range(len(envs)) if mask is None else np.flatnonzero(mask).tolist()
        seeds, options = sim.next_seeds(chosen), sim.next_options()
        for index in chosen:
            replay.begin(index, seeds[index], options)
            result = envs[index].reset(seed=seeds[index], options=options)
            try:
                observation, info = result
            except (TypeError, ValueError) as error:
                raise wrong_reset(name, result) from error
            seen[index] = observation
            if unseen:
                check_rows(name, parts[index], observation)
            writers[index](t, observation)
            write_info = info_writers[index]
            if write_info is not None:
                write_info(t, info)
            running[index] = True
        unseen = False

    return RowProgram(step, reset)


def _writer(sim: GymWrapper, columns: Columns, index: int, parts: Sequence[Any]) -> Callable[[int, Any], None]:
    write = observation_writer(parts)
    if not sim.from_pixels:
        return write
    pixels, render = columns["pixels"][:, index], sim.simulator.envs[index].render

    def write_both(t: int, observation: Any) -> None:
        write(t, observation)
        pixels[t] = render()

    return write_both


def batch_reader(sim: GymWrapper, columns: Columns, count: int) -> Callable[[int], Sequence[Any]]:
    """``read(t)`` gives one native action for each environment; single leaves are converted for all of them at once."""
    if len(sim.action_leaves) == 1 and not sim.action_leaves[0].path:
        leaf = sim.action_leaves[0]
        array = columns[leaf.key]
        if array.dtype != object:
            decode = leaf.decoder(batched=True)
            if isinstance(leaf.space, gymnasium.spaces.Discrete):
                return lambda t: decode(array[t]).tolist()
            return lambda t: list(decode(array[t]))
    readers = [action_reader(sim.gym_action_space, sim.action_leaves, columns, index) for index in range(count)]
    return lambda t: [read(t) for read in readers]
