"""The hooks: everyone may react, per batch or per update, never per environment step and never inside compiled code.

A plugin is a module, an object or a class with functions of these names, marked with ``hookimpl``, and published in the
entry-point group ``rl_core.hooks``. A function may take fewer arguments than listed here, never others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_core.hooks.markers import hookspec

__all__ = ["CommandHooks", "DoctorHooks", "RunHooks"]


class RunHooks:
    """What happens in a training run; ``run`` is whatever drives it, a trainer as a rule.

    Example:
        >>> from rl_core import hookimpl, hooks, registry
        >>> class Printer:
        ...     @hookimpl
        ...     def on_update(self, metrics):
        ...         print(sorted(metrics))
        >>> with registry.isolated(entry_points=[]):
        ...     _ = hooks.load().register(Printer())
        ...     hooks.call("on_update", run=None, metrics={"loss": 0.5, "entropy": 1.2})
        ['entropy', 'loss']
        []
    """

    @hookspec
    def on_run_start(self, run: Any) -> None:
        """Everything is built; no frame has been collected."""

    @hookspec
    def on_batch(self, run: Any, batch: Any) -> None:
        """The collector gave a batch (a TensorDict ``[*B, T]``); it is read, not written."""

    @hookspec
    def on_update(self, run: Any, metrics: Mapping[str, Any]) -> None:
        """The parameters were updated."""

    @hookspec
    def on_evaluation(self, run: Any, metrics: Mapping[str, Any]) -> None:
        """The policy was evaluated."""

    @hookspec
    def on_checkpoint(self, run: Any, path: Path) -> None:
        """A checkpoint was written to ``path``."""

    @hookspec
    def on_run_end(self, run: Any, error: BaseException | None) -> None:
        """The run is over; ``error`` is what ended it early, None where it came to its end."""


class CommandHooks:
    """What a plugin adds to the ``rl`` command.

    Commands that import no plugin (``plugins``, ``new``, ``doctor``) ask no one.
    """

    @hookspec
    def add_arguments(self, command: str, parser: argparse.ArgumentParser) -> None:
        """Add options to a command that exists, for example to ``train``."""

    @hookspec
    def configure(self, command: str, args: argparse.Namespace) -> None:
        """The command's options were read; the command has not begun."""

    @hookspec
    def commands(self) -> Mapping[str, Any]:  # type: ignore[empty-body]
        """Further commands by name, each with ``help``, ``add_arguments(parser)`` and ``run(args)``.

        Asked only for a name that no entry point of ``rl_core.commands`` offers.
        """


class DoctorHooks:
    """What a plugin tells ``rl doctor``."""

    @hookspec
    def doctor_report(self) -> list[tuple[str, str, str]]:  # type: ignore[empty-body]
        """Rows of ``(name, state, detail)``, for example ``("native library", "ok", "built with gcc 12")``."""
