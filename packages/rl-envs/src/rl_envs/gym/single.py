"""One gymnasium environment on rows: what a step costs beside the simulator is measured in hundreds of nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core import Columns, RowProgram
from rl_core.errors import EnvError
from rl_envs.gym.replay import Replay
from rl_envs.gym.results import wrong_reset, wrong_step
from rl_envs.gym.rows import action_reader, bind_parts, check_rows, item_rows, observation_writer

if TYPE_CHECKING:
    from rl_envs.gym.env import GymWrapper
    from rl_envs.gym.info_env import InfoReading

__all__ = ["bind_replay", "check_reward", "not_running", "reward_rows", "scalar_reward", "single_program"]


def single_program(sim: GymWrapper, columns: Columns) -> RowProgram:
    """Bind one environment to its columns."""
    step_env, reset_env = sim.simulator.step, sim.simulator.reset
    parts = bind_parts(sim.observation_leaves, columns)
    read = action_reader(sim.gym_action_space, sim.action_leaves, columns)
    write = _with_pixels(sim, columns, observation_writer(parts))
    terminated, truncated = item_rows(columns["terminated"]), item_rows(columns["truncated"])
    reward = reward_rows(sim, columns)
    running, name = sim.running, sim.name
    replay, seen, record = bind_replay(sim, columns)
    write_info = sim.info_writer(columns)
    fresh, unseen, to_number = True, True, None

    def step(t: int) -> None:
        nonlocal fresh, to_number
        if not running[0]:
            raise not_running(sim)
        record(t)
        result = step_env(read(t))
        try:
            observation, gain, ended, cut, info = result
        except (TypeError, ValueError) as error:
            raise wrong_step(name, result) from error
        seen[0] = observation
        if fresh:
            check_rows(name, parts, observation)
            to_number = check_reward(name, gain, sim.reward_shape)
            fresh = False
        write(t + 1, observation)
        if write_info is not None:
            write_info(t + 1, info)
        reward[t] = gain if to_number is None else to_number(gain)
        terminated[t + 1] = ended
        truncated[t + 1] = cut
        if ended or cut:
            running[0] = False
            replay.end(0)

    def reset(t: int, mask: np.ndarray | None) -> None:
        nonlocal unseen
        if mask is not None and not mask.any():
            return
        seed, options = sim.next_seeds()[0], sim.next_options()
        replay.begin(0, seed, options)
        result = reset_env(seed=seed, options=options)
        try:
            observation, info = result
        except (TypeError, ValueError) as error:
            raise wrong_reset(name, result) from error
        seen[0] = observation
        if unseen:
            check_rows(name, parts, observation)
            unseen = False
        write(t, observation)
        if write_info is not None:
            write_info(t, info)
        running[0] = True

    return RowProgram(step, reset)


def bind_replay(sim: GymWrapper, columns: Columns) -> tuple[Replay, list[Any], Callable[[int], None]]:
    """The record of the present episodes, the last observations in it, and what adds an action row to it."""
    replay = sim.replay
    assert replay is not None
    return replay, replay.seen, replay.recorder([columns[leaf.key] for leaf in sim.action_leaves])


def _with_pixels(sim: GymWrapper, columns: Columns, write: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    """Also write the rendered frame."""
    if not sim.from_pixels:
        return write
    pixels, render = columns["pixels"], sim.simulator.render

    def write_both(t: int, observation: Any) -> None:
        write(t, observation)
        pixels[t] = render()

    return write_both


def not_running(sim: InfoReading) -> EnvError:
    """The error of a step outside an episode."""
    if not sim.was_reset:
        return EnvError(f"{sim.name} was stepped before its first reset; start with td = env.reset()")
    return EnvError(
        f"{sim.name} was stepped after its episode ended; reset first: td = env.maybe_reset(td), or let "
        "env.step_and_maybe_reset(td) and env.rollout(n, break_when_any_done=False) do it"
    )


def reward_rows(sim: GymWrapper, columns: Columns) -> Any:
    """Where rewards are written: numbers, or the rows of vectors where the environment has a ``reward_space``."""
    return columns["reward"] if sim.reward_shape else item_rows(columns["reward"])


def check_reward(name: str, gain: Any, shape: tuple[int, ...] = ()) -> Callable[[Any], float] | None:
    """How a reward becomes one number: None where numpy and Python do it alone.

    Raises:
        EnvError: the reward is not one number, or not a vector of the shape of the environment's reward space.
    """
    if shape:
        if np.shape(gain) != shape:
            raise EnvError(f"{name} gave a reward of shape {np.shape(gain)}; its reward_space says {shape}")
        return None
    if not np.ndim(gain):
        return None
    if np.size(gain) != 1:
        raise EnvError(
            f"{name} gave a reward of shape {np.shape(gain)}; one number is expected. Combine its parts in a "
            "gymnasium.RewardWrapper, or give the environment a reward_space (a Box) to keep them as a vector"
        )
    return scalar_reward


def scalar_reward(gain: Any) -> float:
    """The number in an array of one element."""
    return float(np.asarray(gain).item())
