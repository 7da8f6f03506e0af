"""The head of a network that predicts a number of unknown scale as a distribution over exponentially spaced bins."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError

__all__ = ["SymExpTwoHot"]


class SymExpTwoHot(nn.Module):
    """Turns logits over bins into the number they stand for, and numbers into targets.

    The bins are ``symexp(linspace(-20, 20))``. A module ``SafeModule(SymExpTwoHot(), ["reward_logits"], ["reward"])``
    after a network gives the prediction itself.

    Args:
        num_bins: K, at least 2.

    Raises:
        SpecError: there are fewer than two bins.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 9 to 11, arXiv 2301.04104.

    >>> code = SymExpTwoHot(255)
    >>> code(code.encode(torch.tensor([1000.0])).log()).round()
    tensor([[1000.]])
    """

    bins: Tensor

    def __init__(self, num_bins: int = 255) -> None:
        super().__init__()
        if num_bins < 2:
            raise SpecError(f"a two-hot code needs at least two bins; got {num_bins}")
        spaced = torch.linspace(-20.0, 20.0, num_bins, dtype=torch.float64)[: num_bins // 2]
        half = spaced.sign() * spaced.abs().expm1()
        # exactly symmetric, so that a uniform prediction is exactly 0
        bins = torch.cat([half, half.new_zeros(num_bins % 2), -half.flip(0)]).to(torch.get_default_dtype())
        self.register_buffer("bins", bins, persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        """The numbers [*B, 1] that logits [*B, K] stand for."""
        return self.decode(logits).unsqueeze(-1)

    def decode(self, logits: Tensor) -> Tensor:
        """The means [*B] of the bins under logits [*B, K], the pairs at equal distances from 0 added first."""
        weighted = logits.softmax(-1) * self.bins
        half = self.bins.shape[0] // 2
        return (weighted[..., :half] + weighted[..., -half:].flip(-1)).flip(-1).sum(-1)

    def encode(self, value: Tensor) -> Tensor:
        """The two-hot codes [*B, K] of numbers [*B]."""
        below, share = self._neighbours(value)
        code = value.new_zeros((*value.shape, self.bins.shape[0]))
        code.scatter_(-1, below.unsqueeze(-1), (1 - share).unsqueeze(-1))
        return code.scatter_(-1, below.unsqueeze(-1) + 1, share.unsqueeze(-1))

    def loss(self, logits: Tensor, value: Tensor) -> Tensor:
        """The cross-entropy [*B] of logits [*B, K] against the codes of numbers [*B, 1].

        Raises:
            SpecError: the shapes do not fit.
        """
        if value.shape != (*logits.shape[:-1], 1):
            raise SpecError(
                f"logits {list(logits.shape)} need values {[*logits.shape[:-1], 1]}; got {list(value.shape)}"
            )
        below, share = self._neighbours(value.squeeze(-1))
        low, high = logits.log_softmax(-1).gather(-1, torch.stack([below, below + 1], -1)).unbind(-1)
        return -torch.lerp(low, high, share)

    def _neighbours(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """The index of the bin below each number, and the share of the bin above it."""
        bins, value = self.bins, value.detach().to(self.bins.dtype).contiguous()
        below = (torch.searchsorted(bins, value, right=True) - 1).clamp_(0, bins.shape[0] - 2)
        return below, ((value - bins[below]) / (bins[below + 1] - bins[below])).clamp_(0, 1)
