"""``WorkerPool``: processes that follow orders; it starts and hears them, and notices when one fails, dies or hangs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from torch import Tensor

from rl_collectors.background import StoppedError
from rl_collectors.process.control import WORDS, Control
from rl_collectors.process.failure import Failure, death
from rl_collectors.process.memory import SharedMemory
from rl_collectors.process.payload import packed_settings
from rl_collectors.process.serving import Introduction, serve
from rl_collectors.process.settings import EnvFacts, WorkerSettings
from rl_collectors.process.slots import Filled, ReadSlot
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["Member", "WorkerPool"]

_TRACE_SIZE = 1 << 16
_START_SECONDS = 120.0
_SERVING = "rl_collectors.process.serving"


class Member:
    """One worker, seen from its owner."""

    def __init__(self, index: int, control: Control) -> None:
        self.index, self.control = index, control
        self.trace = SharedMemory.create(_TRACE_SIZE)
        self.process: BaseProcess
        self.orders: Connection
        self.weights: Connection
        self.phase = "starting"
        self.started = False
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.slots: dict[int, ReadSlot] = {}
        self.acknowledged: dict[str, int] = {}
        self.refused: dict[tuple[str, int], Failure] = {}


class WorkerPool:
    """Workers in processes.

    Args:
        settings: of each worker.
        start_method: "forkserver" (default where there is one), "spawn" or "fork". The first two import
            ``__main__`` anew, so a script keeps its work under ``if __name__ == "__main__":``. "fork" needs no
            pickling, and is not safe beside threads or CUDA.
        timeout: seconds without progress after which a worker counts as hanging. It makes progress with each policy
            call, and with each phase of its work.
    """

    def __init__(self, settings: Sequence[WorkerSettings], start_method: str | None = None, timeout: float = 60.0):
        known = multiprocessing.get_all_start_methods()
        method = ("forkserver" if "forkserver" in known else "spawn") if start_method is None else start_method
        if method not in known:
            raise CollectorError(f"mp_start_method is {method!r}; this system has {', '.join(map(repr, known))}")
        self.timeout = timeout
        self.closed = False
        self.lock = threading.RLock()
        self._memory = SharedMemory.create(8 * WORDS * len(settings))
        self.members = [Member(index, Control(self._memory.memory, index)) for index in range(len(settings))]
        self._turn = 0
        context: Any = multiprocessing.get_context(method)
        what = "a worker's settings"
        payloads = [b"" if method == "fork" else packed_settings(each, what) for each in settings]
        if method == "forkserver":
            context.set_forkserver_preload([_SERVING])  # torch is imported once, not by every worker
        try:
            for member, own in zip(self.members, settings, strict=True):
                self._launch(context, member, own if method == "fork" else None)
            environ = {} if method == "fork" else dict(os.environ)
            for member, payload in zip(self.members, payloads, strict=True):
                self._introduce(member, environ, payload)
        except BaseException:
            self.shutdown(0.0)
            raise

    # ---------------------------------------------------------------- starting
    def _launch(self, context: Any, member: Member, given: WorkerSettings | None) -> None:
        member.orders, orders = context.Pipe()
        member.weights, weights = context.Pipe()
        before = self.members[: member.index + 1] if given is not None else []
        foreign = [pipe for other in before for pipe in (other.orders, other.weights)]
        for pipe in (member.orders, member.weights):
            _bounded_sends(pipe, max(self.timeout, _START_SECONDS))
        member.process = context.Process(
            target=serve, args=(member.index, orders, weights, given, foreign), name=f"collector-worker-{member.index}"
        )
        member.process.start()
        orders.close()
        weights.close()

    def _introduce(self, member: Member, environ: dict[str, str], payload: bytes) -> None:
        pid = member.process.pid
        assert pid is not None
        try:
            size = self._memory.size
            member.orders.send_bytes(pickle.dumps(Introduction(size, member.trace.size, environ)))
            self._memory.send(member.orders, pid)
            member.trace.send(member.orders, pid)
            if payload:
                member.orders.send_bytes(payload)
        except OSError as error:
            raise self.lost(member) from error

    def wait_until_ready(self) -> list[EnvFacts]:
        """What each worker says about its environment, once all are built."""
        facts: list[EnvFacts] = []
        for member in self.members:
            self._awaited(member, "started")
            member.started, member.phase = True, "building its environment and policy"
        for member in self.members:
            facts.append(self._awaited(member, "ready")[0])
            member.phase = "waiting"
        return facts

    def _awaited(self, member: Member, kind: str) -> tuple[Any, ...]:
        _, (found, *rest) = self.receive([member.index])
        assert found == kind, f"worker {member.index} said {found!r}, not {kind!r}"
        return tuple(rest)

    # ---------------------------------------------------------------- orders
    def send(self, worker: int, *order: Any, phase: str) -> None:
        """Give a worker an order.

        Args:
            worker: its index.
            *order: what it shall do.
            phase: in words, for messages.
        """
        member = self.members[worker]
        member.phase = phase
        try:
            member.orders.send_bytes(pickle.dumps(order))
        except OSError as error:
            raise self.unreachable(member, error) from None

    def unreachable(self, member: Member, error: OSError) -> CollectorError:
        """The error about a worker that took no message: it is gone, or does not read. Stops all workers."""
        if self.closed:
            return CollectorError("the workers are shut down")
        hangs = isinstance(error, BlockingIOError)
        return self.fail(self.hang(member, max(self.timeout, _START_SECONDS)) if hangs else self.lost(member))

    def ask(self, workers: Sequence[int], *order: Any, phase: str) -> list[Any]:
        """Give workers that have nothing else to do an order, and wait for their answers."""
        for worker in workers:
            self.send(worker, *order, phase=phase)
        return [self._awaited(self.members[worker], "done")[0] for worker in workers]

    def receive(self, workers: Sequence[int]) -> tuple[int, tuple[Any, ...]]:
        """The next message of one of these workers; those that have waited longest come first.

        Raises:
            CollectorError: a worker failed, died, or makes no progress; all are stopped then.
        """
        stalled = {worker: (-1, time.monotonic()) for worker in workers}
        while True:
            with self.lock:
                for worker in self._in_turn(workers):
                    if self.members[worker].inbox:
                        self._turn = worker + 1
                        return worker, self.members[worker].inbox.popleft()
                if self.closed:
                    raise StoppedError("the workers were shut down while a batch was awaited")
            self._listen([self.members[worker] for worker in workers], min(1.0, self.timeout / 4))
            self._look_for_hangs(stalled)

    def _in_turn(self, workers: Sequence[int]) -> list[int]:
        count = len(self.members)
        return sorted(workers, key=lambda worker: (worker - self._turn) % count)

    def _listen(self, members: Sequence[Member], seconds: float) -> None:
        """Read what has come, waiting for it at most so long."""
        pipes: dict[Any, Member] = {member.orders: member for member in members}
        ends: dict[Any, Member] = {member.process.sentinel: member for member in members}
        try:
            ready = wait([*pipes, *ends], seconds)
        except OSError:
            if self.closed:  # shut down by another thread
                return
            raise
        with self.lock:
            for found in ready:
                if found in pipes:
                    self._read(pipes[found])
            for found in ready:
                if found in ends and not ends[found].inbox:
                    raise self.fail(self.lost(ends[found]))

    def _read(self, member: Member) -> None:
        """Read a message, if there is one: another thread may have been faster."""
        try:
            if not member.orders.poll():
                return
            message = pickle.loads(member.orders.recv_bytes())
            if message[0] == "batch":
                filled: Filled = message[1]
                member.slots.setdefault(filled.slot, ReadSlot()).hear(filled, member.orders)
        except (EOFError, OSError):
            raise self.fail(self.lost(member)) from None
        if message[0] == "failed":
            raise self.fail(message[1].error())
        member.inbox.append(message)

    def views(self, worker: int, slot: int) -> Mapping[Key, Tensor]:
        """The tensors of a batch that a worker has told of, in its slot."""
        return self.members[worker].slots[slot].views

    def cut(self, worker: int, batch: int) -> None:
        """Let a worker end batch number ``batch`` with the steps it has."""
        self.members[worker].control.cut(batch)

    # ---------------------------------------------------------------- what goes wrong
    def _look_for_hangs(self, stalled: dict[int, tuple[int, float]]) -> None:
        now = time.monotonic()
        for worker, (progress, since) in stalled.items():
            member = self.members[worker]
            if member.control.progress != progress:
                stalled[worker] = (member.control.progress, now)
                continue
            limit = self.timeout if member.started else max(self.timeout, _START_SECONDS)
            if now - since > limit:
                raise self.fail(self.hang(member, limit))

    def hang(self, member: Member, seconds: float) -> CollectorError:
        """The error about a worker that does not move."""
        return CollectorError(
            f"worker {member.index} made no progress for {seconds:g} s while {member.phase}. Where it is:\n"
            f"{self._whereabouts(member)}\nIf its steps take as long as that, pass timeout={seconds * 10:g}"
        )

    def _whereabouts(self, member: Member) -> str:
        """The tracebacks of a worker's threads, which its fault handler writes on a signal."""
        if not member.started or member.process.pid is None:
            return "(it has not started)"
        os.kill(member.process.pid, signal.SIGUSR1)
        text = b""
        for _ in range(20):
            time.sleep(0.05)
            before, text = text, os.pread(member.trace.handle, _TRACE_SIZE, 0).rstrip(b"\0")
            if text and text == before:
                break
        return text.decode(errors="replace") or "(it does not answer)"

    def lost(self, member: Member) -> CollectorError:
        """The error about a worker whose process has ended: its own, if it could send one."""
        try:
            while member.orders.poll():
                message = pickle.loads(member.orders.recv_bytes())
                if message[0] == "failed":
                    return message[1].error()
                if message[0] == "batch" and message[1].fresh_memory:
                    ReadSlot().hear(message[1], member.orders)
        except (EOFError, OSError):
            pass  # what it had to say is read
        member.process.join(5.0)
        return death(member.index, member.phase, member.process.exitcode)

    def fail(self, error: CollectorError) -> CollectorError:
        """Stop all workers; returns the error to raise."""
        self.shutdown(1.0)
        return error

    # ---------------------------------------------------------------- the end
    def shutdown(self, grace: float = 5.0) -> list[str]:
        """Stop all workers: they close what they made, within so many seconds; then they are ended.

        Returns:
            What is to be told about workers that did not end in order.
        """
        with self.lock:
            if self.closed:
                return []
            self.closed = True
        living = [member for member in self.members if hasattr(member, "process") and member.process.pid is not None]
        for member in living:
            member.control.stop()
            try:
                member.orders.send_bytes(pickle.dumps(("close",)))
            except OSError:
                continue  # it has ended
        for member in living:
            member.orders.close()
            member.weights.close()
        deadline = time.monotonic() + grace
        for member in living:
            member.process.join(max(0.0, deadline - time.monotonic()))
        late = [member for member in living if member.process.is_alive()]
        for end in ("terminate", "kill"):
            for member in late:
                if member.process.is_alive():
                    getattr(member.process, end)()
            for member in late:
                member.process.join(1.0)
        told = [f"worker {member.index} did not end within {grace:g} s and was killed" for member in late]
        told += [
            f"worker {member.index} ended with exit code {member.process.exitcode}; its last words are on stderr"
            for member in living
            if member not in late and member.process.exitcode
        ]
        for member in living:
            member.process.close()
            member.trace.close_handle()
        self._memory.close_handle()
        return told


def _bounded_sends(pipe: Connection, seconds: float) -> None:
    """Let a message that the other end does not take raise after a while, instead of blocking for ever."""
    held = socket.socket(fileno=os.dup(pipe.fileno()))
    with held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(int(seconds * 1e6), 10**6)))
