"""Which tokens of a batch are trained."""

from __future__ import annotations

from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["MASKING_STRATEGIES", "after_prompt", "check_strategy", "last_run"]

MASKING_STRATEGIES = ("sft", "rlhf", "generic")


def check_strategy(name: str) -> str:
    """The strategy itself.

    Raises:
        SpecError: there is none of this name.
    """
    if name not in MASKING_STRATEGIES:
        raise SpecError(f"masking_strategy is one of {', '.join(map(repr, MASKING_STRATEGIES))}; got {name!r}")
    return name


def after_prompt(attention: Tensor, prompt_length: Tensor) -> Tensor:
    """Which tokens come after the prompt, whichever side is padded.

    Args:
        attention: bool [*B, L], True in tokens, False in padding.
        prompt_length: int64 [*B], the number of prompt tokens of each row.

    Returns:
        bool [*B, L].

    >>> import torch
    >>> attention = torch.tensor([[True, True, True, False], [False, True, True, True]])
    >>> after_prompt(attention, torch.tensor([1, 2]))
    tensor([[False,  True,  True, False],
            [False, False, False,  True]])
    """
    return attention & (attention.cumsum(-1) > prompt_length.to(attention.device).unsqueeze(-1))


def last_run(mask: Tensor) -> Tensor:
    """The last unbroken run of True in each row: the answer of the last turn, where headers stand between turns.

    Args:
        mask: bool [*B, L].

    Returns:
        bool [*B, L].

    >>> import torch
    >>> last_run(torch.tensor([[True, True, False, True, False]]))
    tensor([[False, False, False,  True, False]])
    """
    behind = (~mask).flip(-1).cumsum(-1).flip(-1)
    nearest = behind.masked_fill(~mask, mask.shape[-1]).amin(-1, keepdim=True)
    return mask & (behind == nearest)
