"""Workers in a new Python, which runs this package's worker and nothing else.

The main script is not imported again, so it needs no ``if __name__ == "__main__"``. Where a batch has several workers,
one new Python loads the libraries and then forks itself for each of them: loading takes seconds, forking milliseconds.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import spawn
from typing import Any, Protocol

from rl_envs.vector.channel import OBJECT, Channel, LineClosedError, open_pair
from rl_envs.vector.makers import Maker, pack

__all__ = ["Nursery", "Spawned", "WorkerProcess"]

_PROGRAM = "import sys; sys.path[:] = {path!r}; from rl_envs.vector.worker import {entry} as run; run({fds})"


class WorkerProcess(Protocol):
    """What is asked of a process."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def hand_over(self, channel: Channel) -> None:
        """Send what the process needs; called when all of a batch have been started."""
        ...

    def exitcode(self) -> int | None:
        """None while it runs; negative numbers are signals."""
        ...

    def join(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


def _python(entry: str, sockets: Sequence[socket.socket], threads: int | None) -> subprocess.Popen[bytes]:
    """A new Python that finds the modules of this one."""
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(threads)
    fds = [sock.fileno() for sock in sockets]
    path = [os.path.abspath(part) for part in sys.path]
    program = _PROGRAM.format(path=path, entry=entry, fds=", ".join(map(str, fds)))
    return subprocess.Popen(
        [spawn.get_executable(), "-c", program], pass_fds=fds, stdin=subprocess.DEVNULL, env=environment
    )


def _script(parcels: Sequence[Any]) -> dict[str, Any] | None:
    """What a new Python needs to import the main script, where functions of that are sent by name."""
    return spawn.get_preparation_data("worker") if any(parcel.needs_main for parcel in parcels) else None


class Spawned:
    """One worker in a new Python.

    Args:
        sock: the worker's end of its line.
        makers: what makes its environments.
        first: the place of the first one in the batch.
        threads: of torch there.
    """

    def __init__(self, sock: socket.socket, makers: Sequence[Maker], first: int, threads: int | None) -> None:
        parcel = pack(makers)
        self._luggage = (parcel, first, threads, _script([parcel]))
        self._process = _python("main", [sock], threads)

    @property
    def pid(self) -> int:
        return self._process.pid

    def hand_over(self, channel: Channel) -> None:
        channel.send(OBJECT, self._luggage)

    def exitcode(self) -> int | None:
        return self._process.poll()

    def join(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()


class Nursery:
    """A new Python that forks itself for each worker of a batch, and tells how they end.

    Args:
        sockets: the workers' ends of their lines.
        groups: for each worker what makes its environments, and the place of the first one in the batch.
        threads: of torch there.

    Attributes:
        workers: the processes of the workers.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        groups: Sequence[tuple[Sequence[Maker], int]],
        threads: int | None,
    ) -> None:
        self.pids: list[int] = []
        self._codes: dict[int, int] = {}
        self.workers = [_Nursling(self, number) for number in range(len(groups))]
        self._channel, theirs = open_pair()
        try:
            self._process = _python("nurse", [theirs, *sockets], threads)
        finally:
            theirs.close()
        try:  # while it loads its libraries
            parcels = [pack(makers) for makers, _ in groups]
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self._luggage = (parcels, [first for _, first in groups], threads, _script(parcels))

    def code_of(self, number: int, seconds: float = 0.0) -> int | None:
        """A worker's exit code, for which it is waited so long."""
        deadline = time.monotonic() + seconds
        while number not in self._codes:
            left = max(deadline - time.monotonic(), 1e-3)
            try:
                self._channel.patience(left)
                _, news = self._channel.receive()
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return None
                continue
            except (LineClosedError, OSError):  # it has ended: at the latest after its last worker
                self.join(1.0)
                return self._codes.get(number, self._process.poll())
            if isinstance(news, list):
                self.pids = news
            else:
                self._codes[news[0]] = news[1]
        return self._codes[number]

    @property
    def pid(self) -> int:
        return self._process.pid

    def hand_over(self, channel: Channel) -> None:
        self._channel.send(OBJECT, self._luggage)

    def exitcode(self) -> int | None:
        return self._process.poll()

    def join(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._channel.close()
        return True

    def kill(self) -> None:
        self._process.kill()


class _Nursling:
    """A worker that a nursery has forked."""

    def __init__(self, nursery: Nursery, number: int) -> None:
        self.nursery, self.number = nursery, number

    @property
    def pid(self) -> int:
        self.nursery.code_of(self.number)
        return self.nursery.pids[self.number] if self.nursery.pids else -1

    def hand_over(self, channel: Channel) -> None:
        if not self.number:  # for all of them
            self.nursery.hand_over(channel)

    def exitcode(self) -> int | None:
        return self.nursery.code_of(self.number)

    def join(self, seconds: float) -> bool:
        return self.nursery.code_of(self.number, seconds) is not None

    def kill(self) -> None:
        if self.exitcode() is None and self.nursery.pids:
            os.kill(self.nursery.pids[self.number], signal.SIGKILL)
