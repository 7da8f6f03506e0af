"""One actor, seen from its owner."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from rl_collectors.process.worker import Order
from rl_core.keys import Key

__all__ = ["Asked", "RayMember"]


@dataclass
class Asked:
    """An order whose answer is awaited.

    Attributes:
        order: the method of the actor, and its arguments.
        phase: in words.
        ref: Ray's promise of the answer.
        inner: whether the answer is the pool's own business: a restarted actor's way to where it was.
    """

    order: tuple[Any, ...]
    phase: str
    ref: Any
    inner: bool = False

    @property
    def steps(self) -> int:
        """Of the batch that was asked for; 0 for other orders."""
        match self.order:
            case ("gather", _, Order() as order):
                return order.steps
        return 0


@dataclass
class RayMember:
    """What is known of an actor.

    Attributes:
        index: of the worker.
        settings: what it is made from, as bytes.
        options: its resources, as Ray's ``options`` takes them.
        seed: of its random numbers.
        handle: Ray's handle.
        generation: how often it was started anew.
        deaths: how often it has died since its last batch.
        fresh: whether it was started anew and has got no order to collect since.
        ready: whether it is built.
        where: actor, process and node, in words.
        rows: environments that step together in it.
        first_id: where a new one goes on numbering trajectories, if it does.
        pending: orders in the order in which they were given.
        slots: the tensors of the batches it told of.
        weights: model id -> version and parts that it was sent last.
        answers: (model id, version) -> generation and promise of its word about them.
        state: what it was given to go on from, if it was.
        pulse: the sign of life that is awaited.
    """

    index: int
    settings: bytes
    options: Mapping[str, Any]
    seed: int
    handle: Any = None
    generation: int = 0
    deaths: int = 0
    fresh: bool = False
    ready: bool = False
    where: str = "Ray actor not started"
    rows: int = 1
    first_id: int = 0
    pending: deque[Asked] = field(default_factory=deque)
    slots: dict[int, Mapping[Key, Tensor]] = field(default_factory=dict)
    weights: dict[str, tuple[int, Sequence[Any]]] = field(default_factory=dict)
    answers: dict[tuple[str, int], tuple[int, Any]] = field(default_factory=dict)
    state: Any = None
    pulse: Any = None

    @property
    def phase(self) -> str:
        """What it was asked to do."""
        return self.pending[0].phase if self.pending else "waiting"

    @property
    def frames_under_way(self) -> int:
        """Frames of the batch that it collects, at most."""
        steps = next((asked.steps for asked in self.pending if not asked.inner), 0)
        return steps * self.rows

    def __str__(self) -> str:
        return f"worker {self.index} ({self.where})"
