"""From token losses to one number: which tokens are added up, and what the sum is divided by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["AGGREGATIONS", "aggregate", "check_aggregation", "count_items", "masked_token_mean"]

AGGREGATIONS = {
    "token": "token",
    "token_mean": "token",
    "sequence": "sequence",
    "prompt_mean": "sequence",
    "dr_grpo": "dr_grpo",
    "none": "none",
}
"""Every name of an aggregation, and the one that it is known by here."""


def check_aggregation(name: str, max_length: int | None) -> str:
    """The aggregation's own name.

    Raises:
        SpecError: there is none of this name, or "dr_grpo" has no length.
    """
    found = AGGREGATIONS.get(name)
    if found is None:
        raise SpecError(f"aggregation is one of {', '.join(map(repr, AGGREGATIONS))}; got {name!r}")
    if found == "dr_grpo" and (max_length is None or max_length < 1):
        raise SpecError(
            f"aggregation 'dr_grpo' divides by a constant length: give max_completion_length, the largest number of "
            f"tokens that an answer may have; got {max_length}"
        )
    return found


def masked_token_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the tokens that count, a scalar; 0 where there are none.

    >>> masked_token_mean(torch.tensor([[1.0, 3.0, float("nan")]]), torch.tensor([[True, True, False]]))
    tensor(2.)
    """
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def count_items(mask: Tensor, mode: str, rows: Tensor | None = None) -> Tensor:
    """What a sum over this batch is divided by: add it up over micro-batches and ranks, then give it as ``num_items``.

    Args:
        mask: bool [*B, L].
        mode: "token": the tokens that count; "sequence": the sequences that have one; "dr_grpo": the sequences.
        rows: bool [*B], the sequences that there are for "dr_grpo"; None: all.

    Returns:
        A scalar, int64.

    >>> mask = torch.tensor([[True, True], [False, False]])
    >>> [int(count_items(mask, mode)) for mode in ("token", "sequence", "dr_grpo")]
    [2, 1, 2]
    """
    if mode == "token":
        return mask.sum()
    if mode == "sequence":
        return mask.any(-1).sum()
    if rows is not None:
        return rows.sum()
    return torch.tensor(math.prod(mask.shape[:-1]), device=mask.device)


def aggregate(
    values: Tensor,
    mask: Tensor,
    mode: str = "token",
    *,
    reduction: str = "mean",
    num_items: Tensor | float | None = None,
    max_length: int | None = None,
    rows: Tensor | None = None,
    masked: bool = False,
) -> Tensor:
    r"""Token losses as one number.

    ::

        token       sum over all tokens / number of tokens             DAPO, eq. 8, arXiv 2503.14476
        sequence    mean over sequences of the mean over their tokens  GRPO, eq. 3, arXiv 2402.03300
        dr_grpo     sum over all tokens / (number of sequences * L)    Dr. GRPO, arXiv 2503.20783
        none        the values, 0 where the mask is False

    One mask says which tokens are added up and which are counted.

    Args:
        values: [*B, L].
        mask: bool [*B, L].
        mode: one of the above.
        reduction: "mean"; "sum": not divided by the number of tokens or sequences (but by L); "none": a sum (for
            "sequence" a mean) per sequence, [*B].
        num_items: the number of tokens or sequences to divide by, of all micro-batches and ranks together, so that the
            gradients of its parts add up to that of the whole. None: the number in these values.
        max_length: L of "dr_grpo".
        rows: see :func:`count_items`.
        masked: whether the values are 0 outside of the mask already.

    Returns:
        A scalar; [*B, L] for mode "none"; [*B] for reduction "none". Over no tokens it is 0.

    >>> values = torch.tensor([[1.0, 1.0, 4.0], [8.0, 0.0, 0.0]])
    >>> mask = torch.tensor([[True, True, True], [True, False, False]])
    >>> aggregate(values, mask), aggregate(values, mask, "sequence")
    (tensor(3.5000), tensor(5.))
    >>> aggregate(values, mask, "dr_grpo", max_length=7), aggregate(values, mask, num_items=28)
    (tensor(1.), tensor(0.5000))
    """
    kept = values if masked else torch.where(mask, values, 0.0)
    if mode == "none":
        return kept
    if mode == "sequence":
        kept = kept.sum(-1) / mask.sum(-1).clamp_min(1)
    elif mode == "dr_grpo":
        assert max_length is not None, "check_aggregation asks for it"
        kept = kept / max_length
    if reduction == "none":
        return kept if mode == "sequence" else kept.sum(-1)
    total = kept.sum()
    if reduction == "sum":
        return total
    if num_items is None:
        return total / count_items(mask, mode, rows).clamp_min(1)
    return total / num_items
