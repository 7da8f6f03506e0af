"""Stable-Baselines3: ``ReplayBuffer``, which gives torch tensors of observations, actions, rewards and dones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from _rows import rows
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer


def build(task: str, kind: str = "state", capacity: int = 10**6, batch: int = 256) -> Callable[[], object]:
    """One repetition of a task."""
    data = rows(kind, capacity)
    if kind == "state":
        observation, action = spaces.Box(-np.inf, np.inf, (17,)), spaces.Box(-1, 1, (6,))
    else:
        observation, action = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4)
    buffer = ReplayBuffer(capacity, observation, action, device="cpu", handle_timeout_termination=True)
    buffer.observations[:, 0], buffer.next_observations[:, 0] = data["obs"], data["next_obs"]
    buffer.actions[:, 0], buffer.rewards[:] = data["act"], data["reward"]
    buffer.dones[:] = data["done"]
    buffer.full = True
    if task == "sample":
        return lambda: buffer.sample(batch)
    obs, following, act, reward, done = (data[name][:1] for name in ("obs", "next_obs", "act", "reward", "done"))
    return lambda: buffer.add(obs, following, act, reward[:, 0], done[:, 0], [{}])
