"""``WorkerPool``: the workers of a batch seen from the parent: started, asked, waited for, and ended.

Waiting blocks in the kernel, on one worker after the other; a read that lasts looks around once a second, for workers
that failed meanwhile, are gone, or take longer than they may. Whatever goes wrong ends all of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_core.errors import EnvError
from rl_envs.vector.channel import CALL, CLOSE, FAILED, OBJECT, OK, RESET, STEP, Channel, LineClosedError
from rl_envs.vector.failures import Failure, WorkerError, ended, silent
from rl_envs.vector.makers import Maker
from rl_envs.vector.processes import checked_method, end_all, start_workers
from rl_envs.vector.shared_columns import Place, SharedColumns, SharedParts
from rl_envs.vector.spawned import WorkerProcess

__all__ = ["Lane", "WorkerPool"]

_LOOK_AROUND = 1.0  # seconds
_COMING_UP = 300.0  # seconds for a process to load its libraries, on a machine that is busy
_GRACE = 2.0  # seconds for the other workers to leave when one has failed


@dataclass
class Lane:
    """One worker.

    Attributes:
        number: its place among the workers.
        envs: the places of its environments in the batch.
        process: its process.
        channel: the line to it.
    """

    number: int
    envs: range
    process: WorkerProcess
    channel: Channel


class WorkerPool:
    """Worker processes that hold the environments of one batch.

    Args:
        batch: its name, for messages.
        makers: what makes the environments.
        envs_per_worker: how many share a process.
        method: how processes are started.
        threads: of torch in each.
        timeout: seconds that a construction, a reset, a step or a call may take; None waits for ever.
        shutdown_timeout: seconds for workers to leave when the pool is closed.

    Raises:
        WorkerError: an environment could not be made; all processes are ended then.
    """

    def __init__(
        self,
        batch: str,
        makers: Sequence[Maker],
        *,
        envs_per_worker: int = 1,
        method: str | None = None,
        threads: int | None = 1,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
    ) -> None:
        self.batch, self.timeout, self.shutdown_timeout = batch, timeout, shutdown_timeout
        self.closed: str | None = None
        self._owner = os.getpid()
        self._tick = _LOOK_AROUND if timeout is None else min(_LOOK_AROUND, max(timeout / 2, 1e-3))
        self.lanes: list[Lane] = []
        self.processes: list[WorkerProcess] = []
        self.detail: Callable[[int], str] | None = None
        method = checked_method(method)
        try:
            firsts = range(0, len(makers), envs_per_worker)
            groups = [(makers[first : first + envs_per_worker], first) for first in firsts]
            self.processes, channels = start_workers(method, groups, threads)
            for number, (channel, (own, first)) in enumerate(zip(channels, groups, strict=True)):
                envs = range(first, first + len(own))
                self.lanes.append(Lane(number, envs, self.processes[number], channel))
            for lane in self.lanes:
                self._hand_over(lane)
                lane.channel.patience(self._tick)
            self._collect(self.lanes, "start", _COMING_UP)
            self.descriptions = [each for found in self._collect(self.lanes, "construction") for each in found]
        except BaseException:
            self.close(_GRACE, "its construction failed")
            raise

    def _hand_over(self, lane: Lane) -> None:
        try:
            lane.process.hand_over(lane.channel)
        except LineClosedError:
            raise self._gone(lane, "start") from None

    # ---------------------------------------------------------------- asking
    def step(self) -> list[Any]:
        """Step all environments on the shared columns."""
        return self.everyone(STEP, "step")

    def reset(self, lanes: Sequence[Lane]) -> list[Any]:
        """Reset rows of the shared mask, in some workers."""
        return self.everyone(RESET, "reset", lanes)

    def everyone(self, mark: bytes, phase: str, lanes: Sequence[Lane] | None = None) -> list[Any]:
        """Send a mark to workers, and wait for their answers."""
        self._check_open()
        chosen = self.lanes if lanes is None else lanes
        try:
            for lane in chosen:
                try:
                    lane.channel.mark(mark)
                except LineClosedError:
                    raise self._gone(lane, phase) from None
            return self._collect(chosen, phase)
        except BaseException as error:
            self._interrupted(error)
            raise

    def call(self, name: str, arguments: Sequence[Sequence[Any]], lanes: Sequence[Lane] | None = None) -> list[Any]:
        """Call a function of workers (``do_<name>``), and wait for their results.

        Args:
            name: of the function.
            arguments: for each worker.
            lanes: which workers; default: all.
        """
        chosen = self.lanes if lanes is None else lanes
        phase = {"reset_rows": "reset", "step_rows": "step"}.get(name, name)
        try:
            for lane, own in zip(chosen, arguments, strict=True):
                self.post(lane, name, own, phase)
            results = self._collect(chosen, phase)
        except BaseException as error:
            self._interrupted(error)
            raise
        for found in results:
            if isinstance(found, Failure):  # of a call: the environments are none the worse for it
                raise found.error(self.batch)
        return results

    def _interrupted(self, error: BaseException) -> None:
        """An interrupt leaves answers unread: nobody could tell them from later ones."""
        if not isinstance(error, Exception):
            self.close(0.0, f"{type(error).__name__} came in the middle of its work")

    def post(self, lane: Lane, name: str, arguments: Sequence[Any], phase: str = "call") -> None:
        """Call a function of one worker without waiting."""
        self._check_open()
        try:
            lane.channel.send(CALL, (name, tuple(arguments)))
        except LineClosedError:
            raise self._gone(lane, phase) from None

    def share(self, places: Sequence[Place], batch: tuple[int, ...]) -> tuple[SharedColumns, bool]:
        """Bind all environments to columns in shared memory.

        Returns:
            the columns, and whether an environment carries a policy's state.
        """
        shared = SharedColumns(places, batch)
        return shared, self._hand_out(shared.fd, "share", places, batch)

    def share_parts(self, layouts: Sequence[Sequence[Place]], batch: tuple[int, ...]) -> SharedParts:
        """Bind environments of shapes of their own to columns of each in shared memory."""
        shared = SharedParts(layouts, batch)
        self._hand_out(shared.fd, "share_parts", layouts, batch)
        return shared

    def _hand_out(self, fd: int, how: str, what: Sequence[Any], batch: tuple[int, ...]) -> bool:
        try:
            for lane in self.lanes:
                self.post(lane, how, (what, batch, lane.envs), "construction")
                lane.channel.send_file(fd)
        except LineClosedError:
            raise self._gone(lane, "construction") from None
        finally:
            os.close(fd)
        return any(self._collect(self.lanes, "construction"))

    # ---------------------------------------------------------------- waiting
    def _collect(self, lanes: Sequence[Lane], phase: str, timeout: float | None = None) -> list[Any]:
        results: list[Any] = []
        for place, lane in enumerate(lanes):
            try:
                mark = lane.channel.read_mark()
            except BlockingIOError:
                mark = self._wait_on(lanes[place:], phase, timeout or self.timeout)
            except LineClosedError:
                raise self._gone(lane, phase) from None
            results.append(None if mark == OK else self.take(lane, mark, phase))
        return results

    def answer(self, lane: Lane, phase: str) -> Any:
        """The answer of one worker, of which it is known that it has one or is gone."""
        try:
            mark = lane.channel.read_mark()
        except LineClosedError:
            raise self._gone(lane, phase) from None
        return None if mark == OK else self.take(lane, mark, phase)

    def take(self, lane: Lane, mark: bytes, phase: str) -> Any:
        """The object of an answer; raises where it is a failure, but for that of a call, which is returned."""
        try:
            found = lane.channel.read_object() if mark in (OBJECT, FAILED) else None
        except LineClosedError:
            raise self._gone(lane, phase) from None
        if mark == FAILED:
            assert isinstance(found, Failure)
            if found.phase == "call":
                return found
            raise self._failed(found)
        return found

    def _wait_on(self, lanes: Sequence[Lane], phase: str, timeout: float | None) -> bytes:
        """The mark of the first of several workers, of which it has been waited for a while."""
        lane, began = lanes[0], time.monotonic() - self._tick
        while True:
            for other in lanes[1:]:
                self._look_at(other, phase)
            if lane.process.exitcode() is not None and not _waiting(lane):
                raise self._gone(lane, phase)
            if timeout is not None and time.monotonic() - began >= timeout:
                error = silent(self.batch, lane.number, lane.envs, phase, timeout)
                self.close(0.0, str(error))
                raise error
            try:
                return lane.channel.read_mark()
            except BlockingIOError:
                continue
            except LineClosedError:
                raise self._gone(lane, phase) from None

    def _look_at(self, lane: Lane, phase: str) -> None:
        """Raise if a worker whose turn has not come has failed already."""
        head = _waiting(lane)
        if head == FAILED:
            self.take(lane, lane.channel.read_mark(), phase)
        elif not head and lane.process.exitcode() is not None:
            raise self._gone(lane, phase)

    def _failed(self, failure: Failure) -> WorkerError:
        detail = self.detail(failure.index) if self.detail is not None and failure.phase == "step" else ""
        error = failure.error(self.batch, detail)
        self.close(_GRACE, str(error).partition("\n")[0])
        return error

    def _gone(self, lane: Lane, phase: str) -> WorkerError:
        with contextlib.suppress(BlockingIOError, LineClosedError):
            # Its last words may be a failure that came while we were writing.
            mark = lane.channel.read_mark()
            if mark == FAILED:
                return self._failed(lane.channel.read_object())
        lane.process.join(1.0)
        detail = self.detail(lane.envs.start) if self.detail is not None and phase == "step" else ""
        error = ended(self.batch, lane.number, lane.envs, phase, lane.process.exitcode(), detail)
        self.close(_GRACE, str(error))
        return error

    # ---------------------------------------------------------------- ending
    def _check_open(self) -> None:
        if self.closed is not None:
            raise EnvError(f"{self.batch} is closed ({self.closed}); construct a new one")

    def close(self, seconds: float | None = None, why: str = "close() was called") -> None:
        """End all workers: they close their environments, and those that take longer than ``seconds`` are killed."""
        if self.closed is not None or os.getpid() != self._owner:  # a forked process has copies of what is not its own
            return
        self.closed = why
        for lane in self.lanes:
            with contextlib.suppress(LineClosedError):
                lane.channel.mark(CLOSE)
        for lane in self.lanes:
            with contextlib.suppress(OSError):
                lane.channel.socket.shutdown(socket.SHUT_WR)
        end_all(self.processes, self.shutdown_timeout if seconds is None else seconds)
        for lane in self.lanes:
            lane.channel.close()


def _waiting(lane: Lane) -> bytes:
    """The next byte from a worker, left where it is; nothing where none has come."""
    try:
        return lane.channel.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return b""
