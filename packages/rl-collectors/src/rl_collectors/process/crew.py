"""``Crew``: what a collector asks of those who run its workers, be they processes here or actors elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from rl_collectors.process.settings import EnvFacts
from rl_core.keys import Key

__all__ = ["Crew"]


class Crew(Protocol):
    """Workers that follow orders.

    A worker that fails, dies or hangs makes the call that waits for it raise a CollectorError, and ends the others.
    """

    closed: bool

    def wait_until_ready(self) -> list[EnvFacts]:
        """What each worker says about its environment, once all are built."""
        ...

    def send(self, worker: int, *order: Any, phase: str) -> None:
        """Give a worker an order; `phase` says in words what it is about."""
        ...

    def receive(self, workers: Sequence[int]) -> tuple[int, tuple[Any, ...]]:
        """The next message of one of these workers."""
        ...

    def ask(self, workers: Sequence[int], *order: Any, phase: str) -> list[Any]:
        """Give workers that have nothing else to do an order, and wait for their answers."""
        ...

    def views(self, worker: int, slot: int) -> Mapping[Key, Tensor]:
        """The tensors of the batch that a worker's message was about."""
        ...

    def cut(self, worker: int, batch: int) -> None:
        """Let a worker end batch number ``batch`` with the steps it has."""
        ...

    def shutdown(self, grace: float = 5.0) -> list[str]:
        """End all workers; what is to be told about those that did not end in order."""
        ...
