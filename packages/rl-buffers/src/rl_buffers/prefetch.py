"""Prefetcher: draws the next batches of a buffer in threads, in an order that does not depend on how fast they are."""

from __future__ import annotations

import os
import pickle
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple

from rl_core.errors import ReplayBufferError

__all__ = ["Batch", "Prefetcher"]

_MOST_THREADS = 4


class Batch(NamedTuple):
    """A sample as the buffer gives it out, and what is known of it."""

    data: Any
    info: dict[str, Any]


class Prefetcher:
    """Keeps batches ready; it stands in the place of the buffer's lock, and so decides what comes before what.

    A batch is *drawn* (its rows chosen and copied, with the buffer's lock) and then *made* (collated, transformed,
    pinned, without it). Batches are asked for one after the other, and whoever takes the lock, to write, to set
    priorities or to look, first draws all that were asked for before. So batch k + n is always drawn after batch k was
    handed out and before what the caller did next: with a seed, results do not depend on the threads. Threads only do
    the work earlier; what they have not begun, the caller does.

    A draw that fails ahead of time is tried again when its batch is due. What fails while a batch is made is raised
    when the batch is due.

    Args:
        depth: how many batches are ready while the caller has one.
        inner: the lock that it stands for, which may be entered again by the thread that holds it.
    """

    def __init__(self, depth: int, inner: AbstractContextManager[Any]) -> None:
        if depth < 0:
            raise ReplayBufferError(f"prefetch is a number of batches, got {depth}")
        self.depth, self.inner = depth, inner
        self.waited = 0.0
        """Seconds that callers waited for batches that were not ready."""
        self._size: int | None = None
        self._reset()

    def _reset(self, ready: Iterable[Batch] = ()) -> None:
        self._queue: deque[_Ticket] = deque(_Ticket.of(batch) for batch in ready)  # due, the next one first
        self._undrawn: deque[_Ticket] = deque()  # in the order in which they must be drawn
        self._mutex = threading.Lock()  # of the two queues
        self._depth = 0  # how often the holder of the lock has entered it
        self._pool: ThreadPoolExecutor | None = None

    # ------------------------------------------------------------------------------------------------ the lock
    def __enter__(self) -> Prefetcher:
        self.inner.__enter__()
        self._depth += 1
        if self._depth == 1 and self._undrawn:
            self._draw_until(None)
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        self.inner.__exit__(*error)

    def _draw(self, ticket: _Ticket) -> None:
        """Draw a ticket, and those before it, unless somebody has done it."""
        if ticket.drawn:
            return
        with self.inner:
            self._depth += 1
            try:
                self._draw_until(ticket)
            finally:
                self._depth -= 1

    def _draw_until(self, ticket: _Ticket | None) -> None:
        """Draw in order up to a ticket, or all; with the lock held."""
        while self._undrawn and not (ticket is not None and ticket.drawn):
            first = self._undrawn[0]
            first.draw()
            with self._mutex:
                if self._undrawn and self._undrawn[0] is first:  # else it was dropped while it was drawn
                    self._undrawn.popleft()
                if first.error is not None and first in self._queue:  # nobody has asked for it yet
                    self._forget_from(self._queue.index(first))
                elif first.error is not None or first.last:
                    self._forget_from(self._first_undrawn())

    def _first_undrawn(self) -> int:
        return next((place for place, ticket in enumerate(self._queue) if not ticket.drawn), len(self._queue))

    def _forget_from(self, place: int) -> None:
        while len(self._queue) > place:
            ticket = self._queue.pop()
            if not ticket.drawn:
                self._undrawn.remove(ticket)

    # ------------------------------------------------------------------------------------------------ batches
    def next(self, size: int, draw: Callable[[int], tuple[Any, bool]], make: Callable[[Any], Batch]) -> Batch:
        """The next batch, and have others drawn.

        Args:
            size: the batch size; batches of another size that were drawn ahead are dropped.
            draw: chooses and copies rows, called with the lock held; gives them and whether the sampler ran out.
            make: makes a batch of what was drawn.
        """
        with self._mutex:
            if size != self._size:
                self._forget_from(0 if self._size is not None else len(self._queue))
                self._size = size
            ticket, new = self._take(lambda: _Ticket(lambda: draw(size), make))
            if new:
                pool = self._threads()
                for later in new:
                    pool.submit(self._work, later)
        start = perf_counter()
        self._draw(ticket)
        try:
            return ticket.finish()
        finally:
            with self._mutex:
                self.waited += perf_counter() - start

    def _take(self, new: Callable[[], _Ticket]) -> tuple[_Ticket, list[_Ticket]]:
        """The ticket that is due, and those that were issued after it; none beyond the end of a pass."""
        if self._queue:
            ticket = self._queue.popleft()
        else:
            ticket = new()
            self._undrawn.append(ticket)
        last = self._queue[-1] if self._queue else ticket
        issued = [] if last.last else [new() for _ in range(self.depth - len(self._queue))]
        self._queue.extend(issued)
        self._undrawn.extend(issued)
        return ticket, issued

    def _work(self, ticket: _Ticket) -> None:
        self._draw(ticket)
        if ticket.drawn:
            ticket.make()

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            _watch_forks(self)
            self._pool = ThreadPoolExecutor(min(self.depth, _MOST_THREADS), thread_name_prefix="rl-prefetch")
        return self._pool

    @property
    def exhausted(self) -> bool:
        """Whether no batch is due."""
        return not self._queue

    @property
    def ready(self) -> int:
        """How many batches are ready."""
        with self._mutex:
            return sum(ticket.made for ticket in self._queue)

    def clear(self) -> None:
        """Drop the batches that were not handed out."""
        with self._mutex:
            self._forget_from(0)

    def close(self) -> None:
        """End the threads; batches that are ready stay, and the next call of :meth:`next` starts threads again."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    # ------------------------------------------------------------------------------------------------ state
    def batches(self) -> list[Batch]:
        """The batches that are due, drawn and made."""
        with self:
            with self._mutex:
                tickets = [ticket for ticket in self._queue if ticket.drawn]
            return [ticket.finish() for ticket in tickets if ticket.make()]

    def put(self, batches: Iterable[Batch], size: int | None) -> None:
        """Have these batches handed out next, in the place of those that were drawn."""
        with self._mutex:
            self._forget_from(0)
            self._size = size
            self._queue.extend(_Ticket.of(batch) for batch in batches)

    def __getstate__(self) -> dict[str, Any]:
        # As bytes: tensors that share memory, as those of a batch may, cannot be sent to a spawned process.
        return {"depth": self.depth, "_size": self._size, "ready": pickle.dumps(self.batches())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ready = pickle.loads(state.pop("ready"))
        self.__dict__.update(state)
        self.waited = 0.0
        self.inner = threading.RLock()
        self._reset(ready)

    def _hold(self) -> None:
        """Before a fork: hold the locks, with no batch half made."""
        self.inner.__enter__()
        self._depth += 1
        self._mutex.acquire()
        for ticket in self._queue:
            if ticket.drawn:
                ticket.make()

    def _let_go(self) -> None:
        """After a fork, in the process that forked."""
        self._mutex.release()
        self._depth -= 1
        self.inner.__exit__(None, None, None)

    def _restart(self) -> None:
        """After a fork, in the new process: it has the batches and no threads."""
        self._mutex, self._pool, self._depth = threading.Lock(), None, 0
        if isinstance(self.inner, type(threading.RLock())):
            self.inner = threading.RLock()


class _Ticket:
    """A batch that somebody was promised."""

    __slots__ = ("_draw", "_make", "_mutex", "_rows", "batch", "drawn", "error", "last", "made")

    def __init__(self, draw: Callable[[], tuple[Any, bool]] | None, make: Callable[[Any], Batch] | None) -> None:
        self._draw, self._make = draw, make
        self._rows: Any = None
        self._mutex = threading.Lock()
        self.batch: Batch | None = None
        self.error: Exception | None = None
        self.drawn = self.made = self.last = False

    @classmethod
    def of(cls, batch: Batch) -> _Ticket:
        """A ticket for a batch that is ready."""
        ticket = cls(None, None)
        ticket.batch, ticket.drawn, ticket.made = batch, True, True
        return ticket

    def draw(self) -> None:
        assert self._draw is not None
        try:
            self._rows, self.last = self._draw()
        except Exception as error:  # raised by finish(), in the thread that asks for the batch
            self.error, self.made = error, True
        self._draw = None  # it refers to the buffer, which refers to this ticket
        self.drawn = True

    def make(self) -> bool:
        """Make the batch of the rows, unless somebody has done it; whether it worked."""
        with self._mutex:
            if not self.made:
                assert self._make is not None
                try:
                    self.batch = self._make(self._rows)
                except Exception as error:  # as above
                    self.error = error
                self.made = True
            self._rows = self._make = None
        return self.error is None

    def finish(self) -> Batch:
        """The batch; raises what went wrong."""
        self.make()
        if self.error is not None:
            raise self.error
        assert self.batch is not None
        return self.batch


_watched: weakref.WeakSet[Prefetcher] = weakref.WeakSet()
_held: list[Prefetcher] = []
_hooks: list[bool] = []


def _watch_forks(prefetcher: Prefetcher) -> None:
    """Have forks wait until no thread of the prefetcher holds a lock: in the new process nobody could release it."""
    _watched.add(prefetcher)
    if not _hooks and hasattr(os, "register_at_fork"):
        _hooks.append(True)
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _before_fork() -> None:
    for prefetcher in sorted(_watched, key=id):
        prefetcher._hold()
        _held.append(prefetcher)


def _after_fork() -> None:
    while _held:
        _held.pop()._let_go()


def _in_child() -> None:
    while _held:
        _held.pop()._restart()
