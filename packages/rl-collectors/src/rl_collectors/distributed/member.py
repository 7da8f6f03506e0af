"""``NodeMember``: one worker on another machine, seen from the learner; a thread of its own hears what it says."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import deque
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from rl_collectors.distributed.link import Link, LinkLostError
from rl_collectors.distributed.rendezvous import Whereabouts
from rl_collectors.distributed.slots import ArrivingSlot
from rl_collectors.process.failure import Failure
from rl_core.errors import CollectorError

__all__ = ["NodeMember"]


class NodeMember:
    """One worker.

    Args:
        index: of the worker, from 0; its rank is one more.
        changed: notified whenever something was heard.
    """

    def __init__(self, index: int, changed: threading.Condition) -> None:
        self.index, self.rank, self.changed = index, index + 1, changed
        self.phase = "starting"
        self.where: Whereabouts | None = None
        self.link: Link | None = None
        self.listener: threading.Thread | None = None
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.slots: dict[int, ArrivingSlot] = {}
        self.acknowledged: dict[str, int] = {}
        self.refused: dict[tuple[str, int], Failure] = {}
        self.failure: Failure | None = None
        self.lost: str | None = None
        self._beat, self._beat_at, self._progress, self._progress_at = -1, 0.0, -1, 0.0
        self.live()

    @property
    def name(self) -> str:
        """The worker and where it runs, for messages."""
        if self.where is None:
            return f"worker {self.index} (rank {self.rank})"
        return f"worker {self.index} (rank {self.rank} on {self.where.host}, pid {self.where.pid})"

    # ---------------------------------------------------------------- hearing
    def meet(self, store: Store, host: str | None, seconds: float) -> None:
        """Once the worker has introduced itself: begin to hear it."""
        said = json.loads(store.get(f"hello/{self.rank}"))
        self.where = Whereabouts(said["host"], said["pid"])
        self.listener = threading.Thread(
            target=self._listen, args=(store, host, seconds), name=f"distributed-{self.rank}", daemon=True
        )
        self.listener.start()

    def _listen(self, store: Store, host: str | None, seconds: float) -> None:
        try:
            link = Link(store, self.rank, 0, host, seconds)
            with self.changed:
                self.link = link
                self.changed.notify_all()
            while True:
                self._hear(link, pickle.loads(link.receive()))
        except LinkLostError as error:
            lost = str(error)
        except Exception as error:  # what it said makes no sense here, such as a class that only it can import
            lost = f"{type(error).__name__}: {error}"
        with self.changed:
            self.lost = lost
            self.changed.notify_all()

    def _hear(self, link: Link, message: tuple[Any, ...]) -> None:
        if message[0] == "batch":
            filled = message[1]
            link.receive_into(self.slots.setdefault(filled.slot, ArrivingSlot()).room(filled))
        with self.changed:
            match message:
                case ("taken", str(model_id), int(version), _):
                    self.acknowledged[model_id] = version
                case ("refused", str(model_id), int(version), failure):
                    self.refused[model_id, version] = failure
                case ("failed", Failure() as failure):
                    self.failure = failure
                case _:
                    self.inbox.append(message)
            self.changed.notify_all()

    # ---------------------------------------------------------------- speaking
    def say(self, *message: Any, parts: Any = ()) -> None:
        """Send a message.

        Raises:
            LinkLostError: the worker is gone.
        """
        if self.link is None:
            raise LinkLostError("it was never connected")
        self.link.send(pickle.dumps(message), parts)

    # ---------------------------------------------------------------- its pulse
    def live(self) -> None:
        """Count its silence from now on."""
        self._beat_at = self._progress_at = time.monotonic()

    def pulse(self, said: bytes) -> None:
        """Take in what it says of itself every half second."""
        beat, progress = (int(number) for number in said.decode().split(":"))
        now = time.monotonic()
        if beat != self._beat:
            self._beat, self._beat_at = beat, now
        if progress != self._progress:
            self._progress, self._progress_at = progress, now

    @property
    def silent(self) -> float:
        """Seconds since it was last known to live."""
        return time.monotonic() - self._beat_at

    @property
    def stalled(self) -> float:
        """Seconds since it last made progress."""
        return time.monotonic() - self._progress_at

    # ---------------------------------------------------------------- what it did wrong
    def failed(self, failure: Failure) -> CollectorError:
        """The error about an exception in the worker."""
        error = failure.error()
        text = str(error).partition(" failed while ")[2]
        told = CollectorError(f"{self.name} failed while {text}")
        told.__cause__ = error.__cause__
        return told
