"""DiffusionActor against the papers' equations, written step by step in float64."""

import math

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import ExplorationType, set_exploration_type
from rl_core.errors import PolicyError, SpecError
from rl_modules import DiffusionActor

K = 5


class Noise(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.layer, self.steps = nn.Linear(width + 1 + 3, width).double(), []

    def forward(self, action, step, observation):
        self.steps.append(step)
        return self.layer(torch.cat([action, step.unsqueeze(-1) / K, observation], -1))


def reference_schedule():
    """Eq. 17 of Nichol and Dhariwal: f(k) / f(0), betas at most 0.999."""
    level = [math.cos((k / K + 0.008) / 1.008 * math.pi / 2) ** 2 for k in range(K + 1)]
    betas = [min(1 - level[k + 1] / level[k], 0.999) for k in range(K)]
    bars = [math.prod(1 - beta for beta in betas[: k + 1]) for k in range(K)]
    return torch.tensor(betas, dtype=torch.float64), torch.tensor(bars, dtype=torch.float64)


@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("drawn", [True, False])
def test_each_step_is_that_of_the_paper(clip, drawn):
    network = Noise()
    actor = DiffusionActor(network, action_shape=(2,), num_steps=K, clip=clip).double()
    beta, bar = reference_schedule()
    actor.alpha_bar.copy_(bar)  # made in the default dtype, which is less exact
    observation = torch.randn(4, 3, dtype=torch.float64)
    torch.manual_seed(1)
    with set_exploration_type(ExplorationType.RANDOM if drawn else ExplorationType.DETERMINISTIC):
        found = actor(TensorDict({"observation": observation}, [4]))["action"]
    torch.manual_seed(1)
    x = torch.randn(4, 2, dtype=torch.float64) * drawn
    for k in range(K - 1, -1, -1):
        noise = network(x, torch.full((4,), k), observation)
        clean = (x - (1 - bar[k]).sqrt() * noise) / bar[k].sqrt()
        clean = clean if clip is None else clean.clamp(-clip, clip)
        before = bar[k - 1] if k else torch.tensor(1.0, dtype=torch.float64)
        mean = before.sqrt() * beta[k] / (1 - bar[k]) * clean
        mean = mean + (1 - beta[k]).sqrt() * (1 - before) / (1 - bar[k]) * x
        sigma = ((1 - before) / (1 - bar[k]) * beta[k]).sqrt()
        x = mean + (sigma * torch.randn(4, 2, dtype=torch.float64) if drawn and k else 0)
    torch.testing.assert_close(found, x)


def test_the_schedule_is_the_squared_cosine():
    actor = DiffusionActor(Noise(), action_shape=(2,), num_steps=K)
    torch.testing.assert_close(actor.alpha_bar.double(), reference_schedule()[1], rtol=1e-6, atol=1e-6)


def test_chunks_of_actions_are_made_together():
    class Still(nn.Module):
        def forward(self, action, step, pixels):
            assert step.shape == action.shape[:-2] and pixels.shape[1:] == (3, 4, 4)
            return torch.zeros_like(action)

    actor = DiffusionActor(Still(), action_shape=(6, 2), num_steps=3, in_keys=["pixels"], observation_dims=3)
    assert actor(torch.zeros(5, 3, 4, 4)).shape == (5, 6, 2)


def test_wrong_options_and_networks_are_refused():
    with pytest.raises(SpecError, match="num_steps >= 1"):
        DiffusionActor(Noise(), action_shape=(2,), num_steps=0)

    class Wrong(nn.Module):
        def forward(self, action, step, observation):
            return action[..., :1]

    with pytest.raises(PolicyError, match=r"must return the noise in an action \[4, 2\]; got \[4, 1\]"):
        DiffusionActor(Wrong(), action_shape=(2,), num_steps=2)(torch.zeros(4, 3))
