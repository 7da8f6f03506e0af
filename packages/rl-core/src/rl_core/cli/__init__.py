"""The ``rl`` command, torch-free until a command needs torch."""

from __future__ import annotations

from rl_core.cli.command import Command as Command
from rl_core.cli.program import main as main

__all__ = ["Command", "main"]
