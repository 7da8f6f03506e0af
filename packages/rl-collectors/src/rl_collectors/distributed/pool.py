"""``NodePool``: workers on other machines that follow orders; it notices when one fails, dies, hangs or falls silent.

To a collector it is a :class:`~rl_collectors.process.crew.Crew`.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rl_collectors.background import StoppedError
from rl_collectors.distributed.launchers import Launcher, LocalLauncher
from rl_collectors.distributed.link import LinkLostError
from rl_collectors.distributed.member import NodeMember
from rl_collectors.distributed.rendezvous import interface, open_store
from rl_collectors.process.payload import packed_settings
from rl_collectors.process.settings import EnvFacts, WorkerSettings
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["NodePool"]

_TICK = 0.25
_MEETING_SECONDS = 60.0


class NodePool:
    """Workers of ranks 1 to n.

    Args:
        settings: of each worker.
        launcher: starts them.
        address: of this machine, as the workers reach it.
        port: None for a free one.
        timeout: seconds without progress after which a worker counts as hanging.
        start_timeout: seconds for all workers to be there.
        silence: seconds without a sign of life after which a worker counts as lost.
    """

    def __init__(
        self, settings: Sequence[WorkerSettings], launcher: Launcher, address: str, port: int | None, *,
        timeout: float, start_timeout: float, silence: float,
    ) -> None:  # fmt: skip
        self.timeout, self.silence, self.launcher = timeout, silence, launcher
        self.closed = False
        self.lock = threading.RLock()
        self.changed = threading.Condition()
        self._turn = 0
        self._ticked = 0.0
        payloads = [packed_settings(each, "a worker's settings") for each in settings]
        self.members = [NodeMember(index, self.changed) for index in range(len(settings))]
        self.store: TCPStore | None = None
        self.store, self.port = open_store(address, port, len(settings))
        try:
            launcher.start(address, self.port, [member.rank for member in self.members])
            self._meet(address, start_timeout)
            environ = dict(os.environ) if isinstance(launcher, LocalLauncher) else {}
            for member, payload in zip(self.members, payloads, strict=True):
                self.send(member.index, "settings", environ, payload, phase="building its environment and policy")
        except BaseException:
            self.shutdown(0.0)
            raise

    # ---------------------------------------------------------------- starting
    def _meet(self, address: str, seconds: float) -> None:
        """Wait until every worker is connected."""
        assert self.store is not None
        deadline = time.monotonic() + seconds
        while missing := [member for member in self.members if member.link is None]:
            for member in missing:
                if member.listener is None and self.store.check([f"hello/{member.rank}"]):
                    member.meet(self.store, interface(address, self.port), _MEETING_SECONDS)
                how = self.launcher.ended(member.rank)
                if how is not None or member.lost is not None:
                    raise self.fail(self.lost(member))
            if time.monotonic() > deadline:
                ranks = ", ".join(str(member.rank) for member in missing)
                raise self.fail(
                    CollectorError(
                        f"the workers of ranks {ranks} did not connect to {address}:{self.port} within {seconds:g} s; "
                        "see that they are started, reach this address, and pass start_timeout=... if they queue longer"
                    )
                )
            with self.changed:
                self.changed.wait(0.05)

    def wait_until_ready(self) -> list[EnvFacts]:
        """What each worker says about its environment, once all are built."""
        facts = [self._awaited(member, "ready")[0] for member in self.members]
        for member in self.members:
            member.phase = "waiting"
        return facts

    def _awaited(self, member: NodeMember, kind: str) -> tuple[Any, ...]:
        _, (found, *rest) = self.receive([member.index])
        assert found == kind, f"{member.name} said {found!r}, not {kind!r}"
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
        self.say(member, *order)

    def say(self, member: NodeMember, *message: Any, parts: Any = ()) -> None:
        """Tell a worker something; raises if it is gone."""
        if self.closed:
            raise CollectorError("the workers are shut down")
        member.live()
        try:
            member.say(*message, parts=parts)
        except LinkLostError:
            if self.closed:
                raise CollectorError("the workers are shut down") from None
            raise self.fail(self.lost(member)) from None

    def ask(self, workers: Sequence[int], *order: Any, phase: str) -> list[Any]:
        """Give workers that have nothing else to do an order, and wait for their answers."""
        for worker in workers:
            self.send(worker, *order, phase=phase)
        return [self._awaited(self.members[worker], "done")[0] for worker in workers]

    def receive(self, workers: Sequence[int]) -> tuple[int, tuple[Any, ...]]:
        """The next message of one of these workers; those that have waited longest come first.

        Raises:
            CollectorError: a worker failed, died, makes no progress or is silent; all are stopped then.
        """
        members = [self.members[worker] for worker in workers]
        while True:
            self.look_after(members)
            with self.changed:
                for worker in self._in_turn(workers):
                    if self.members[worker].inbox:
                        self._turn = worker + 1
                        return worker, self.members[worker].inbox.popleft()
                if self.closed:
                    raise StoppedError("the workers were shut down while a batch was awaited")
                if not any(member.failure or member.lost for member in members):
                    self.changed.wait(_TICK)

    def views(self, worker: int, slot: int) -> Mapping[Key, Tensor]:
        """The tensors of the batch that a worker's message was about."""
        return self.members[worker].slots[slot].views

    def cut(self, worker: int, batch: int) -> None:
        """Let a worker end batch number ``batch`` with the steps it has."""
        try:
            self.members[worker].say("cut", batch)
        except LinkLostError:
            return  # whoever waits for the batch will be told

    def _in_turn(self, workers: Sequence[int]) -> list[int]:
        count = len(self.members)
        return sorted(workers, key=lambda worker: (worker - self._turn) % count)

    # ---------------------------------------------------------------- what goes wrong
    def look_after(self, members: Sequence[NodeMember], after_all: bool = True) -> None:
        """Raise if one of these workers, who are waited for, will not answer.

        Args:
            members: the workers.
            after_all: whether what a worker has sent before is to be read first.
        """
        if self.closed:
            return
        for member in members:
            if after_all and member.inbox:
                continue
            if member.failure is not None or member.lost is not None:
                raise self.fail(self.lost(member))
        now = time.monotonic()
        if now - self._ticked < _TICK or self.store is None:
            return
        self._ticked = now
        beats = self.store.multi_get([f"beat/{member.rank}" for member in members])
        for member, beat in zip(members, beats, strict=True):
            member.pulse(beat)
            if after_all and member.inbox:
                continue
            if self.launcher.ended(member.rank) is not None:
                raise self.fail(self.lost(member))
            if member.silent > self.silence:
                raise self.fail(self._silent(member))
            if member.stalled > self.timeout:
                raise self.fail(self.hang(member, self.timeout))

    def _silent(self, member: NodeMember) -> CollectorError:
        return CollectorError(
            f"{member.name} was not heard of for {self.silence:g} s while {member.phase}: its machine or the network "
            "is lost, its process is stopped, or its environment holds Python's lock for so long; in that case pass "
            f"silence={self.silence * 10:g}"
        )

    def hang(self, member: NodeMember, seconds: float) -> CollectorError:
        """The error about a worker that does not move."""
        return CollectorError(
            f"{member.name} made no progress for {seconds:g} s while {member.phase}. Where it is:\n"
            f"{self._whereabouts(member)}\nIf its steps take as long as that, pass timeout={seconds * 10:g}"
        )

    def _whereabouts(self, member: NodeMember) -> str:
        key = f"where/{member.rank}"
        if member.link is None or self.store is None or not member.link.try_send(pickle.dumps(("where",)), 1.0):
            return "(it does not answer)"
        for _ in range(20):
            if self.store.check([key]):
                return str(self.store.get(key).decode())
            time.sleep(0.1)
        return "(it does not answer)"

    def lost(self, member: NodeMember) -> CollectorError:
        """The error about a worker that is gone: its own, if it could send one."""
        deadline = time.monotonic() + 5.0
        with self.changed:  # its last words may be on their way
            self.changed.wait_for(lambda: member.failure is not None or member.lost is not None, 2.0)
        if member.failure is not None:
            return member.failed(member.failure)
        how = self.launcher.ended(member.rank)
        while how is None and time.monotonic() < deadline and isinstance(self.launcher, LocalLauncher):
            time.sleep(0.05)
            how = self.launcher.ended(member.rank)
        if how is None and isinstance(self.launcher, LocalLauncher):  # the connection gave up waiting for it
            return self._silent(member)
        return CollectorError(
            f"{member.name} died while {member.phase} ({how or member.lost}); its last words are on its stderr"
        )

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
        farewell = pickle.dumps(("close", float(grace)))
        linked = [member for member in self.members if member.link is not None]
        for member in linked:
            assert member.link is not None
            if member.lost is None:
                member.link.try_send(farewell, 1.0)
        left = self._wait_for_farewells(linked, grace)
        told = self.launcher.stop(grace, left)
        self.store = None
        with self.changed:
            self.changed.notify_all()
        return told

    def _wait_for_farewells(self, members: Sequence[NodeMember], grace: float) -> list[int]:
        """Let workers finish, which then cut their connections; returns the ranks of those that did not."""
        deadline = time.monotonic() + grace
        left = [member.rank for member in self.members if member.link is None]
        for member in members:
            assert member.listener is not None and member.link is not None
            if member.listener is threading.current_thread():
                continue
            member.listener.join(max(0.0, deadline - time.monotonic()))
            if member.listener.is_alive():
                left.append(member.rank)
                member.link.close()
                member.listener.join(2.0)
            member.link = None
        return left
