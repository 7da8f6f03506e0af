"""What a change of a public API breaks for its callers, from two lists of lines such as ``api.txt`` holds.

A line is a name, or a name with its signature: ``rl_core.EnvBase.rollout(max_steps, policy=None, *, auto_reset=True)``.
Broken is: a name that disappeared; a parameter that was lost, renamed, moved, or can no longer be given the old way;
a parameter that callers must give now and did not before. More names and more optional parameters break nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Parameters", "added", "broken", "parsed"]


@dataclass(frozen=True)
class Parameters:
    """A signature: names in order, and what may be left out."""

    positional_only: tuple[str, ...]
    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    optional: frozenset[str]
    takes_any_positional: bool
    takes_any_keyword: bool

    @classmethod
    def of(cls, signature: str) -> Parameters:
        """From text: ``(a, b=1, *, c)``.

        Example:
            >>> Parameters.of("(a, b=1, *, c)").optional
            frozenset({'b'})
        """
        (function,) = ast.parse(f"def f{signature}: ...").body
        assert isinstance(function, ast.FunctionDef)
        given = function.args
        in_order = [*given.posonlyargs, *given.args]
        optional = {arg.arg for arg in in_order[len(in_order) - len(given.defaults) :]} if given.defaults else set()
        optional |= {arg.arg for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}
        first, second, third = (
            tuple(arg.arg for arg in args) for args in (given.posonlyargs, given.args, given.kwonlyargs)
        )
        return cls(first, second, third, frozenset(optional), given.vararg is not None, given.kwarg is not None)

    @property
    def in_order(self) -> tuple[str, ...]:
        """Those that can be given by position."""
        return self.positional_only + self.positional

    @property
    def by_name(self) -> set[str]:
        """Those that can be given by keyword."""
        return {*self.positional, *self.keyword_only}


def parsed(lines: Iterable[str]) -> dict[str, str]:
    """From a name to its signature, "" where it has none; comments and empty lines do not count.

    Example:
        >>> parsed(["# a comment", "a.b", "a.f(x, *, y=1)"])
        {'a.b': '', 'a.f': '(x, *, y=1)'}
    """
    entries = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            name, bracket, rest = line.strip().partition("(")
            entries[name] = bracket + rest
    return entries


def broken(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """What callers of the old lines lose with the new ones, a sentence each."""
    before, after = parsed(old), parsed(new)
    found = []
    for name, signature in before.items():
        if name not in after:
            found.append(f"{name} disappeared")
        elif signature and not after[name]:
            found.append(f"{name} can no longer be called")
        elif signature and signature != after[name]:
            faults = _broken_parameters(Parameters.of(signature), Parameters.of(after[name]))
            found += [f"{name} {fault}; it was {name}{signature} and is {name}{after[name]}" for fault in faults]
    return found


def added(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """Names that are new."""
    before = parsed(old)
    return [name for name in parsed(new) if name not in before]


def _broken_parameters(old: Parameters, new: Parameters) -> list[str]:
    return [*_lost_names(old, new), *_lost_places(old, new), *_gained_duties(old, new)]


def _lost_names(old: Parameters, new: Parameters) -> list[str]:
    kept = new.by_name
    names = [*old.positional, *old.keyword_only]
    lost = [name for name in names if name not in kept and not (new.takes_any_keyword and name in old.keyword_only)]
    found = [f"lost or renamed its parameter {name!r}" for name in lost]
    if old.takes_any_keyword and not new.takes_any_keyword:
        found.append("takes no other keywords (**) any more")
    return found


def _lost_places(old: Parameters, new: Parameters) -> list[str]:
    if old.takes_any_positional and not new.takes_any_positional:
        return ["takes no other positional arguments (*) any more"]
    found = []
    for place, name in enumerate(old.in_order):
        now = new.in_order[place] if place < len(new.in_order) else None
        renamed = name in old.positional_only  # its name was never usable
        if now is None and not new.takes_any_positional and name in new.by_name:
            found.append(f"takes {name!r} by keyword only")
        elif now is None and not new.takes_any_positional and renamed:
            found.append(f"lost its positional parameter {name!r}")
        elif now is not None and now != name and not renamed and name in new.by_name:
            found.append(f"has another parameter, {now!r}, in the place of {name!r}")
    return found


def _gained_duties(old: Parameters, new: Parameters) -> list[str]:
    known = {*old.in_order, *old.keyword_only}
    found = []
    for place, name in enumerate([*new.in_order, *new.keyword_only]):
        # Where a name cannot be used, its place says which of the old parameters it is.
        by_place = place < len(old.positional_only) or (place < len(old.in_order) and name in new.positional_only)
        before = old.in_order[place] if by_place else name
        if name not in new.optional and (before not in known or before in old.optional):
            found.append(f"needs {name!r} now, which callers could leave out")
    return found
