"""The addition task: a + b modulo 10, scored 1 for the exact digit and 0 for anything else."""

from __future__ import annotations

from rl_core.errors import SpecError

__all__ = ["addition_data", "addition_reward"]


def addition_data(highest: int = 9) -> list[dict[str, str]]:
    """All sums of two digits up to ``highest``, with the columns "query" ("3+9=") and "answer" ("2").

    Raises:
        SpecError: ``highest`` is no digit.

    Example:
        >>> addition_data(1)[-1]
        {'query': '1+1=', 'answer': '2'}
    """
    if not 0 <= highest <= 9:
        raise SpecError(f"highest={highest}; it is a digit, 0 to 9")
    digits = range(highest + 1)
    return [{"query": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in digits for b in digits]


def addition_reward(completion: str, answer: str) -> float:
    """1.0 if the completion is the answer and nothing else, blanks around it aside, else 0.0. Nothing is evaluated.

    Example:
        >>> addition_reward(" 2 ", "2"), addition_reward("1+1", "2")
        (1.0, 0.0)
    """
    return float(completion.strip() == answer)
