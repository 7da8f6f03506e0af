"""What both sides are given: sizes, settings of the algorithm, and the task's data and reward as plain functions."""

from __future__ import annotations

import string

LETTERS = string.ascii_lowercase
PROMPTS, GROUP, NEW_TOKENS = 16, 8, 12
LEARNING_RATE, CLIP_LOW, CLIP_HIGH, MAX_GRAD_NORM = 1e-3, 0.2, 0.28, 1.0


def reward(completion: str, answer: str) -> float:
    """The share of characters that equal the letter asked for."""
    return completion.count(answer) / len(completion) if completion else 0.0
