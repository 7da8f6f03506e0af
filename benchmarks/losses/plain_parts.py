"""What the parts beside a loss cost at least: the fused update of targets, a policy's formula, torch's packed LSTM."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from _data import ACTION, OBSERVATION, mlp, sequences
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def build(part: str, **options: int) -> Callable[[], object]:
    """One repetition is one update, one call of the policy, or one pass over all sequences."""
    return {"targets": targets, "actor": actor, "lstm": lstm}[part](**options)


def targets(hidden: int) -> Callable[[], object]:
    """``torch._foreach_lerp_`` over the weights of two critics."""
    critics = [mlp(OBSERVATION + ACTION, hidden, 1) for _ in range(2)]
    sources = [weight.detach() for critic in critics for weight in critic.parameters()]
    moved = [weight.clone() for weight in sources]
    return lambda: torch._foreach_lerp_(moved, sources, 0.005)


def actor(hidden: int, batch: int) -> Callable[[], object]:
    """The network, a draw of a squashed normal, its log-probability."""
    network, observation = mlp(OBSERVATION, hidden, 2 * ACTION, nn.Tanh), torch.randn(batch, OBSERVATION)

    @torch.no_grad()
    def act() -> tuple[Tensor, Tensor]:
        loc, scale = network(observation).chunk(2, -1)
        scale = F.softplus(scale + 0.5411) + 0.01
        noise = torch.randn_like(loc)
        raw = loc + scale * noise
        density = -0.5 * noise**2 - scale.log() - 0.5 * math.log(2 * math.pi)
        return raw.tanh(), (density - 2 * (math.log(2) - raw - F.softplus(-2 * raw))).sum(-1)

    return act


def lstm(hidden: int, batch: int, time: int, backward: bool) -> Callable[[], object]:
    """``nn.LSTM`` over the pieces between resets, which are cut, padded and packed before the clock starts."""
    network = nn.LSTM(OBSERVATION, hidden, batch_first=True)
    data = sequences(batch, time)
    pieces = []
    for rows, flags in zip(data["observation"], data["is_init"].squeeze(-1), strict=True):
        cuts = [0, *[int(step) for step in flags.nonzero().flatten() if step], time]
        pieces += [rows[start:stop] for start, stop in pairwise(cuts)]
    padded, lengths = nn.utils.rnn.pad_sequence(pieces, True), torch.tensor([len(piece) for piece in pieces])

    def forward() -> Tensor:
        packed = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(network(packed)[0], batch_first=True)[0]

    def both() -> None:
        network.zero_grad()
        forward().sum().backward()

    return both if backward else torch.no_grad()(forward)
