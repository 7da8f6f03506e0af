"""Dreamer's convolutions learn to see: world models of both versions on a square that is pushed about."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_modules import (
    MLP,
    DreamerV3ImageDecoder,
    DreamerV3ImageEncoder,
    DreamerV3MLP,
    ObsDecoder,
    ObsEncoder,
    RSSMPosterior,
    RSSMPosteriorV3,
    RSSMPrior,
    RSSMPriorV3,
    RSSMRollout,
    RSSMRolloutV3,
    WorldModelWrapper,
)
from rl_objectives import DreamerModelLoss, DreamerV3ModelLoss

BELIEF, STATE, SIDE, HIDDEN = 32, 16, 16, 32
LATENT = [("next", "state"), ("next", "belief")]


class Joined(nn.Module):
    """A network of state and belief side by side."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, state, belief):
        return self.net(torch.cat([state, belief], -1))


def world_model(rollout, names, prior, posterior, encoder, decoder, heads):
    """From sequences to beliefs, images and what the heads predict."""
    assert any(isinstance(part, nn.Conv2d) for part in encoder.modules())
    transition = TensorDictSequential(
        TensorDictModule(encoder, [("next", "pixels")], [("next", "encoded_latents")]),
        rollout(
            TensorDictModule(
                prior,
                ["state", "belief", "action"],
                [*(("next", f"prior_{name}") for name in names), "_", ("next", "belief")],
            ),
            TensorDictModule(
                posterior,
                [("next", "belief"), ("next", "encoded_latents")],
                [*(("next", f"posterior_{name}") for name in names), ("next", "state")],
            ),
        ),
        TensorDictModule(decoder, LATENT, [("next", "reco_pixels")]),
    )
    predicted = [TensorDictModule(Joined(head), LATENT, [("next", name)]) for name, head in heads.items()]
    return WorldModelWrapper(transition, TensorDictSequential(*predicted))


def first_version():
    encoder = ObsEncoder(8, 2, in_channels=1)
    size = encoder(torch.zeros(1, SIDE, SIDE)).shape[-1]
    decoder = ObsDecoder(8, 2, latent_dim=STATE + BELIEF, out_channels=1)
    prior = RSSMPrior(action_dim=3, hidden_dim=HIDDEN, rnn_hidden_dim=BELIEF, state_dim=STATE)
    posterior = RSSMPosterior(hidden_dim=HIDDEN, state_dim=STATE, rnn_hidden_dim=BELIEF, obs_embed_dim=size)
    heads = {"reward": MLP(STATE + BELIEF, 1, num_cells=[HIDDEN])}
    model = world_model(RSSMRollout, ["mean", "std"], prior, posterior, encoder, decoder, heads)
    return DreamerModelLoss(model, free_nats=1.0)


def third_version():
    encoder = DreamerV3ImageEncoder(1, depth=8, mults=(1, 2))
    size = encoder.output_features((1, SIDE, SIDE))
    decoder = DreamerV3ImageDecoder(STATE + BELIEF, (1, SIDE, SIDE), depth=8, mults=(1, 2), num_blocks=2)
    shape = {"hidden_dim": HIDDEN, "num_categoricals": 4, "num_classes": 4, "unimix": 0.01}
    prior = RSSMPriorV3(action_dim=3, rnn_hidden_dim=BELIEF, recurrent_model="block_gru", num_blocks=2, **shape)
    posterior = RSSMPosteriorV3(rnn_hidden_dim=BELIEF, obs_embed_dim=size, use_rms_norm=True, **shape)
    heads = {
        name: DreamerV3MLP(STATE + BELIEF, outputs, depth=1, num_cells=HIDDEN, outscale=0.0)
        for name, outputs in (("reward_logits", 31), ("continue_pred", 1))
    }
    model = world_model(RSSMRolloutV3, ["logits"], prior, posterior, encoder, Joined(decoder), heads)
    return DreamerV3ModelLoss(model, kl_mode="separate", lambda_continue=1.0, reco_symlog=False, num_reward_bins=31)


def played(rows=16, steps=12):
    """Sequences in which actions push a square of 6 x 6 pixels to the left or to the right, from a state of zeros."""
    action = torch.randint(3, (rows, steps))
    left = [torch.randint(SIDE - 5, (rows,))]
    for t in range(steps):
        left.append((left[-1] + 2 * (action[:, t] - 1)).clamp(0, SIDE - 6))
    left, top = torch.stack(left, 1), torch.randint(SIDE - 5, (rows, 1, 1))
    place = torch.arange(SIDE)
    within = [(place >= begin) & (place < begin + 6) for begin in (top, left.unsqueeze(-1))]
    pixels = (within[0].unsqueeze(-1) & within[1].unsqueeze(-2)).unsqueeze(2).float()
    done = torch.zeros(rows, steps, 1, dtype=torch.bool)
    is_init = done.clone()
    is_init[:, 0] = True
    reward = (left[:, 1:, None] == 0).float()
    step = {"pixels": pixels[:, 1:], "reward": reward, "done": done, "terminated": done}
    now = {"action": nn.functional.one_hot(action, 3).float(), "is_init": is_init, "next": step}
    state = {"state": torch.zeros(rows, steps, STATE), "belief": torch.zeros(rows, steps, BELIEF)}
    return TensorDict({**now, **state}, [rows, steps])


@pytest.mark.parametrize("version", [first_version, third_version])
def test_what_is_seen_is_drawn_again(version):
    torch.manual_seed(0)
    loss, batch = version(), played()
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
    history = []
    for _ in range(100):
        losses, data = loss(batch)
        optimizer.zero_grad()
        sum(value for key, value in losses.items() if key.startswith("loss_")).backward()
        optimizer.step()
        history.append(losses["loss_model_reco"].item())
    pixels, drawn = batch["next", "pixels"], data["next", "reco_pixels"]
    blank = (pixels - pixels.mean((0, 1))).square().mean()
    error = (pixels - drawn).square().mean()
    first, last = history[0], history[-1]
    assert last < 0.3 * first, f"the reconstruction's loss went from {first:.2f} to {last:.2f}"
    assert error < 0.5 * blank, f"images are {error:.4f} off, their mean {blank:.4f}"
