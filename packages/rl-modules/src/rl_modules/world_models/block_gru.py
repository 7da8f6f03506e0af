"""DreamerV3's gated recurrent unit with block-diagonal matrices: a large memory at the price of a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_modules.world_models.parts import BlockLinear, RMSNorm

__all__ = ["DreamerV3BlockGRU", "DreamerV3BlockGRUCell"]


class DreamerV3BlockGRUCell(nn.Module):
    r"""One step of a GRU whose gates are computed block by block.

    Input and hidden state are projected to ``projection_size`` each; every block sees both projections and its own part
    of the hidden state, through ``num_layers`` block-diagonal layers, and yields its part of the gates:

    .. math:: h' = u \tanh(r c) + (1 - u) h, \qquad r = \sigma(\cdot), \; u = \sigma(\cdot + b)

    Args:
        input_size: F.
        hidden_size: H, a multiple of num_blocks.
        projection_size: P.
        num_blocks: how many blocks.
        num_layers: hidden layers between the projections and the gates.
        activation_class: activation of hidden layers.
        norm_eps: of the norms.
        update_bias: b; a negative one keeps the memory longer at first.
        device: of the parameters.

    Raises:
        SpecError: the hidden size is no multiple of num_blocks.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, page 15 (block GRU), arXiv 2301.04104.

    >>> DreamerV3BlockGRUCell(3, 8, projection_size=4, num_blocks=2)(torch.zeros(5, 3)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        projection_size: int = 512,
        num_blocks: int = 8,
        num_layers: int = 1,
        activation_class: Callable[[], nn.Module] = nn.SiLU,
        norm_eps: float = 1e-4,
        update_bias: float = -1.0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if num_layers < 0 or num_blocks < 1 or hidden_size % num_blocks:
            raise SpecError(
                f"{type(self).__name__} needs num_layers >= 0 and a hidden_size that is a multiple of num_blocks; got "
                f"{num_layers}, {hidden_size} and {num_blocks}"
            )
        self.input_size, self.hidden_size, self.num_blocks, self.update_bias = (
            input_size,
            hidden_size,
            num_blocks,
            update_bias,
        )

        def projection(features: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(features, projection_size, device=device),
                RMSNorm(projection_size, norm_eps, device),
                activation_class(),
            )

        self.input_projection, self.hidden_projection = projection(input_size), projection(hidden_size)
        width = hidden_size + 2 * projection_size * num_blocks
        layers: list[nn.Module] = []
        for _ in range(num_layers):
            layers += [
                BlockLinear(width, hidden_size, num_blocks, device),
                RMSNorm(hidden_size, norm_eps, device),
                activation_class(),
            ]
            width = hidden_size
        self.hidden_layers = nn.Sequential(*layers)
        self.gates = BlockLinear(width, 3 * hidden_size, num_blocks, device)

    def forward(self, input: Tensor, hidden: Tensor | None = None) -> Tensor:
        """The next hidden state [*B, H], from an input [*B, F] and the hidden state [*B, H] (zero where None)."""
        batch, blocks = input.shape[:-1], self.num_blocks
        if hidden is None:
            hidden = input.new_zeros(*batch, self.hidden_size)
        own = hidden.reshape(*batch, blocks, -1)
        shared = torch.cat([self.hidden_projection(hidden), self.input_projection(input)], -1)
        joined = torch.cat([own, shared.unsqueeze(-2).expand(*batch, blocks, -1)], -1).flatten(-2)
        gates = self.gates(self.hidden_layers(joined)).reshape(*batch, blocks, -1)
        reset, candidate, update = gates.chunk(3, -1)
        keep = (update + self.update_bias).sigmoid()
        return torch.lerp(own, (reset.sigmoid() * candidate).tanh(), keep).reshape(*batch, -1)


class DreamerV3BlockGRU(nn.Module):
    """:class:`DreamerV3BlockGRUCell` over sequences, from zero where an episode begins.

    Args:
        input_size: F.
        hidden_size: H.
        projection_size: as of the cell.
        num_blocks: as of the cell.
        num_layers: as of the cell.
        activation_class: as of the cell.
        norm_eps: as of the cell.
        update_bias: as of the cell.
        recurrent_backend: accepted for compatibility; there is one implementation.
        device: of the parameters.

    >>> output, last = DreamerV3BlockGRU(3, 8, projection_size=4, num_blocks=2)(torch.zeros(5, 7, 3))
    >>> output.shape, last.shape
    (torch.Size([5, 7, 8]), torch.Size([5, 8]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        projection_size: int = 512,
        num_blocks: int = 8,
        num_layers: int = 1,
        activation_class: Callable[[], nn.Module] = nn.SiLU,
        norm_eps: float = 1e-4,
        update_bias: float = -1.0,
        recurrent_backend: Literal["reference", "scan", "triton"] = "reference",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.cell = DreamerV3BlockGRUCell(
            input_size,
            hidden_size,
            projection_size=projection_size,
            num_blocks=num_blocks,
            num_layers=num_layers,
            activation_class=activation_class,
            norm_eps=norm_eps,
            update_bias=update_bias,
            device=device,
        )

    def forward(
        self, input: Tensor, hidden: Tensor | None = None, is_init: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """All hidden states [*B, T, H] and the last one [*B, H].

        Args:
            input: [*B, T, F].
            hidden: the state before the first step [*B, H]; zero where None.
            is_init: bool [*B, T] or [*B, T, 1]; the state before such a step is zero.
        """
        if hidden is None:
            hidden = input.new_zeros(*input.shape[:-2], self.cell.hidden_size)
        starts: list[Tensor | None] = [None] * input.shape[-2]
        if is_init is not None:
            starts = [*is_init.reshape(*input.shape[:-1], 1).unbind(-2)]
        states = []
        for step, start in zip(input.unbind(-2), starts, strict=True):
            hidden = self.cell(step, hidden if start is None else hidden.masked_fill(start, 0.0))
            states.append(hidden)
        return torch.stack(states, -2), hidden
