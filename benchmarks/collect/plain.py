"""The hand-written limit: a gymnasium loop that writes one batch of preallocated tensors, with no library around it."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn


def build(n_envs: int, steps: int) -> Callable[[], dict[str, Tensor]]:
    """One repetition collects ``steps`` steps of ``n_envs`` environments."""
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    return _single(policy, steps) if n_envs == 1 else _vector(policy, n_envs, steps)


def _allocate(steps: int, *batch: int) -> dict[str, Tensor]:
    shape = (steps, *batch)
    return {
        "observation": torch.empty(*shape, 4),
        "next_observation": torch.empty(*shape, 4),
        "action": torch.empty(shape, dtype=torch.int64),
        "log_prob": torch.empty(shape),
        "reward": torch.empty(shape),
        "terminated": torch.empty(shape, dtype=torch.bool),
        "truncated": torch.empty(shape, dtype=torch.bool),
    }


def _act(policy: nn.Module, observation: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = policy(observation).log_softmax(-1)
    action = torch.multinomial(log_probs.exp(), 1)
    return action.squeeze(-1), log_probs.gather(-1, action).squeeze(-1)


def _single(policy: nn.Module, steps: int) -> Callable[[], dict[str, Tensor]]:
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    current, _ = env.reset(seed=0)

    @torch.no_grad()
    def collect() -> dict[str, Tensor]:
        nonlocal current
        data = _allocate(steps)
        rewards, terminateds, truncateds = [], [], []
        for t in range(steps):
            observation = torch.from_numpy(current)
            action, log_prob = _act(policy, observation.unsqueeze(0))
            data["observation"][t] = observation
            data["action"][t] = action[0]
            data["log_prob"][t] = log_prob[0]
            current, reward, terminated, truncated, _ = env.step(action.item())
            data["next_observation"][t] = torch.from_numpy(current)
            rewards.append(reward)
            terminateds.append(terminated)
            truncateds.append(truncated)
            if terminated or truncated:
                current, _ = env.reset()
        data["reward"].copy_(torch.tensor(rewards))
        data["terminated"].copy_(torch.tensor(terminateds))
        data["truncated"].copy_(torch.tensor(truncateds))
        return data

    return collect


def _vector(policy: nn.Module, n_envs: int, steps: int) -> Callable[[], dict[str, Tensor]]:
    makers = [lambda: gymnasium.make("CartPole-v1", disable_env_checker=True)] * n_envs
    env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    current, _ = env.reset(seed=0)

    @torch.no_grad()
    def collect() -> dict[str, Tensor]:
        nonlocal current
        data = _allocate(steps, n_envs)
        for t in range(steps):
            observation = data["observation"][t].copy_(torch.from_numpy(current))
            action, log_prob = _act(policy, observation)
            data["action"][t] = action
            data["log_prob"][t] = log_prob
            current, reward, terminated, truncated, info = env.step(action.numpy())
            following = data["next_observation"][t].copy_(torch.from_numpy(current))
            if "final_obs" in info:  # SAME_STEP: `current` is already reset there, the true last observation is here
                for row in np.flatnonzero(info["_final_obs"]):
                    following[row] = torch.from_numpy(info["final_obs"][row])
            data["reward"][t] = torch.from_numpy(reward)
            data["terminated"][t] = torch.from_numpy(terminated)
            data["truncated"][t] = torch.from_numpy(truncated)
        return data

    return collect
