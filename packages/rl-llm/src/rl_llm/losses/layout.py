"""The shapes of a batch of answers, checked once: [*B, L] per token, [*B, 1] per answer."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.keys import quoted

__all__ = ["check_finite", "exact_float", "per_answer_or_token", "per_token"]


def exact_float(values: Tensor) -> Tensor:
    """Float32 at least: a difference of two log-probabilities in half precision has no digits left."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def per_token(values: Tensor, shape: torch.Size, owner: str, key: Key, like: Key) -> Tensor:
    """Values [*B, L], or [*B, L, 1] without the last dimension.

    Raises:
        SpecError: they have another shape than the mask; both keys are named.
    """
    if values.ndim == len(shape) + 1 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    if values.shape != shape:
        raise SpecError(
            f"{owner}: {quoted(key)} {list(values.shape)} and {quoted(like)} {list(shape)} must have one shape, "
            "[*B, L], position t belonging to token t in both. Pad both on the same side."
        )
    return values


def per_answer_or_token(values: Tensor, shape: torch.Size, owner: str, key: Key) -> Tensor:
    """Values as [*B, 1] or [*B, L]; a further dimension of size 1, or a missing one, is no difference.

    Raises:
        SpecError: they have another shape.
    """
    if values.shape == shape[:-1]:
        return values.unsqueeze(-1)
    if values.ndim == len(shape) + 1 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    if values.shape == shape or values.shape == (*shape[:-1], 1):
        return values
    raise SpecError(
        f"{owner}: {quoted(key)} has {list(values.shape)}; wanted is one value per answer {[*shape[:-1], 1]} or per "
        f"token {list(shape)}"
    )


def check_finite(values: Tensor, mask: Tensor, owner: str, key: Key) -> None:
    """Raise where a token that counts has no finite value.

    Raises:
        SpecError: there is one; its place is named.
    """
    bad = mask & ~values.isfinite()
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        raise SpecError(
            f"{owner}: {quoted(key)} is {float(values[tuple(place)])} at {place}, a token that the policy generated; "
            "every generated token needs the log-probability that it was sampled with. Drop such rows before the loss "
            'with the mask ("collector", "mask").'
        )
