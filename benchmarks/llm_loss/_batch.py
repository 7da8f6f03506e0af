"""Answers to prompts, as a buffer gives them to a loss: 64 rows of 256 tokens, padded behind, in groups of 8."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROWS, LENGTH, PROMPT, VOCABULARY = 64, 256, 32, 512
CLIP_LOW, CLIP_HIGH = 0.2, 0.28


class Batch(NamedTuple):
    """What a loss reads."""

    tokens: Tensor
    """int64 [B, L]."""
    real: Tensor
    """bool [B, L], no padding."""
    answer: Tensor
    """bool [B, L], tokens that the policy generated."""
    sampled: Tensor
    """[B, L], log-probabilities that they were sampled with, 0 elsewhere."""
    advantage: Tensor
    """[B, 1]."""


def make_batch(whole: bool) -> Batch:
    """Prompts of 32 tokens; answers fill the rows, or have 64 to 224 tokens."""
    generator = torch.Generator().manual_seed(0)
    place = torch.arange(LENGTH)
    shortest = PROMPT + (LENGTH - PROMPT if whole else 64)
    lengths = torch.randint(shortest, LENGTH + 1, (ROWS, 1), generator=generator)
    lengths[0] = LENGTH
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)
    real = place < lengths
    answer = real & (place >= PROMPT)
    noise = 0.2 * torch.randn(ROWS, LENGTH, generator=generator)
    sampled = torch.where(answer, noise - torch.tensor(VOCABULARY).log(), 0.0)
    return Batch(tokens, real, answer, sampled, torch.randn(ROWS, 1, generator=generator))


def current_log_probs(batch: Batch) -> Tensor:
    """Log-probabilities after some updates, a leaf that wants a gradient."""
    noise = 0.2 * torch.randn(ROWS, LENGTH, generator=torch.Generator().manual_seed(1))
    return torch.where(batch.answer, batch.sampled + noise, 0.0).requires_grad_()
