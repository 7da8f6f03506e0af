"""Docstrings are written for a terminal: ``[*B, T]``, ``update_`` and ``|x|`` are text, not markup; they stay text."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

__all__ = ["plain", "setup"]

# What reStructuredText would take for the start of emphasis, a substitution or a reference to a link target.
_MARKUP = re.compile(r"\*(?=\S)|(?<=\S)\*|\||(?<=\w)_(?!\w)")
_DOTS = re.compile(r"\.{2,3}(?=\s)")
_LITERAL = re.compile(r"(``.*?``|:[\w:]+:`[^`]*`|`[^`]+`_{0,2})")


def plain(lines: list[str]) -> list[str]:
    """Escape markup characters outside of literals, doctests and indented code."""
    escaped, code_indent, in_doctest = [], None, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        in_doctest = bool(line.strip()) and (in_doctest or line.lstrip().startswith(">>>"))
        if code_indent is not None and line.strip() and indent <= code_indent:
            code_indent = None
        escaped.append(line if in_doctest or code_indent is not None else _escape(line))
        if line.rstrip().endswith("::") and not in_doctest:
            code_indent = indent
    return escaped


def _escape(line: str) -> str:
    # autosummary ends the first sentence at a full stop, inside ``0 .. n - 1`` too.
    parts = _LITERAL.split(line)
    return "".join(
        _DOTS.sub("\N{HORIZONTAL ELLIPSIS}", part) if index % 2 else _MARKUP.sub(r"\\\g<0>", part)
        for index, part in enumerate(parts)
    )


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Our own texts, plain; what a tensor class inherits from tensordict is documented there, with its own labels."""
    foreign = (getattr(obj, "__module__", None) or "").startswith("tensordict")
    lines[:] = [] if foreign else plain(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    """Run before napoleon (priority 500), which makes markup of its own."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    return {"parallel_read_safe": True}
