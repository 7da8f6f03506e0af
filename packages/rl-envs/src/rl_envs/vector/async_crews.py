"""The workers of an AsyncEnvPool: threads or processes that do one thing after the other and report each."""

from __future__ import annotations

import queue
import select
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensordict import TensorDictBase

from rl_core.errors import EnvError
from rl_envs.vector.failures import Failure
from rl_envs.vector.makers import Maker
from rl_envs.vector.members import Description, Members
from rl_envs.vector.pool import Lane, WorkerPool
from rl_envs.vector.row_by_row import call_or_read
from rl_envs.vector.single_calls import call_member
from rl_envs.vector.wire import from_wire, to_wire

__all__ = ["Crew", "ProcessCrew", "ThreadCrew"]

Report = tuple[int, str, list[TensorDictBase]]
"""Environment, method, and what that returned."""


class Crew(Protocol):
    """Workers that act for environments by their index."""

    descriptions: list[Description]

    def post(self, index: int, method: str, data: TensorDictBase | None, kwargs: Mapping[str, Any]) -> None:
        """Have an environment do something, after what its worker has to do already."""
        ...

    def ready(self, seconds: float | None) -> list[Report]:
        """What is done by now; where nothing is, wait so long (None: for ever) for something."""
        ...

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed the environments."""
        ...

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """A method or an attribute of every environment."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...

    def check_open(self) -> None:
        """Raise if they have ended."""
        ...


# ------------------------------------------------------------------------------------------------------------ threads
class ThreadCrew:
    """A thread for every few environments.

    torch's global generator belongs to all threads: an environment that draws from it is not reproducible here.

    Args:
        batch: the pool's name, for messages.
        makers: what makes the environments.
        envs_per_worker: how many share a thread.
        shutdown_timeout: seconds for threads to leave.
    """

    def __init__(self, batch: str, makers: Sequence[Maker], envs_per_worker: int, shutdown_timeout: float) -> None:
        self.batch, self.shutdown_timeout = batch, shutdown_timeout
        self.closed: str | None = None
        self.per_worker = envs_per_worker
        self.groups: list[Members] = []
        self._done: queue.SimpleQueue[Report | Failure] = queue.SimpleQueue()
        self._tasks: list[queue.SimpleQueue[Any]] = []
        self._threads: list[threading.Thread] = []
        for first in range(0, len(makers), envs_per_worker):
            members = Members([], streams=False)
            self.groups.append(members)
            try:
                members.add(makers[first : first + envs_per_worker])
            except Exception as error:
                failure = Failure.of(error, first + members.at, "construction")
                self.close()
                raise failure.error(batch) from error
        self.descriptions = [each for members in self.groups for each in members.describe()]
        for number, members in enumerate(self.groups):
            tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
            thread = threading.Thread(
                target=_work, args=(members, number * envs_per_worker, tasks, self._done), daemon=True
            )
            thread.start()
            self._tasks.append(tasks)
            self._threads.append(thread)

    def post(self, index: int, method: str, data: TensorDictBase | None, kwargs: Mapping[str, Any]) -> None:
        own = None if data is None else data.detach().clone()  # the caller may go on writing into what was sent
        self._tasks[index // self.per_worker].put((index % self.per_worker, method, own, kwargs))

    def ready(self, seconds: float | None) -> list[Report]:
        reports: list[Report] = []
        wait = seconds is None or seconds > 0
        while True:
            try:
                found = self._done.get(wait, seconds) if wait else self._done.get_nowait()
            except queue.Empty:
                return reports
            wait = False
            if isinstance(found, Failure):
                error = found.error(self.batch)
                self.closed = str(error).partition("\n")[0]
                self._leave()
                raise error
            reports.append(found)

    def seed(self, seeds: Sequence[int]) -> None:
        for number, members in enumerate(self.groups):
            members.seed(seeds[number * self.per_worker :][: len(members)])

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        return [call_or_read(env, name, args, kwargs) for members in self.groups for env in members.envs]

    def close(self) -> None:
        if self.closed is None:
            self.closed = "close() was called"
            self._leave()

    def _leave(self) -> None:
        for tasks in self._tasks:
            tasks.put(None)
        deadline = time.monotonic() + self.shutdown_timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        busy = {number for number, thread in enumerate(self._threads) if thread.is_alive()}
        for number, members in enumerate(self.groups):
            if number not in busy:  # the others close theirs when they are done
                members.close()

    def check_open(self) -> None:
        if self.closed is not None:
            raise EnvError(f"{self.batch} is closed ({self.closed}); construct a new one")


def _work(members: Members, first: int, tasks: queue.SimpleQueue[Any], done: queue.SimpleQueue[Any]) -> None:
    """The thread: one task after the other."""
    while (task := tasks.get()) is not None:
        index, method, data, kwargs = task
        members.at = index
        try:
            done.put((first + index, method, call_member(members, index, method, data, kwargs)))
        except Exception as error:
            phase = "reset" if method == "reset" else "step"
            done.put(Failure.of(error, first + index, phase))


# ---------------------------------------------------------------------------------------------------------- processes
class ProcessCrew:
    """A process for every few environments.

    Args:
        batch: the pool's name, for messages.
        makers: what makes the environments.
        **options: of :class:`~rl_envs.vector.pool.WorkerPool`.
    """

    def __init__(self, batch: str, makers: Sequence[Maker], **options: Any) -> None:
        self.pool = WorkerPool(batch, makers, **options)
        self.descriptions = self.pool.descriptions
        self._lane_of = [lane for lane in self.pool.lanes for _ in lane.envs]
        self._waiting: list[deque[tuple[int, str, Any, Mapping[str, Any]]]] = [deque() for _ in self.pool.lanes]
        self._at: dict[int, tuple[int, str]] = {}
        self._poll = select.poll()
        for lane in self.pool.lanes:
            self._poll.register(lane.channel.fd, select.POLLIN)
        self._by_fd = {lane.channel.fd: lane for lane in self.pool.lanes}

    def post(self, index: int, method: str, data: TensorDictBase | None, kwargs: Mapping[str, Any]) -> None:
        lane = self._lane_of[index]
        (row,) = to_wire([data])
        self._waiting[lane.number].append((index, method, row, dict(kwargs)))
        self._next(lane)

    def _next(self, lane: Lane) -> None:
        """Send a worker that is idle what it has to do next."""
        if lane.number in self._at or not self._waiting[lane.number]:
            return
        index, method, row, kwargs = self._waiting[lane.number].popleft()
        self._at[lane.number] = (index, method)
        self.pool.post(lane, "one", (index - lane.envs.start, method, row, kwargs), method)

    def ready(self, seconds: float | None) -> list[Report]:
        reports: list[Report] = []
        for fd, _ in self._poll.poll(None if seconds is None else max(0.0, seconds) * 1e3):
            lane = self._by_fd[fd]
            index, method = self._at.get(lane.number, (lane.envs.start, "call"))
            results = self.pool.answer(lane, "reset" if method == "reset" else "step")
            del self._at[lane.number]
            reports.append((index, method, [row for row in from_wire(results) if row is not None]))
            self._next(lane)
        return reports

    def seed(self, seeds: Sequence[int]) -> None:
        self.pool.call("seed", [(seeds[lane.envs.start : lane.envs.stop],) for lane in self.pool.lanes])

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        found = self.pool.call("call", [(name, args, kwargs)] * len(self.pool.lanes))
        return [result for results in found for result in results]

    def close(self) -> None:
        self.pool.close()

    def check_open(self) -> None:
        self.pool._check_open()
