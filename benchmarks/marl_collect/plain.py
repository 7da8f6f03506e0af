"""The hand-written limit: a loop over VMAS that writes one batch of preallocated tensors, with no library around it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
import vmas
from torch import Tensor, nn


def build(n_envs: int, n_agents: int, steps: int) -> Callable[[], dict[str, Tensor]]:
    """One repetition collects ``steps`` steps of ``n_envs`` environments, an episode of each."""
    env = vmas.make_env(
        "navigation", num_envs=n_envs, max_steps=steps, n_agents=n_agents, seed=0, terminated_truncated=True
    )
    current = torch.stack(env.reset(), 1)
    features = current.shape[-1]
    net = nn.Sequential(nn.Linear(features, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 4))

    @torch.no_grad()
    def collect() -> dict[str, Tensor]:
        nonlocal current
        data = _allocate(steps, n_envs, n_agents, features)
        for t in range(steps):
            data["observation"][t] = current
            action, log_prob, loc, scale = _act(net, current)
            data["action"][t] = action
            data["log_prob"][t] = log_prob
            data["loc"][t] = loc
            data["scale"][t] = scale
            observations, rewards, terminated, truncated, _ = env.step(list(action.unbind(1)))
            current = torch.stack(observations, 1)
            data["next_observation"][t] = current
            torch.stack(rewards, 1, out=data["reward"][t])
            data["terminated"][t] = terminated
            data["truncated"][t] = truncated
            ended = terminated | truncated
            if ended.any():
                current = _reset(env, ended)
        return data

    return collect


def _reset(env: vmas.simulator.environment.Environment, ended: Tensor) -> Tensor:
    if ended.all():
        return torch.stack(env.reset(), 1)
    for row in ended.nonzero().flatten().tolist():
        env.reset_at(row, return_observations=False)
    return torch.stack(env.get_from_scenario(True, False, False, False)[0], 1)


def _act(net: nn.Module, observation: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An action in (-1, 1), tanh of a normal draw, with its log-probability summed over the action's dimensions."""
    loc, raw = net(observation).chunk(2, -1)
    scale = F.softplus(raw + math.log(math.e - 1)).clamp_min(1e-4)  # 1 at raw = 0
    noise = torch.randn_like(loc)
    draw = loc + scale * noise
    log_density = -0.5 * noise.square() - scale.log() - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - draw - F.softplus(-2 * draw))
    return draw.tanh(), (log_density - log_slope).sum(-1), loc, scale


def _allocate(steps: int, n_envs: int, n_agents: int, features: int) -> dict[str, Tensor]:
    rows = (steps, n_envs, n_agents)
    return {
        "observation": torch.empty(*rows, features),
        "next_observation": torch.empty(*rows, features),
        "action": torch.empty(*rows, 2),
        "loc": torch.empty(*rows, 2),
        "scale": torch.empty(*rows, 2),
        "log_prob": torch.empty(rows),
        "reward": torch.empty(rows),
        "terminated": torch.empty(steps, n_envs, dtype=torch.bool),
        "truncated": torch.empty(steps, n_envs, dtype=torch.bool),
    }
