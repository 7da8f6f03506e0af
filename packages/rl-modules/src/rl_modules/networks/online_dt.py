"""The stochastic actor of the online decision transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_modules.networks.decision_transformer import DecisionTransformer, DTConfig, as_config

__all__ = ["OnlineDTActor"]

_LOG_STD = (-5.0, 2.0)


class OnlineDTActor(nn.Module):
    """Location and scale of each step's action: two heads on a decision transformer.

    The logarithm of the scale is squashed into [-5, 2]. Give both to a ``ProbabilisticActor`` with ``TanhNormal``.

    Args:
        state_dim: features of an observation.
        action_dim: features of an action, A.
        transformer_config: a :class:`DTConfig`, or a mapping of some of its fields.
        device: device of the parameters.

    Zheng et al., 2022, Online Decision Transformer, section 4.1, arXiv 2202.05607.

    >>> net = OnlineDTActor(3, 2, {"n_embd": 16, "n_layer": 1, "n_head": 1, "n_inner": 32})
    >>> loc, scale = net(torch.zeros(5, 10, 3), torch.zeros(5, 10, 2), torch.zeros(5, 10, 1))
    >>> loc.shape, bool((scale > 0).all())
    (torch.Size([5, 10, 2]), True)
    """

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        transformer_config: DTConfig | Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        config = as_config(transformer_config, self.default_config())
        self.transformer = DecisionTransformer(state_dim, action_dim, config, device)
        self.action_layer_mean = nn.Linear(config.n_embd, action_dim, device=device)
        self.action_layer_logstd = nn.Linear(config.n_embd, action_dim, device=device)

    @classmethod
    def default_config(cls) -> DTConfig:
        """The sizes in use unless others are given."""
        return DTConfig(n_embd=512, n_layer=4, n_head=4, n_inner=2048)

    def forward(
        self,
        observation: Tensor,
        action: Tensor,
        return_to_go: Tensor,
        timesteps: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Loc and scale, each ``[*B, T, A]``; the arguments are those of :meth:`DecisionTransformer.forward`."""
        hidden = self.transformer(observation, action, return_to_go, timesteps, mask)
        low, high = _LOG_STD
        unit = torch.tanh(self.action_layer_logstd(hidden))
        return self.action_layer_mean(hidden), (low + 0.5 * (high - low) * (unit + 1)).exp()
