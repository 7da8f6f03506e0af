"""What a name stands for, in a form to print: signature, first paragraph of the documentation, distribution."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

__all__ = ["Description", "describe_object", "first_paragraph"]


@dataclass(frozen=True)
class Description:
    """A name and the object behind it; ``str()`` of it is what ``rl describe`` prints.

    Args:
        group: the group.
        name: the name.
        owner: distribution and version, or ``"this process"``.
        target: module and qualified name of the object.
        signature: how it is called.
        summary: the first paragraph of its documentation.
    """

    group: str
    name: str
    owner: str
    target: str
    signature: str
    summary: str

    def __str__(self) -> str:
        head = f"{self.group} {self.name}  ({self.owner})\n\n  {self.target}{self.signature}"
        return f"{head}\n\n{self.summary}" if self.summary else head


def describe_object(group: str, name: str, owner: str, found: Any) -> Description:
    """Describe a loaded object.

    >>> describe_object("losses", "mine", "this process", first_paragraph).signature
    '(found: Any) -> str'
    """
    named = found if hasattr(found, "__qualname__") else type(found)
    target = f"{named.__module__}:{named.__qualname__}"
    return Description(group, name, owner, target, _signature(found), first_paragraph(found))


def first_paragraph(found: Any) -> str:
    """The documentation up to its first empty line, on one line."""
    return " ".join((inspect.getdoc(found) or "").split("\n\n", 1)[0].split())


class _Bare:
    """An annotation that was written as text, shown without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _bare(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _signature(found: Any) -> str:
    if not callable(found):
        return ""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # built in C, or a metaclass in between
        return "(...)"
    parameters = [p.replace(annotation=_bare(p.annotation)) for p in signature.parameters.values()]
    shown = str(signature.replace(parameters=parameters, return_annotation=_bare(signature.return_annotation)))
    if len(shown) <= 100:
        return shown
    return "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + "  )"
