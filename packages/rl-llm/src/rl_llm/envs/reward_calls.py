"""Calling reward functions of two kinds: of whole batches with keywords, and of one completion at a time."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from rl_core.errors import EnvError, SpecError

__all__ = ["RewardBatch", "RewardCall", "function_name"]

_BATCH_NAMES = ("prompts", "completions", "completion_ids")


def function_name(function: Any) -> str:
    """The name a reward function is known by."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


@dataclass(frozen=True, kw_only=True)
class RewardBatch:
    """What reward functions are called with: lists with one entry per row.

    Args:
        prompts: texts, or lists of messages.
        completions: texts, or lists of messages.
        completion_ids: ids of the last turn, or None where there are no tokens.
        columns: every column of the data but the question.
        extras: trainer_state, log_metric, log_extra.
    """

    prompts: list[Any]
    completions: list[Any]
    completion_ids: list[list[int]] | None
    columns: dict[str, list[Any]]
    extras: dict[str, Any]

    def keywords(self) -> dict[str, Any]:
        """Everything by name."""
        named = {"prompts": self.prompts, "completions": self.completions, **self.columns, **self.extras}
        return named if self.completion_ids is None else {**named, "completion_ids": self.completion_ids}

    def row(self, index: int) -> dict[str, Any]:
        """One row by name: prompt, completion, completion_ids, the columns."""
        named = {"prompt": self.prompts[index], "completion": self.completions[index]}
        if self.completion_ids is not None:
            named["completion_ids"] = self.completion_ids[index]
        return {**named, **{name: values[index] for name, values in self.columns.items()}, **self.extras}


class RewardCall:
    """A reward function with its calling convention read from its signature.

    A parameter ``prompts``, ``completions`` or ``**kwargs``: called once per batch with keyword lists, returns a list
    of numbers or None. A parameter ``completion``: called once per row with the columns it names, returns one of them.

    Args:
        function: plain or async.
        name: default: the function's own.

    Raises:
        SpecError: neither convention.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.function = function
        self.name = function_name(function) if name is None else name
        parameters = inspect.signature(function).parameters.values()
        self._open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self._accepted = {p.name for p in named}
        self._required = {p.name for p in named if p.default is p.empty}
        self.per_row = "completion" in self._accepted
        if not self.per_row and not self._open and not self._accepted & set(_BATCH_NAMES):
            raise SpecError(
                f"the reward function {self.name!r} takes {sorted(self._accepted)}; give it a parameter 'completion' "
                "(one text, with columns by name beside it), or 'completions' (a list) and **kwargs"
            )

    def __call__(self, batch: RewardBatch) -> list[float]:
        """One number per row, NaN where the function is not applicable (it gave None).

        Raises:
            EnvError: the function raised, or gave something else than one finite number or None per row.
            SpecError: it needs a parameter that is neither a column nor known.
        """
        count = len(batch.completions)
        if self.per_row:
            values: Any = [self._run(batch.row(index), f" for row {index}") for index in range(count)]
        else:
            values = self._run(batch.keywords(), "")
        if isinstance(values, (Tensor, np.ndarray)):
            values = values.tolist()
        if not isinstance(values, (list, tuple)) or len(values) != count:
            found = f"{len(values)} values" if isinstance(values, (list, tuple)) else type(values).__name__
            raise EnvError(
                f"the reward function {self.name!r} gave {found} for {count} completions; it returns a list with one "
                "number or None for each"
            )
        return [self._number(value, index) for index, value in enumerate(values)]

    def _run(self, available: dict[str, Any], where: str) -> Any:
        missing = self._required - set(available)
        if missing:
            raise SpecError(
                f"the reward function {self.name!r} needs {sorted(missing)}; there are {sorted(available)}. Columns of "
                "the data are passed by their names"
            )
        given = available if self._open else {k: v for k, v in available.items() if k in self._accepted}
        try:
            result = self.function(**given)
            return asyncio.run(_awaited(result)) if inspect.iscoroutine(result) else result
        except Exception as error:
            raise EnvError(
                f"the reward function {self.name!r} raised {type(error).__name__}{where}: {error}. Let it return None "
                "where it is not applicable, or a number for a wrong answer"
            ) from error

    def _number(self, value: Any, index: int) -> float:
        if value is None:
            return math.nan
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise EnvError(
                f"the reward function {self.name!r} gave {value!r} for row {index}; a reward is a number or None"
            ) from error
        if not math.isfinite(number):
            raise EnvError(
                f"the reward function {self.name!r} gave {number} for row {index}; a reward is finite, or None where "
                "the function is not applicable"
            )
        return number


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine
