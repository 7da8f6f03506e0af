"""How a run in the sandbox ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl_core.errors import RLError

__all__ = ["Result", "SandboxError", "Status"]

Status = Literal["ok", "error", "timeout", "oom", "killed", "output_truncated"]


class SandboxError(RLError, RuntimeError):
    """The sandbox itself cannot work: a level that the machine forbids, a session that has ended, a wrong argument."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one run did, as its parent process saw it.

    ``status`` never comes from the output: ``ok`` is exit status 0 and ``error`` any other, whatever was written to
    standard error; ``timeout`` is wall clock or CPU time, ``oom`` memory (also an uncaught MemoryError),
    ``output_truncated`` an output over its limit, ``killed`` any other signal.
    """

    status: Status
    """How the run ended."""
    stdout: str
    """Standard output up to the limit; bytes that are not UTF-8 appear as U+FFFD."""
    stderr: str
    """Standard error, likewise."""
    exit_code: int | None
    """Exit status, or minus the signal's number; None where the parent ended the run."""
    wall_s: float
    """Seconds from the start of the program to its end, without the sandbox's own start."""
    cpu_s: float
    """CPU seconds of the program and of those of its children that it waited for."""
    level: str
    """The isolation it ran under."""

    @property
    def ok(self) -> bool:
        """Whether the status is ``ok``."""
        return self.status == "ok"
