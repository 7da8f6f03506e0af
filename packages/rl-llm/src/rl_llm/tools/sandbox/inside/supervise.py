"""Watching one guest and all that it starts, and telling the library how it ended, over a pipe that the guest lacks.

The lines of the report: ``started``; then ``ended STATUS CPU OOM`` (wait status, CPU seconds, 1 where the memory of
the tree passed its limit). ``failed REASON`` means that the guest never ran.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from .kernel import SIGKILL

__all__ = ["descendants", "everyone_else", "kill_descendants", "report", "supervise", "tasks_of"]

_TICK_MS = 40  # how often memory is measured
_PAGE = os.sysconf("SC_PAGE_SIZE")


def report(status_fd: int, line: str) -> None:
    """Write one line; short lines are atomic on a pipe."""
    os.write(status_fd, (line.replace("\n", " ")[:1000] + "\n").encode("utf-8", "replace"))


def supervise(
    guest: Callable[[], None], status_fd: int, lifeline_fd: int, memory_bytes: int, members: Callable[[], list[int]]
) -> None:
    """Fork the guest and stay until it has ended, or until the library closes its end of the lifeline.

    Args:
        guest: what the child does; it executes a program and does not return.
        status_fd: where the report goes.
        lifeline_fd: readable once the library wants an end, or is dead.
        memory_bytes: limit for the resident memory of all members together.
        members: lists the processes of the guest's tree.
    """
    child = os.fork()
    if child == 0:
        try:
            guest()
        except BaseException as error:
            report(status_fd, f"failed {type(error).__name__}: {error}")
        finally:
            os._exit(71)
    _let_go_of_output()
    watch = _Watch(child)
    poll = select.poll()
    poll.register(lifeline_fd, select.POLLIN)
    poll.register(os.pidfd_open(child), select.POLLIN)
    oom = False
    while True:
        events = poll.poll(_TICK_MS)
        watch.reap()
        if watch.status is not None:
            break
        oom = _resident(members()) > memory_bytes
        if oom or any(fd == lifeline_fd for fd, _ in events):
            os.kill(child, SIGKILL)
            watch.wait()
            break
    report(status_fd, f"ended {watch.status} {watch.cpu_s:.6f} {int(oom)}")


def everyone_else() -> list[int]:
    """All processes of this process namespace, without its first."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def descendants() -> list[int]:
    """All processes below this one, by the kernel's lists of children."""
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                pids += [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return pids  # it ended meanwhile; its children have moved up to us
    return pids


def tasks_of(user: int) -> int:
    """How many threads of a user the machine runs now."""
    count = 0
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
    return count


class _Watch:
    """The wait status of one child, and the CPU time of all that was reaped."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.status: int | None = None
        self.cpu_s = 0.0

    def reap(self, flags: int = os.WNOHANG) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, flags)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.cpu_s += usage.ru_utime + usage.ru_stime
            if pid == self.child:
                self.status = status
                flags = os.WNOHANG

    def wait(self) -> None:
        while self.status is None:
            self.reap(0)


def kill_descendants(limit_s: float = 2.0) -> None:
    """Kill and reap everything below this process, which must be a subreaper, until nothing is left."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        pids = descendants()
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, SIGKILL)
            except ProcessLookupError:
                continue
        _Watch(-1).reap()


def _let_go_of_output() -> None:
    """Close our copies of the guest's streams: their end is then the guest's own doing."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def _resident(pids: list[int]) -> int:
    """Resident bytes of the processes together; pages that they share are counted once per process."""
    return sum(_pages(pid) for pid in pids) * _PAGE


def _pages(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
