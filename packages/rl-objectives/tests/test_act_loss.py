"""ACTLoss against algorithm 1 of Zhao et al., 2023, in float64."""

import pytest
import torch
from tensordict import TensorDict
from torch import nn
from torch.distributions import Normal, kl_divergence

from rl_core.errors import LossError, SpecError
from rl_objectives import ACTLoss
from rl_objectives.functional.variational import kl_from_standard_normal

ROWS, CHUNK, ACTION, STYLE = 6, 4, 2, 3


class Actor(nn.Module):
    in_keys, out_keys = ("observation",), ("action",)

    def __init__(self):
        super().__init__()
        self.reader, self.writer = nn.Linear(CHUNK * ACTION + 3, 2 * STYLE), nn.Linear(STYLE + 3, CHUNK * ACTION)

    def encode(self, action, padding, observation):
        if padding is not None:
            action = torch.where(padding.unsqueeze(-1), 0.5, action)
        return self.reader(torch.cat([action.flatten(1), observation], -1)).chunk(2, -1)

    def decode(self, latent, observation):
        return self.writer(torch.cat([latent, observation], -1)).unflatten(-1, (CHUNK, ACTION))


def make_batch():
    torch.manual_seed(0)
    data = {"observation": torch.randn(ROWS, 3), "action": torch.randn(ROWS, CHUNK, ACTION)}
    return TensorDict(data, [ROWS]).double()


def expected_parts(actor, batch, stored):
    """The distance and the divergence of each row, with the actions of a chunk that are stored."""
    torch.manual_seed(5)
    noise = torch.randn(ROWS, STYLE, dtype=torch.float64)
    distances, divergences = [], []
    for row in range(ROWS):
        seen, action = batch["observation"][row, None], batch["action"][row, None]
        padding = torch.arange(CHUNK)[None] >= stored[row]
        mean, log_variance = (part[0] for part in actor.encode(action, padding, seen))
        sigma = log_variance.exp().sqrt()
        chunk = actor.decode((mean + sigma * noise[row])[None], seen)[0]
        total = sum((chunk[t, a] - action[0, t, a]).abs() for t in range(stored[row]) for a in range(ACTION))
        distances.append(total / (CHUNK * ACTION))
        prior = Normal(torch.zeros_like(mean), torch.ones_like(sigma))
        divergences.append(kl_divergence(Normal(mean, sigma), prior).sum())
    return torch.stack(distances), torch.stack(divergences)


def drawn(loss, batch):
    torch.manual_seed(5)
    return loss(batch)


@pytest.mark.parametrize("padded", [False, True])
def test_it_is_the_distance_and_the_divergence(padded):
    actor, batch = Actor().double(), make_batch()
    stored = [1, 4, 2, 4, 3, 1] if padded else [CHUNK] * ROWS
    if padded:
        batch["pad_mask"] = torch.arange(CHUNK) >= torch.tensor(stored).unsqueeze(-1)
        batch["action"][batch["pad_mask"]] = float("nan")
        clean = batch.clone()
        clean["action"] = batch["action"].nan_to_num(0.0)
    distance, divergence = expected_parts(actor, clean if padded else batch, stored)
    expected = (distance + 7.0 * divergence).mean()
    out = drawn(ACTLoss(actor, kl_weight=7.0), batch)
    torch.testing.assert_close(out["loss_act"], expected)
    torch.testing.assert_close(out["loss_reconstruction"], distance.mean().detach())
    torch.testing.assert_close(out["loss_kl"], divergence.mean().detach())
    assert not out["loss_reconstruction"].requires_grad and not out["loss_kl"].requires_grad
    found, wanted = (torch.autograd.grad(value, list(actor.parameters())) for value in (out["loss_act"], expected))
    torch.testing.assert_close(found, wanted)


def test_rows_are_weighted_and_masked():
    actor, batch = Actor().double(), make_batch()
    distance, divergence = expected_parts(actor, batch, [CHUNK] * ROWS)
    batch["priority_weight"], batch["counts"] = torch.rand(ROWS, 1).double(), torch.arange(ROWS) % 3 > 0
    loss = ACTLoss(actor, reduction="none")
    loss.set_keys(mask="counts")
    out, counts = drawn(loss, batch), batch["counts"]
    expected = (distance + 10 * divergence) * batch["priority_weight"].squeeze(-1) * counts
    torch.testing.assert_close(out["loss_act"], expected)
    torch.testing.assert_close(out["loss_kl"], divergence[counts].mean().detach())


def test_chunks_may_lie_elsewhere():
    actor, batch = Actor().double(), make_batch()
    before = drawn(ACTLoss(actor), batch)["loss_act"]
    batch.rename_key_("action", ("vla_action", "chunk"))
    loss = ACTLoss(actor)
    loss.set_keys(action=("vla_action", "chunk"))
    assert ("vla_action", "chunk") in loss.in_keys
    torch.testing.assert_close(drawn(loss, batch)["loss_act"], before)


def test_the_loss_falls_in_training():
    actor, batch = Actor().double(), make_batch()
    loss, optimizer = ACTLoss(actor, kl_weight=0.1), torch.optim.Adam(actor.parameters(), lr=0.02)
    values = []
    for _ in range(150):
        value = loss(batch)["loss_act"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sum(values[-30:]) < 0.5 * sum(values[:30])


def test_what_does_not_fit_is_refused():
    actor, batch = Actor().double(), make_batch()
    with pytest.raises(SpecError, match=r"needs an actor_network with in_keys, encode and decode.*got Linear"):
        ACTLoss(nn.Linear(3, 2))
    with pytest.raises(SpecError, match="kl_weight is at least 0; got -1"):
        ACTLoss(actor, kl_weight=-1.0)
    for padding in (torch.zeros(ROWS, CHUNK), torch.zeros(ROWS, dtype=torch.bool)):
        batch["pad_mask"] = padding
        with pytest.raises(LossError, match='"pad_mask" is bool, one for each action of "action"'):
            ACTLoss(actor)(batch)
    del batch["pad_mask"]
    actor.decode = lambda latent, observation: torch.zeros(ROWS, 1, ACTION)
    with pytest.raises(LossError, match=r"chunk \[6, 1, 2\] and the dataset's \"action\" \[6, 4, 2\] must have one"):
        ACTLoss(actor)(batch)
    batch["action"] = batch["action"][:, 0]
    with pytest.raises(LossError, match=r"\[6, 2\] must be a chunk of actions \[T, A\] for each row"):
        ACTLoss(actor)(batch)


def test_the_divergence_of_the_prior_from_itself_is_0():
    assert kl_from_standard_normal(torch.zeros(2, 5), torch.zeros(2, 5)).tolist() == [0.0, 0.0]
    sigma = torch.tensor([2.0])
    torch.testing.assert_close(kl_from_standard_normal(sigma * 0, sigma.square().log()), (3 / 2 - sigma.log())[0])
