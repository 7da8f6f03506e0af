"""What one run in the sandbox may use up."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from rl_core.errors import SpecError

__all__ = ["Limits"]

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one run; what is counted per process is said so.

    Example:
        >>> Limits(wall_s=2.0).cpu_s
        10
    """

    wall_s: float = 10.0
    """Wall-clock seconds, by a monotonic clock, from the start of the program. In a session: of each call."""
    cpu_s: int = 10
    """CPU seconds of each process. A session has its own limit for its whole life instead."""
    memory_bytes: int = 512 * _MIB
    """Address space of each process, and resident memory of all processes together (measured every 40 ms)."""
    disk_bytes: int = 64 * _MIB
    """All files together, in memory beside ``memory_bytes``; "landlock" has them on the disk, without this limit."""
    file_bytes: int = 16 * _MIB
    """Each file."""
    open_files: int = 64
    """Descriptors of each process."""
    processes: int = 32
    """Processes and threads together."""
    output_bytes: int = 64 * 1024
    """Each of standard output and standard error; the program is killed at the first byte more."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value <= 0 or (field.name != "wall_s" and not isinstance(value, int)):
                kind = "a positive finite number" if field.name == "wall_s" else "a positive integer"
                raise SpecError(f"Limits.{field.name} is {kind}; got {value!r}")
