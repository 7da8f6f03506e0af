"""Symlog and two-hot: regression to numbers of any size, without knowing their scale."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import LossError, SpecError

__all__ = ["symexp", "symexp_bins", "symlog", "two_hot", "two_hot_cross_entropy", "two_hot_mean"]


def symlog(value: Tensor) -> Tensor:
    r"""``sign(x) ln(1 + |x|)``: nearly the identity around 0, a logarithm far away, on both sides.

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 9, arXiv 2301.04104.

    >>> symlog(torch.tensor([-1.718281828, 0.0, 1.718281828]))
    tensor([-1.,  0.,  1.])
    """
    return value.sign() * value.abs().log1p()


def symexp(value: Tensor) -> Tensor:
    r"""The inverse of :func:`symlog`, ``sign(x) (exp(|x|) - 1)``.

    >>> symexp(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-1.7183,  0.0000,  1.7183])
    """
    return value.sign() * value.abs().expm1()


def symexp_bins(
    number: int = 255,
    limit: float = 20.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The numbers ``symexp(linspace(-limit, limit))``, exactly symmetric around 0.

    Args:
        number: how many, at least 2.
        limit: the symlog of the largest.
        dtype: of the result.
        device: of the result.

    Returns:
        [number], increasing.

    Raises:
        SpecError: there are fewer than two.

    Hafner et al., 2023, eq. 10, arXiv 2301.04104.

    >>> symexp_bins(3, 1.0)
    tensor([-1.7183,  0.0000,  1.7183])
    """
    if number < 2:
        raise SpecError(f"a two-hot code needs at least two bins; got {number}")
    half = symexp(torch.linspace(-limit, limit, number, dtype=torch.float64)[: number // 2])
    middle = half.new_zeros(number % 2)
    return torch.cat([half, middle, -half.flip(0)]).to(dtype=dtype or torch.get_default_dtype(), device=device)


def two_hot(value: Tensor, bins: Tensor) -> Tensor:
    """The weights of the two bins around each value, whose mean is the value; values outside go to the last bin.

    Args:
        value: [*B].
        bins: [K], increasing.

    Returns:
        [*B, K], rows that sum to 1.

    Hafner et al., 2023, eq. 10, arXiv 2301.04104.

    >>> two_hot(torch.tensor([2.0, 9.0]), torch.tensor([0.0, 1.0, 5.0]))
    tensor([[0.0000, 0.7500, 0.2500],
            [0.0000, 0.0000, 1.0000]])
    """
    below, share = _neighbours(value, bins)
    code = value.new_zeros((*value.shape, bins.shape[0]))
    code.scatter_(-1, below.unsqueeze(-1), (1 - share).unsqueeze(-1))
    return code.scatter_(-1, below.unsqueeze(-1) + 1, share.unsqueeze(-1))


def two_hot_cross_entropy(logits: Tensor, value: Tensor, bins: Tensor) -> Tensor:
    r"""The cross-entropy of a prediction against a value's two-hot code, ``-sum_k code_k log softmax(logits)_k``.

    Args:
        logits: [*B, K].
        value: [*B].
        bins: [K], increasing.

    Returns:
        [*B].

    Raises:
        LossError: there is not one value for each row of logits, or one logit for each bin.

    Hafner et al., 2023, eq. 8 and 10, arXiv 2301.04104.
    """
    if logits.shape != (*value.shape, bins.shape[0]):
        raise LossError(
            f"logits {list(logits.shape)} of values {list(value.shape)} over {bins.shape[0]} bins must be "
            f"{[*value.shape, bins.shape[0]]}"
        )
    below, share = _neighbours(value, bins)
    around = torch.stack([below, below + 1], -1)
    low, high = logits.log_softmax(-1).gather(-1, around).unbind(-1)
    return -torch.lerp(low, high, share)


def two_hot_mean(logits: Tensor, bins: Tensor) -> Tensor:
    """The mean of the bins under the predicted probabilities.

    Bins at equal distances from 0 are added in pairs first: probabilities that are symmetric give exactly 0, where a
    plain sum over bins of up to 5e8 rounds to anything.

    Args:
        logits: [*B, K].
        bins: [K], symmetric around 0 (see :func:`symexp_bins`).

    Returns:
        [*B].

    Hafner et al., 2023, eq. 11, arXiv 2301.04104.

    >>> two_hot_mean(torch.zeros(255), symexp_bins(255))
    tensor(0.)
    """
    weighted = logits.softmax(-1) * bins
    half = bins.shape[0] // 2
    pairs = weighted[..., :half] + weighted[..., -half:].flip(-1)
    # The middle bin of an odd number is 0 and adds nothing. Small numbers first: the pairs next to the middle are last.
    return pairs.flip(-1).sum(-1)


def _neighbours(value: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
    """The index of the bin below each value, and the share of the bin above it."""
    value = value.detach().to(bins.dtype).contiguous()
    below = (torch.searchsorted(bins, value, right=True) - 1).clamp_(0, bins.shape[0] - 2)
    low = bins[below]
    share = (value - low) / (bins[below + 1] - low)
    return below, share.clamp_(0, 1)
