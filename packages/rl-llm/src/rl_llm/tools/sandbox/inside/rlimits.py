"""Resource limits of a process and of all that it starts."""

from __future__ import annotations

import resource

__all__ = ["apply"]


def apply(limits: dict[str, int]) -> None:
    """Set the limits of this process, soft and hard, for the rest of its life.

    Args:
        limits: ``cpu_s``, ``memory_bytes``, ``file_bytes``, ``open_files``, ``processes``.
    """
    # At the soft limit a program that does not handle SIGXCPU ends, a second later any program by SIGKILL.
    _limit(resource.RLIMIT_CPU, limits["cpu_s"], limits["cpu_s"] + 1)
    _limit(resource.RLIMIT_AS, limits["memory_bytes"])
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    _limit(resource.RLIMIT_NOFILE, limits["open_files"])
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)
    _limit(resource.RLIMIT_NPROC, limits["processes"])


def _limit(which: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(which)[1]
    wanted = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        wanted = min(wanted, ceiling)
    resource.setrlimit(which, (min(soft, wanted), wanted))
