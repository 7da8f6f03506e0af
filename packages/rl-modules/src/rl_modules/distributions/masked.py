"""Categorical distributions of which only some categories are allowed, always in the full numbering."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_modules.distributions.categorical import Categorical
from rl_modules.distributions.one_hot import OneHotCategorical, ReparamGradientStrategy

__all__ = ["MaskedCategorical", "MaskedOneHotCategorical", "name_row"]


class MaskedCategorical(Categorical):
    """Categorical distribution over the categories that a mask allows.

    Mode, samples and log-probabilities number all ``n`` categories, whether the mask is dense or a list of indices. The
    log-probability of a category that is not allowed is -inf; entropy and its gradient are finite.

    Args:
        logits: ``[*B, n]`` unnormalised log-probabilities of all categories.
        probs: ``[*B, n]`` weights instead of logits.
        mask: bool ``[*B, n]`` (or broadcast to it), True where a category is allowed.
        indices: int ``[*B, K]`` (or broadcast to it), the allowed categories. Exactly one of mask and indices is given.
        neg_inf: logit of a category that is not allowed.
        padding_value: entries of ``indices`` with this value are ignored, for rows with fewer than K categories.
        use_cross_entropy: accepted for compatibility; it has no effect.

    Raises:
        ValueError: if a row allows no category (the message names the row), or its allowed logits are all -inf.

    >>> dist = MaskedCategorical(torch.tensor([0.0, 9.0, 1.0]), indices=torch.tensor([0, 2]))
    >>> dist.mode, dist.log_prob(torch.tensor(1))
    (tensor(2), tensor(-inf))
    """

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        indices: Tensor | None = None,
        neg_inf: float = float("-inf"),
        padding_value: int | None = None,
        use_cross_entropy: bool = True,
    ) -> None:
        if (logits is None) == (probs is None):
            raise ValueError(f"{type(self).__name__} takes exactly one of logits and probs.")
        if (mask is None) == (indices is None):
            raise ValueError(f"{type(self).__name__} takes exactly one of mask and indices.")
        weights = probs.log() if logits is None and probs is not None else logits
        assert weights is not None
        if mask is None:
            assert indices is not None
            mask = _dense(indices, weights.shape, padding_value)
        elif mask.dtype != torch.bool:
            mask = mask.bool()
        _check_rows(type(self).__name__, mask.expand_as(weights), weights)
        self.mask = mask
        super().__init__(logits=weights.masked_fill(~mask, neg_inf))


class MaskedOneHotCategorical(OneHotCategorical):
    """One-hot rows over the categories that a mask allows; arguments and errors of :class:`MaskedCategorical`.

    ``grad_method`` as of :class:`OneHotCategorical`.

    >>> MaskedOneHotCategorical(torch.tensor([0.0, 9.0, 1.0]), mask=torch.tensor([True, False, True])).mode
    tensor([0, 0, 1])
    """

    def __init__(
        self,
        logits: Tensor | None = None,
        probs: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        indices: Tensor | None = None,
        neg_inf: float = float("-inf"),
        padding_value: int | None = None,
        use_cross_entropy: bool = True,
        grad_method: ReparamGradientStrategy | None = None,
    ) -> None:
        masked = MaskedCategorical(
            logits, probs, mask=mask, indices=indices, neg_inf=neg_inf, padding_value=padding_value
        )
        self.mask = masked.mask
        self._set_categorical(masked, grad_method)


def name_row(bad: Tensor) -> str:
    """The first row that is True, for a message."""
    row = bad.nonzero()[0].tolist() if bad.ndim else []
    return f"row {row[0] if len(row) == 1 else tuple(row)}" if row else "the only row"


def _dense(indices: Tensor, shape: Sequence[int], padding_value: int | None) -> Tensor:
    """The bool mask ``[*B, n]`` of a list of allowed categories ``[*B, K]``."""
    count = shape[-1]
    indices = indices.long().expand(*shape[:-1], indices.shape[-1])
    if padding_value is not None:
        indices = indices.masked_fill(indices == padding_value, count)  # an extra column takes the padding
    mask = torch.zeros(*shape[:-1], count + 1, dtype=torch.bool, device=indices.device)
    return mask.scatter_(-1, indices, True)[..., :count]


def _check_rows(name: str, mask: Tensor, logits: Tensor) -> None:
    possible = (mask & (logits > float("-inf"))).any(-1)
    if bool(possible.all()):
        return
    # NaN logits compare False: they are not this check's business
    bad = ~(mask & ((logits > float("-inf")) | logits.isnan())).any(-1)
    if not bool(bad.any()):
        return
    row = bad.nonzero()[0].tolist() if bad.ndim else []
    cause = "allows no category" if not bool(mask[tuple(row)].any()) else "allows only categories whose logit is -inf"
    raise ValueError(
        f"The mask of {name} {cause} in {name_row(bad)} of batch {list(bad.shape)}. Every state needs an allowed "
        f"action: let the environment allow a no-op there, or leave such states out of the batch."
    )
