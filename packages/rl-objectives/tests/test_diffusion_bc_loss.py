"""DiffusionBCLoss against algorithm 1 of Ho et al., 2020, in float64."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core.errors import LossError, SpecError
from rl_objectives import DiffusionBCLoss
from rl_objectives.functional.diffusion import noised


class Actor(nn.Module):
    in_keys, out_keys = ("observation",), ("action",)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("alpha_bar", torch.tensor([0.9, 0.5, 0.1]))

    def predict_noise(self, noisy, step, observation):
        wide = observation.reshape(observation.shape[0], *(1,) * (noisy.ndim - 2), -1).expand(*noisy.shape[:-1], 3)
        time = step.reshape(step.shape + (1,) * (noisy.ndim - step.ndim)).expand(*noisy.shape[:-1], 1)
        return self.layer(torch.cat([noisy, time.to(noisy), wide], -1))


def make_batch(*chunk):
    torch.manual_seed(0)
    data = {"observation": torch.randn(8, 3), "action": torch.randn(8, *chunk, 2)}
    return TensorDict(data, [8]).double()


def expected_errors(actor, batch):
    torch.manual_seed(5)
    step = torch.randint(3, (8,))
    noise = torch.randn_like(batch["action"])
    rows = []
    for row in range(8):
        share = actor.alpha_bar[step[row]]
        noisy = share**0.5 * batch["action"][row] + (1 - share) ** 0.5 * noise[row]
        guess = actor.predict_noise(noisy[None], step[row, None], batch["observation"][row, None])[0]
        rows.append((guess - noise[row]) ** 2)
    return torch.stack(rows)


def test_the_noise_of_a_random_step_is_to_be_seen():
    actor, batch = Actor().double(), make_batch()
    loss = DiffusionBCLoss(actor)
    expected = expected_errors(actor, batch).mean()
    torch.manual_seed(5)
    out = loss(batch)["loss_diffusion_bc"]
    torch.testing.assert_close(out, expected)
    found, wanted = (torch.autograd.grad(value, list(actor.parameters())) for value in (out, expected))
    torch.testing.assert_close(found, wanted)


def test_padded_actions_of_a_chunk_do_not_count():
    actor, batch = Actor().double(), make_batch(4)
    batch["pad_mask"] = torch.arange(4).expand(8, 4) >= torch.arange(8).unsqueeze(-1) % 4 + 1
    expected = expected_errors(actor, batch).mean(-1)[~batch["pad_mask"]].mean()
    torch.manual_seed(5)
    torch.testing.assert_close(DiffusionBCLoss(actor)(batch)["loss_diffusion_bc"], expected)
    batch["pad_mask"] = batch["pad_mask"][:, :3]
    with pytest.raises(LossError, match='"pad_mask" is bool with the leading shape'):
        DiffusionBCLoss(actor)(batch)


def test_the_loss_falls_in_training():
    actor, batch = Actor().double(), make_batch()
    loss, optimizer = DiffusionBCLoss(actor), torch.optim.Adam(actor.parameters(), lr=0.02)
    values = []
    for _ in range(150):
        value = loss(batch)["loss_diffusion_bc"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sum(values[-30:]) < 0.7 * sum(values[:30])


def test_another_policy_is_refused():
    with pytest.raises(SpecError, match="needs an actor_network with in_keys, alpha_bar and predict_noise"):
        DiffusionBCLoss(nn.Linear(3, 2))


def test_noise_takes_the_place_of_the_action():
    found = noised(torch.ones(2, 1), torch.full((2, 1), 3.0), torch.tensor([1.0, 0.0]))
    assert found.squeeze(-1).tolist() == [1.0, 3.0]
