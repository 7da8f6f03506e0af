"""rl-collectors: Collector over VmasEnv with the actor that rl-marl builds for its group."""

from __future__ import annotations

from collections.abc import Callable

from rl_collectors import Collector
from rl_marl import VmasEnv, build_group_actor


def build(n_envs: int, n_agents: int, steps: int) -> Callable[[], object]:
    """One repetition collects ``steps`` steps of ``n_envs`` environments, an episode of each."""
    env = VmasEnv("navigation", num_envs=n_envs, max_steps=steps, n_agents=n_agents, seed=0)
    policy = build_group_actor(env, "agents", num_cells=(256, 256))
    policy(env.reset())  # the first call finds the number of inputs
    batches = iter(Collector(env, policy, frames_per_batch=steps * n_envs, total_frames=-1))
    return lambda: next(batches)
