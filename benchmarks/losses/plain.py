"""The losses written by hand in torch: the formula alone, without logs, priorities or checks; forward and backward."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from _data import ACTION, GAMMA, OBSERVATION, continuous, discrete, mlp, on_policy
from torch import Tensor, nn


def build(loss: str, hidden: int) -> Callable[[], object]:
    """One repetition is the loss of 256 rows and its gradients."""
    compute, parameters = {"dqn": dqn, "ppo": ppo, "sac": sac, "td3": td3}[loss](hidden)

    def work() -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        value = compute()
        value.backward()
        return value

    return work


def dqn(hidden: int) -> tuple[Callable[[], Tensor], list[nn.Parameter]]:
    """Eq. 2 of Mnih et al., 2013, with a target network."""
    data = discrete()
    observation, action, following = data["observation"], data["action"], data["next", "observation"]
    reward, terminated = data["next", "reward"], data["next", "terminated"]
    network = mlp(OBSERVATION, hidden, ACTION)
    target = copy.deepcopy(network)

    def compute() -> Tensor:
        with torch.no_grad():
            wanted = reward + GAMMA * target(following).amax(-1, True) * ~terminated
        return F.mse_loss(network(observation).gather(-1, action), wanted)

    return compute, list(network.parameters())


def normal(output: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and scale, as ``NormalParamExtractor`` makes them."""
    loc, scale = output.chunk(2, -1)
    return loc, F.softplus(scale + 0.5411) + 0.01


def ppo(hidden: int) -> tuple[Callable[[], Tensor], list[nn.Parameter]]:
    """Eq. 7 and 9 of Schulman et al., 2017."""
    data = on_policy()
    observation, action, old = data["observation"], data["action"], data["action_log_prob"]
    advantage, value_target = data["advantage"].squeeze(-1), data["value_target"]
    actor, critic = mlp(OBSERVATION, hidden, 2 * ACTION, nn.Tanh), mlp(OBSERVATION, hidden, 1, nn.Tanh)

    def compute() -> Tensor:
        loc, scale = normal(actor(observation))
        log_scale = scale.log()
        log_prob = (-0.5 * ((action - loc) / scale) ** 2 - log_scale - 0.5 * math.log(2 * math.pi)).sum(-1)
        ratio = (log_prob - old).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        entropy = (0.5 + 0.5 * math.log(2 * math.pi) + log_scale).sum(-1)
        return F.smooth_l1_loss(critic(observation), value_target) - gain.mean() - 0.01 * entropy.mean()

    return compute, [*actor.parameters(), *critic.parameters()]


def sac(hidden: int) -> tuple[Callable[[], Tensor], list[nn.Parameter]]:
    """Eq. 5, 7 and 18 of Haarnoja et al., 2018."""
    data = continuous()
    observation, action, following = data["observation"], data["action"], data["next", "observation"]
    reward, terminated = data["next", "reward"], data["next", "terminated"]
    actor = mlp(OBSERVATION, hidden, 2 * ACTION)
    critics = nn.ModuleList([mlp(OBSERVATION + ACTION, hidden, 1) for _ in range(2)])
    targets = copy.deepcopy(critics)
    log_alpha = nn.Parameter(torch.zeros(()))

    def draw(output: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = normal(output)
        noise = torch.randn_like(loc)
        raw = loc + scale * noise
        density = -0.5 * noise**2 - scale.log() - 0.5 * math.log(2 * math.pi)
        return raw.tanh(), (density - 2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(-1, True)

    def compute() -> Tensor:
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = draw(actor(following))
            joined = torch.cat([following, next_action], -1)
            best = torch.min(targets[0](joined), targets[1](joined)) - alpha * next_log_prob
            wanted = reward + GAMMA * best * ~terminated
        joined = torch.cat([observation, action], -1)
        loss = F.smooth_l1_loss(critics[0](joined), wanted) + F.smooth_l1_loss(critics[1](joined), wanted)
        drawn, log_prob = draw(actor(observation))
        joined = torch.cat([observation, drawn], -1)
        critics.requires_grad_(False)
        value = torch.min(critics[0](joined), critics[1](joined))
        critics.requires_grad_(True)
        temperature = -(log_alpha * (log_prob.detach() - ACTION)).mean()
        return loss + (alpha * log_prob - value).mean() + temperature

    return compute, [*actor.parameters(), *critics.parameters(), log_alpha]


def td3(hidden: int) -> tuple[Callable[[], Tensor], list[nn.Parameter]]:
    """Algorithm 1 of Fujimoto et al., 2018."""
    data = continuous()
    observation, action, following = data["observation"], data["action"], data["next", "observation"]
    reward, terminated = data["next", "reward"], data["next", "terminated"]
    actor = nn.Sequential(*mlp(OBSERVATION, hidden, ACTION), nn.Tanh())
    critics = nn.ModuleList([mlp(OBSERVATION + ACTION, hidden, 1) for _ in range(2)])
    actor_target, targets = copy.deepcopy(actor), copy.deepcopy(critics)

    def compute() -> Tensor:
        with torch.no_grad():
            noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
            next_action = (actor_target(following) + noise).clamp(-1, 1)
            joined = torch.cat([following, next_action], -1)
            wanted = reward + GAMMA * torch.min(targets[0](joined), targets[1](joined)) * ~terminated
        joined = torch.cat([observation, action], -1)
        loss = F.smooth_l1_loss(critics[0](joined), wanted) + F.smooth_l1_loss(critics[1](joined), wanted)
        critics.requires_grad_(False)
        value = critics[0](torch.cat([observation, actor(observation)], -1))
        critics.requires_grad_(True)
        return loss - value.mean()

    return compute, [*actor.parameters(), *critics.parameters()]
