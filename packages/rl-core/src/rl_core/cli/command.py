"""What a sub-command of ``rl`` is, and where each of the built-in ones lies."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable
from typing import Any, Protocol, cast

from rl_core import registry as _registry
from rl_core.errors import UnknownNameError
from rl_core.registry.errors_text import close_match

__all__ = ["BUILTIN", "Command", "command_summaries", "find_command"]

BUILTIN: dict[str, tuple[str, str]] = {
    "plugins": ("rl_core.cli.plugins:PluginsCommand", "list what is installed, importing nothing"),
    "describe": ("rl_core.cli.describe:DescribeCommand", "say what a name or an environment is"),
    "train": ("rl_core.cli.train:TrainCommand", "run a recipe: rl train ppo --env gym:CartPole-v1"),
    "new": ("rl_core.cli.new:NewCommand", "begin a plugin: rl new plugin rl-gridworld --env --loss"),
    "doctor": ("rl_core.cli.doctor:DoctorCommand", "try every plugin in a process of its own, and report"),
}
"""The built-in commands: where each lies, and what it does."""


class Command(Protocol):
    """A sub-command; an entry point of ``rl_core.commands`` names a class (built without arguments) or an object.

    A command may also have ``passes_rest = True``: options that it does not know are then kept in ``args.rest``.
    """

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""
        ...

    def run(self, args: argparse.Namespace) -> int | None:
        """Do the work; the number is the exit code, None is 0."""
        ...


def command_summaries() -> dict[str, str]:
    """Every command by name with one line about it, known without importing a plugin."""
    summaries = {name: summary for name, (_, summary) in BUILTIN.items()}
    for entry in _registry.commands.entries():
        summaries.setdefault(entry.name, f"(from {entry.owner})")
    return summaries


def find_command(name: str) -> Command:
    """The command of that name: built in, from an entry point, or from a hook plugin, in this order.

    Raises:
        UnknownNameError: there is none.
        PluginError: its plugin cannot be used.
    """
    if name in BUILTIN:
        module, _, attribute = BUILTIN[name][0].partition(":")
        return cast("Command", getattr(importlib.import_module(module), attribute)())
    if name in _registry.commands:
        return cast("Command", _registry.commands.get(name))
    hooked = _hooked_commands()
    if name in hooked:
        return cast("Command", hooked[name])
    try:
        return cast("Command", _registry.commands.get(name))  # turned off, or known but absent: it says so
    except UnknownNameError:
        raise _unknown(name, [*command_summaries(), *hooked]) from None


def _hooked_commands() -> dict[str, Any]:
    from rl_core import hooks

    found: dict[str, Any] = {}
    for offered in hooks.call("commands"):
        found |= offered
    return found


def _unknown(name: str, known: Iterable[str]) -> UnknownNameError:
    names = sorted(set(known))
    return UnknownNameError(f"rl has no command {name!r}{close_match(name, names)}; commands: {', '.join(names)}")
