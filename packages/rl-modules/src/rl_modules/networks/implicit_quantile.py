"""A network that gives the quantiles of action values at whatever levels it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["ImplicitQuantileNet"]


class ImplicitQuantileNet(nn.Module):
    r"""Features of the observation, scaled by features of the quantile levels.

    .. math:: Z_\tau(s, \cdot) = f(\psi(s) \odot \phi(\tau)), \qquad
        \phi_j(\tau) = \mathrm{ReLU}\left(\sum_{i=0}^{n-1} \cos(\pi i \tau) w_{ij} + b_j\right)

    Args:
        features: psi, from observations to ``[*B, D]``; several inputs are handed to it as they are.
        head: f, from ``[*B, N, D]`` to ``[*B, N, n]``, n being the number of actions.
        num_features: D.
        num_cosines: number of cosines of a level.
        activation: of phi.

    Dabney et al., 2018, Implicit Quantile Networks for Distributional Reinforcement Learning, eq. 4, arXiv 1806.06923.

    >>> net = ImplicitQuantileNet(nn.Linear(3, 32), nn.Linear(32, 4), num_features=32)
    >>> net(torch.zeros(2, 3), torch.rand(2, 8)).shape
    torch.Size([2, 8, 4])
    """

    multiples: Tensor

    def __init__(
        self,
        features: nn.Module,
        head: nn.Module,
        num_features: int,
        num_cosines: int = 64,
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.embedding = nn.Linear(num_cosines, num_features)
        self.activation = activation
        self.register_buffer("multiples", math.pi * torch.arange(num_cosines).float(), persistent=False)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Quantiles ``[*B, N, n]``.

        Args:
            *inputs: what ``features`` takes, then the levels: ``[*B, N]``, or ``[N]`` for the same ones in all rows.

        Raises:
            ValueError: levels and features do not have the same rows.
        """
        *observations, levels = inputs
        hidden = self.features(*observations)
        if levels.ndim > 1 and levels.shape[:-1] != hidden.shape[:-1]:
            raise ValueError(
                f"ImplicitQuantileNet: levels {list(levels.shape)} and features {list(hidden.shape)} must be [*B, N] "
                "(or [N]) and [*B, D]."
            )
        cosines = torch.cos(levels.unsqueeze(-1) * self.multiples)
        return self.head(hidden.unsqueeze(-2) * self.activation(self.embedding(cosines)))
