"""A table of what a language model wrote: prompts, completions, and what they were worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from rl_trainers.progress import number

__all__ = ["completions_table"]


def completions_table(
    prompts: Sequence[str],
    completions: Sequence[str],
    rewards: Sequence[float],
    *,
    title: str = "completions",
    rows: int = 8,
    width: int = 60,
    columns: Mapping[str, Sequence[float | str]] | None = None,
) -> Table:
    r"""A table of completions, one for each of the first prompts that differ.

    Characters that would break the table are shown as in Python (``\n``), and markup in texts is text.

    Args:
        prompts: N texts.
        completions: N texts.
        rewards: N numbers.
        title: the table's title.
        rows: the most rows.
        width: the most characters of a text.
        columns: further columns of N entries, by their headings.

    Example:
        >>> table = completions_table(["a", "a", "b"], ["a\n", "x", "[b]"], [1.0, 0.0, 0.5])
        >>> [str(cell) for column in table.columns for cell in column.cells]
        ['a', 'b', 'a\\n', '[b]', '1', '0.5']
    """
    given: dict[str, Sequence[Any]] = {"prompt": prompts, "completion": completions, "reward": rewards}
    given.update(columns or {})
    sizes = {heading: len(entries) for heading, entries in given.items()}
    if len(set(sizes.values())) != 1:
        raise ValueError(f"the columns of a table of completions have one length, got {sizes}")
    table = Table(title=title, title_justify="left", header_style="dim")
    for heading, entries in given.items():
        numeric = bool(entries) and not isinstance(entries[0], str)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    seen: dict[str, int] = {}
    for place, prompt in enumerate(prompts):
        seen.setdefault(prompt, place)
    for place in list(seen.values())[:rows]:
        table.add_row(*(Text(_shown(entries[place], width)) for entries in given.values()))
    return table


def _shown(value: float | str, width: int) -> str:
    if not isinstance(value, str):
        return number(float(value))
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    return text if len(text) <= width else f"{text[: width - 1]}…"
