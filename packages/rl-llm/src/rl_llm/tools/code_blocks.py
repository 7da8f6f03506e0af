"""The fenced blocks of Python in a message."""

from __future__ import annotations

import re

__all__ = ["python_blocks"]

_OPENING = re.compile(r" {0,3}(`{3,})([^`]*)")
_PYTHON = ("python", "python3", "py")


def python_blocks(text: str) -> list[str]:
    r"""Extract what stands between a line of three (or more) backticks with the word ``python`` and the closing line.

    Blocks of other languages are passed over as a whole, so that what they quote is not taken for Python. A block is
    closed by a line of at least as many backticks and nothing else; one that is never closed is no block.

    Args:
        text: a message.

    Returns:
        The blocks' contents in order, each line with its end.

    Example:
        >>> python_blocks("Let us see:\n```python\nprint(1)\n```\nand\n```python\nprint(2)")
        ['print(1)\n']
    """
    blocks: list[str] = []
    content: list[str] | None = None
    ticks, language = "", ""
    for line in text.splitlines(keepends=True):
        bare = line.rstrip()
        if content is None:
            opening = _OPENING.fullmatch(bare)
            if opening:
                ticks, language = opening[1], _word(opening[2])
                content = []
        elif _closes(bare, ticks):
            if language in _PYTHON:
                blocks.append("".join(content))
            content = None
        else:
            content.append(line)
    return blocks


def _word(info: str) -> str:
    words = info.split()
    return words[0].lower() if words else ""


def _closes(bare: str, ticks: str) -> bool:
    mark = bare.lstrip(" ")
    return len(bare) - len(mark) <= 3 and len(mark) >= len(ticks) and set(mark) == {"`"}
