"""QMixer: a mixture that is monotonic in each agent's value, with weights that depend on the state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_marl.functional.qmix import monotonic_mixture
from rl_marl.mixers.base import Mixer

__all__ = ["QMixer"]


class QMixer(Mixer):
    """A two-layer mixture of agents' values; nets on the state give its weights, whose absolute values are taken.

    An agent that does not act drops out of the first layer.

    Args:
        state_shape: shape of the state, for instance that of all observations, (n, F).
        mixing_embed_dim: features of the hidden layer.
        n_agents: agents of the group.
        device: device of the parameters.

    Rashid et al., 2018, QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning,
    section 4.1 and figure 2, arXiv 1803.11485.

    >>> mixer = QMixer((5,), mixing_embed_dim=8, n_agents=3)
    >>> mixer(torch.zeros(7, 3, 1), torch.zeros(7, 5)).shape
    torch.Size([7, 1])
    """

    def __init__(
        self,
        state_shape: Sequence[int],
        mixing_embed_dim: int,
        n_agents: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(n_agents, state_shape)
        if mixing_embed_dim < 1:
            raise SpecError(f"QMixer needs at least one hidden feature; got mixing_embed_dim={mixing_embed_dim}")
        self.mixing_embed_dim = mixing_embed_dim
        features, hidden = self.state_features, mixing_embed_dim
        self.weight_net = nn.Linear(features, n_agents * hidden, device=device)
        self.bias_net = nn.Linear(features, hidden, device=device)
        self.out_weight_net = nn.Linear(features, hidden, device=device)
        layers = [nn.Linear(features, hidden, device=device), nn.ReLU(), nn.Linear(hidden, 1, device=device)]
        self.out_bias_net = nn.Sequential(*layers)

    def mix(self, values: Tensor, state: Tensor | None) -> Tensor:
        assert state is not None
        weight = self.weight_net(state).unflatten(-1, (self.n_agents, self.mixing_embed_dim))
        return monotonic_mixture(
            values, weight, self.bias_net(state), self.out_weight_net(state), self.out_bias_net(state)
        )
