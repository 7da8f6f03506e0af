"""The simulator alone: VMAS steps with actions drawn before, nothing kept; no collector can be faster."""

from __future__ import annotations

from collections.abc import Callable

import torch
import vmas


def build(n_envs: int, n_agents: int, steps: int) -> Callable[[], None]:
    """One repetition makes ``steps`` steps of ``n_envs`` environments, an episode of each."""
    env = vmas.make_env(
        "navigation", num_envs=n_envs, max_steps=steps, n_agents=n_agents, seed=0, terminated_truncated=True
    )
    actions = list(torch.rand(n_agents, n_envs, 2) * 2 - 1)

    def step_through() -> None:
        env.reset()
        for _ in range(steps):
            env.step(actions)

    return step_through
