"""The fifteen groups of names, and what kind of object each of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["GROUPS", "PREFIX", "Kind", "short_group"]

PREFIX = "rl_core."
"""What an entry-point group is called in a ``pyproject.toml``: ``rl_core.losses`` holds the losses."""


@dataclass(frozen=True)
class Kind:
    """What an object must look like to stand in a group; judged by names alone, so that no check imports torch.

    Args:
        noun: one object of the group, as error texts call it.
        expected: what is asked of the object, in words.
        form: ``"callable"`` (a class or a function), ``"class"``, or ``"object"`` (an instance, or a class that is
            built without arguments at its first use).
        methods: the attributes that a class, or an object of form ``"object"``, must have.
    """

    noun: str
    expected: str
    form: Literal["callable", "class", "object"] = "callable"
    methods: tuple[str, ...] = ()

    def admits(self, candidate: Any) -> bool:
        """Whether the object is of this kind.

        >>> GROUPS["losses"].admits("a string"), GROUPS["losses"].admits(print)
        (False, True)
        """
        is_class = isinstance(candidate, type)
        if (self.form == "class" and not is_class) or (self.form == "callable" and not callable(candidate)):
            return False
        asked = self.methods if is_class or self.form == "object" else ()
        return all(hasattr(candidate, method) for method in asked)


def _callable(noun: str, *methods: str) -> Kind:
    having = " that has " + ", ".join(methods) if methods else ""
    return Kind(noun, f"a class{having}, or a function that builds one", "callable", methods)


GROUPS: dict[str, Kind] = {
    "envs": Kind(
        "environment provider",
        "a provider with make(id, **kwargs), ids() and describe(id), or a class of such providers",
        "object",
        ("make", "ids", "describe"),
    ),
    "transforms": _callable("transform", "forward"),
    "modules": _callable("module", "forward"),
    "losses": _callable("loss", "forward"),
    "estimators": _callable("estimator", "forward"),
    "collectors": _callable("collector", "__iter__"),
    "storages": _callable("storage"),
    "samplers": _callable("sampler"),
    "writers": _callable("writer"),
    "buffers": _callable("replay buffer", "extend", "sample"),
    "target_updates": _callable("target update", "step"),
    "datasets": _callable("dataset"),
    "recipes": Kind("recipe", "a config class with run()", "class", ("run",)),
    "loggers": _callable("logger", "log_scalar"),
    "weight_syncs": _callable("weight sync"),
    "hooks": Kind("hook plugin", "a module, an object or a class whose functions are marked with hookimpl", "object"),
    "commands": Kind(
        "command", "an object or a class with help, add_arguments(parser) and run(args)", "object",
        ("help", "add_arguments", "run"),
    ),
}  # fmt: skip


def short_group(group: str) -> str:
    """The group without the prefix of its entry points.

    >>> short_group("rl_core.losses"), short_group("losses")
    ('losses', 'losses')
    """
    return group.removeprefix(PREFIX)
