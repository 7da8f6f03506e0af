"""Worker processes: how they are started and how they are ended, whatever the start method.

"spawn" starts a new Python (see :mod:`rl_envs.vector.spawned`). "fork" copies this process, which takes milliseconds
and sends nothing, but is only safe while no other thread of it holds a lock. "forkserver" means "spawn", which forks
the workers of a batch from one new Python in any case.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rl_core.errors import EnvError
from rl_envs.vector.channel import Channel, open_pair
from rl_envs.vector.makers import Maker
from rl_envs.vector.spawned import Nursery, Spawned, WorkerProcess
from rl_envs.vector.worker import serve_forked

__all__ = ["checked_method", "end_all", "start_workers"]

METHODS = ("spawn", "fork", "forkserver")
_starting = threading.Lock()  # between opening a line and closing our copy of its other end, nobody else may fork


def checked_method(method: str | None) -> str:
    """The start method; "spawn" unless another is asked for.

    Raises:
        ValueError: there is no such method.
        EnvError: this system cannot pass open files to other processes.
    """
    if method is not None and method not in METHODS:
        raise ValueError(f"mp_start_method is one of {', '.join(METHODS)}; got {method!r}")
    if os.name != "posix":
        raise EnvError(f"worker processes need a POSIX system, this is {os.name}; use SerialEnv")
    return "fork" if method == "fork" else "spawn"


def start_workers(
    method: str, groups: Sequence[tuple[Sequence[Maker], int]], threads: int | None
) -> tuple[list[WorkerProcess], list[Channel]]:
    """Start a process for each group of environments.

    Args:
        method: as of :func:`checked_method`.
        groups: what makes the environments of a worker, and the place of the first one in the batch.
        threads: of torch in each process; None leaves them alone.

    Returns:
        the processes, and the lines to them; where there are more processes than lines, those look after others.
    """
    started = _Started()
    with _starting, _signals_blocked():
        try:
            if method == "spawn" and len(groups) > 1 and sys.platform == "linux":
                sockets = [started.line() for _ in groups]
                nursery = Nursery(sockets, groups, threads)
                started.processes += [*nursery.workers, nursery]
            else:
                for makers, first in groups:  # a line at a time: a worker must not hold the ends of others
                    _start_one(started, method, makers, first, threads)
        except BaseException:
            for process in started.processes:
                process.kill()
            for channel in started.channels:
                channel.close()
            raise
        finally:
            started.close_theirs()
    return started.processes, started.channels


class _Started:
    """What has been started so far."""

    def __init__(self) -> None:
        self.processes: list[WorkerProcess] = []
        self.channels: list[Channel] = []
        self._theirs: list[socket.socket] = []

    def line(self) -> socket.socket:
        """One more line; the worker's end of it."""
        channel, sock = open_pair()
        self.channels.append(channel)
        self._theirs.append(sock)
        return sock

    def close_theirs(self) -> None:
        """The workers' ends are theirs alone from now on."""
        while self._theirs:
            self._theirs.pop().close()


def _start_one(started: _Started, method: str, makers: Sequence[Maker], first: int, threads: int | None) -> None:
    sock = started.line()
    if method == "spawn":
        started.processes.append(Spawned(sock, makers, first, threads))
    else:
        started.processes.append(_Forked(sock, makers, first, threads))
    started.close_theirs()


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """An interrupt from the keyboard is for this process; workers begin with it blocked and then ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Forked:
    """A copy of this process; it is a daemon, which multiprocessing ends at the interpreter's exit at the latest."""

    def __init__(self, theirs: socket.socket, makers: Sequence[Maker], first: int, threads: int | None) -> None:
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=serve_forked, args=(theirs, makers, first, threads), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        return int(self._process.pid or -1)

    def hand_over(self, channel: Channel) -> None:
        """It has all it needs."""

    def exitcode(self) -> int | None:
        return self._process.exitcode

    def join(self, seconds: float) -> bool:
        self._process.join(seconds)
        return self._process.exitcode is not None

    def kill(self) -> None:
        self._process.kill()


def end_all(processes: Sequence[WorkerProcess], seconds: float) -> None:
    """Wait for processes to leave, all of them together for so long, and kill those that do not."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.exitcode() is None:
            process.kill()
    for process in processes:
        process.join(10.0)
