"""PriorityTree: priorities and generations of slots, drawn from in proportion to the priorities, from any process."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import torch
from torch import Tensor

from rl_buffers.sent import received, sent
from rl_buffers.trees.engine import Draw, Engine, TreeStats
from rl_buffers.trees.kernels import native_engine
from rl_buffers.trees.layout import HEADER_WORDS, LEAF_WORDS, LOCK_WORD, MAX_CAPACITY, new_memory, tree_blocks
from rl_buffers.trees.reference import ReferenceEngine
from rl_core.errors import CheckpointError, ReplayBufferError

__all__ = ["PriorityTree"]

# A storage without a limit has an enormous capacity: its tree starts small and doubles.
_LARGE, _SMALL = 1 << 28, 1 << 16


class PriorityTree:
    """Keeps, for each slot, a stored priority and a generation: how often its row was written.

    The stored priority of a raw one is ``(raw + eps)^alpha``; it is computed in one function of the engine. Sums,
    minima and maxima are double precision and recomputed from below at each change, so errors do not add up. Each
    method is one step under a lock that lies beside the data, so threads may call at the same time, and after
    :meth:`share` processes too.

    The C++ kernels do the work where they are loaded, else NumPy, with the same numbers.

    Args:
        capacity: the number of slots; more are made at need, unless the tree is shared. It takes 19.5 bytes a slot.

    Example:
        >>> tree = PriorityTree(4)
        >>> tree.write(torch.arange(4), alpha=1.0, eps=0.0)
        >>> tree.update(torch.tensor([1, 2]), torch.tensor([3.0, 0.0]), alpha=1.0, eps=0.0)
        2
        >>> tree.stats()
        TreeStats(total=5.0, smallest=1.0, largest=3.0, largest_ever=3.0, live=4)
        >>> draw = tree.sample(100, seed=0)
        >>> 2 in draw.slots, int((draw.slots == 1).sum())
        (False, 60)
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ReplayBufferError(f"the capacity of a priority tree must be at least 1, got {capacity}")
        self.memory = new_memory(capacity if capacity <= _LARGE else _SMALL)
        self.capacity = capacity if capacity <= _LARGE else _SMALL
        self._engine = _engine(None)

    def write(self, index: Tensor, *, alpha: float, eps: float, within: bool = True) -> None:
        """Take note of newly written rows: each gets the largest stored priority and the next generation.

        Args:
            index: slots, int64 ``[n]``.
            alpha: exponent >= 0, used with `eps` for a raw priority of 1, where no row has a priority above zero.
            eps: >= 0.
            within: the largest of the *other live* rows; ``False`` means the largest that was ever set.

        Raises:
            ReplayBufferError: a slot is negative, or beyond the capacity of a shared tree.
        """
        slots = _int64(index)
        if slots.numel():
            self._reserve(int(slots[-1]) + 1 if slots.numel() == 1 else int(slots.max()) + 1)
        self._engine.write(self.memory, slots, alpha, eps, within)

    def update(self, index: Tensor, raw: Tensor, generation: Tensor | None = None, *, alpha: float, eps: float) -> int:
        """Set priorities to ``(raw + eps)^alpha``; of equal slots the last wins.

        Args:
            index: slots, int64 ``[n]``; negative ones are skipped.
            raw: finite and >= 0, ``[n]``.
            generation: int64 ``[n]``; rows that have another one by now are skipped, and so are rows that are gone.
            alpha: exponent >= 0.
            eps: >= 0.

        Returns:
            How many rows were set.

        Raises:
            ReplayBufferError: a priority is negative or not finite, or a slot holds no row. Nothing was set then.
        """
        slots = _int64(index)
        values = raw.detach().to(device="cpu", dtype=torch.float64).contiguous()
        written = None if generation is None else _int64(generation)
        if values.shape != slots.shape or (written is not None and written.shape != slots.shape):
            shapes = [list(x.shape) for x in (slots, values) if x is not None]
            raise ReplayBufferError(
                f"slots, priorities and generations must be [n] each, got {shapes}"
                + ("" if written is None else f" and {list(written.shape)}")
            )
        return self._engine.update(self.memory, slots, values, written, alpha, eps)

    def sample(
        self, n: int, seed: int, *, beta: float = 0.0, stratified: bool = True, dtype: torch.dtype = torch.float32
    ) -> Draw:
        """Draw slots in proportion to their stored priorities p.

        Args:
            n: how many.
            seed: equal seeds give equal draws from equal trees.
            beta: the weights are ``(p / p_min)^-beta``, p_min the least priority above zero in the tree: at most 1.
            stratified: one draw from each n-th of the sum, in random order; otherwise independent draws.
            dtype: of the weights.

        Raises:
            ReplayBufferError: no row has a priority above zero.
        """
        return self._engine.sample(self.memory, n, seed, stratified, beta, dtype)

    def stats(self) -> TreeStats:
        """Sum, extremes and the number of live slots."""
        return self._engine.stats(self.memory)

    def clear(self) -> None:
        """Forget all rows; generations go on, so that samples of the rows that are gone stay out of date."""
        self._engine.clear(self.memory)

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """Stored priorities and generations of the live slots, and the largest priority ever."""
        stats = self.stats()
        priority, generation = self._engine.read(self.memory, stats.live)
        return {"priority": priority, "generation": generation, "largest_ever": stats.largest_ever}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take over such a state as a copy.

        Raises:
            CheckpointError: it is damaged.
        """
        priority = torch.as_tensor(state_dict["priority"], dtype=torch.float64).contiguous()
        generation = _int64(torch.as_tensor(state_dict["generation"]))
        if priority.ndim != 1 or priority.shape != generation.shape:
            raise CheckpointError(
                f"priorities {list(priority.shape)} and generations {list(generation.shape)} of a state must be "
                "[n] each"
            )
        self._reserve(priority.numel())
        self._engine.load(self.memory, priority, generation, float(state_dict["largest_ever"]))

    # ------------------------------------------------------------------------------------------------ memory
    def _reserve(self, capacity: int) -> None:
        if capacity <= self.capacity:
            return
        if self.is_shared:
            raise ReplayBufferError(
                f"slot {capacity - 1} is beyond the {self.capacity} slots of these priorities, which cannot grow once "
                "they are shared: use a larger max_capacity, or with lanes write the first rows before share()"
            )
        grown = min(max(capacity, 2 * self.capacity) if capacity > _SMALL else capacity, MAX_CAPACITY)
        memory, state = new_memory(grown), self.state_dict()
        words = HEADER_WORDS + LEAF_WORDS * tree_blocks(self.capacity)[0]
        memory[HEADER_WORDS:words] = self.memory[HEADER_WORDS:words]  # generations of slots without a row, too
        self._engine.load(memory, state["priority"], state["generation"], state["largest_ever"])
        self.memory, self.capacity = memory, grown

    @property
    def is_shared(self) -> bool:
        """Whether other processes may work on the same tree."""
        return self.memory.is_shared()

    def share(self) -> None:
        """Move the tree to shared memory, before it is handed to other processes and while no other thread uses it.

        Processes that it is handed to afterwards, forked or spawned, work on the same tree.
        """
        if self.is_shared:
            return
        self.memory.share_memory_()
        if isinstance(self._engine, ReferenceEngine):
            self._engine = ReferenceEngine(multiprocessing.get_context("spawn").Lock())

    def __getstate__(self) -> dict[str, Any]:
        if not self.is_shared:  # a copy: handing a tensor to a process would share it
            state = self.state_dict()
            return {
                "capacity": self.capacity,
                "state": {**state, **{name: sent(state[name]) for name in ("priority", "generation")}},
            }
        lock = self._engine.lock if isinstance(self._engine, ReferenceEngine) else None
        return {"capacity": self.capacity, "memory": self.memory, "lock": lock}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.capacity = state["capacity"]
        if "memory" in state and state["memory"].is_shared():
            self.memory = state["memory"]
            self._engine = _engine(state["lock"])
            return
        self._engine = _engine(None)
        if "state" in state:
            self.memory = new_memory(self.capacity)
            packed = state["state"]
            self.load_state_dict({**packed, **{name: received(packed[name]) for name in ("priority", "generation")}})
            return
        # A copy of a shared tree, made while it may have been in use.
        self.memory = state["memory"]
        self.memory[LOCK_WORD] = 0
        self.load_state_dict(self.state_dict())


def _engine(lock: Any) -> Engine:
    """The kernels; without them the twin, with a lock of its own unless it is given one that processes share."""
    return native_engine() or ReferenceEngine(threading.Lock() if lock is None else lock)


def _int64(index: Tensor) -> Tensor:
    if index.dtype == torch.int64 and index.is_cpu and index.is_contiguous():
        return index
    return index.to(device="cpu", dtype=torch.int64).contiguous()
