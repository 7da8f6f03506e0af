"""The letters task: the prompt is a letter, and the reward is the share of the answer's characters that equal it."""

from __future__ import annotations

import string

from rl_core.errors import SpecError

__all__ = ["LETTERS", "letters_data", "letters_reward"]

LETTERS = string.ascii_lowercase


def letters_data(letters: str = LETTERS) -> list[dict[str, str]]:
    """One sample per letter, with the columns "query" and "answer".

    Raises:
        SpecError: no letters, or one twice.

    Example:
        >>> letters_data("ab")
        [{'query': 'a', 'answer': 'a'}, {'query': 'b', 'answer': 'b'}]
    """
    if not letters or len(set(letters)) != len(letters):
        raise SpecError(f"letters={letters!r}; give at least one, each once")
    return [{"query": letter, "answer": letter} for letter in letters]


def letters_reward(completion: str, answer: str) -> float:
    """The share of characters of the completion that equal the answer, in [0, 1]; 0 for an empty completion.

    Example:
        >>> letters_reward("aaba", "a"), letters_reward("", "a")
        (0.75, 0.0)
    """
    return completion.count(answer) / len(completion) if completion else 0.0
