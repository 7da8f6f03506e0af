"""PrioritizedSampler: draws rows in proportion to priorities, with weights that correct for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_buffers.trees.priority_tree import PriorityTree
from rl_core.buffers import Sampler, Storage
from rl_core.errors import ReplayBufferError

__all__ = ["PrioritizedSampler"]


def _median(values: Tensor) -> Tensor:
    return values.median(dim=1).values


_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda values: values.amax(dim=1),
    "min": lambda values: values.amin(dim=1),
    "mean": lambda values: values.mean(dim=1),
    "median": _median,
}


class PrioritizedSampler(Sampler):
    """Draws row i with probability P(i) = p_i / sum_j p_j where p_i = (raw_i + eps)^alpha.

    Each sample comes with "priority_weight", the importance weights ``w_i = (p_i / p_min)^-beta``: these are the
    ``(N P(i))^-beta`` of the paper divided by the largest of them in the whole buffer, so they are at most 1 and rows
    keep their weight from batch to batch. It also comes with "index_generation": how often each slot had been written.
    Handed back to :meth:`update_priority`, it keeps priorities of rows that were overwritten meanwhile from reaching
    their successors.

    New rows, and rows that are overwritten in place, get the largest priority of the other rows that are there (1 at
    first), so that an outlier counts for as long as it lives. Priorities are raw on the outside; a new `alpha` acts on
    priorities set from then on, a new `beta` on the next sample.

    Args:
        max_capacity: the number of rows to make room for; more is made when the storage is larger.
        alpha: exponent >= 0; 0 draws uniformly.
        beta: exponent >= 0 of the weights; 1 corrects in full.
        eps: added to raw priorities, >= 0. With 0, rows of priority 0 are never drawn.
        dtype: of the weights. Priorities are kept in double precision in any case.
        reduction: how several priorities of one row become one: "max", "min", "mean" or "median".
        max_priority_within_buffer: ``False`` gives new rows the largest priority that was ever set, as TorchRL does.
        stratified: draw once from each of B equal parts of the sum (Schaul et al., appendix B.2.1), in random order;
            ``False`` draws independently. Frequencies are the same, stratified ones vary less.

    Paper:
        Schaul, Quan, Antonoglou, Silver (2016), Prioritized Experience Replay, section 3.3-3.4, arXiv:1511.05952.

    Example:
        >>> from rl_buffers import LazyTensorStorage, ReplayBuffer
        >>> sampler = PrioritizedSampler(4, alpha=0.5, beta=1.0, eps=0.0)
        >>> buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=15)
        >>> _ = buffer.extend(torch.arange(4))
        >>> buffer.update_priority(torch.arange(4), torch.tensor([1.0, 4.0, 16.0, 64.0]))
        >>> rows, info = buffer.sample(return_info=True)
        >>> torch.bincount(rows), info["priority_weight"][rows == 3][0]
        (tensor([1, 2, 4, 8]), tensor(0.1250))
    """

    uses_priorities = True

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        reduction: str = "max",
        max_priority_within_buffer: bool = True,
        *,
        stratified: bool = True,
    ) -> None:
        if reduction not in _REDUCTIONS:
            raise ReplayBufferError(f"reduction must be one of {', '.join(_REDUCTIONS)}, got {reduction!r}")
        if not dtype.is_floating_point:
            raise ReplayBufferError(f"dtype is that of the weights, a floating-point one; got {dtype}")
        self.alpha, self.beta, self.eps = alpha, beta, eps
        self.dtype = dtype
        self.reduction = reduction
        self.max_priority_within_buffer = max_priority_within_buffer
        self.stratified = stratified
        self.tree = PriorityTree(max_capacity)

    @property
    def alpha(self) -> float:
        """Exponent of priorities that are set from now on."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._alpha = _exponent("alpha", value)

    @property
    def beta(self) -> float:
        """Exponent of the weights."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = _exponent("beta", value)

    @property
    def eps(self) -> float:
        """What is added to raw priorities."""
        return self._eps

    @eps.setter
    def eps(self, value: float) -> None:
        self._eps = _exponent("eps", value)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """`batch_size` slots, int64 ``[B]``, with "priority_weight" ``[B]`` and "index_generation" int64 ``[B]``.

        Raises:
            ReplayBufferError: the storage is empty, or no row has a priority above zero.
        """
        if len(storage) == 0:
            raise ReplayBufferError("the storage is empty: add or extend before sampling")
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator))
        index, weight, generation = self.tree.sample(
            batch_size, seed, beta=self._beta, stratified=self.stratified, dtype=self.dtype
        )
        return index, {"priority_weight": weight, "index_generation": generation}

    def extend(self, index: Tensor) -> None:
        """Give newly written rows the default priority and their next generation."""
        self.tree.write(index, alpha=self._alpha, eps=self._eps, within=self.max_priority_within_buffer)

    def mark_update(self, index: Tensor) -> None:
        """Treat rows that were changed in place as new ones."""
        self.extend(index)

    def update_priority(self, index: Tensor, priority: Tensor, generation: Tensor | None = None) -> None:
        """Set raw priorities of rows.

        Args:
            index: slots, int64 ``[n]``; negative ones are skipped, and of equal ones the last counts.
            priority: finite and >= 0, ``[n]`` or ``[n, ...]``, which is reduced row by row.
            generation: the "index_generation" of the sample the priorities are for, int64 ``[n]``; rows written since
                then keep their priorities.

        Raises:
            ReplayBufferError: a priority is negative or not finite, or a slot holds no row; nothing was set then.
        """
        if priority.ndim > 1:
            values = priority.detach().flatten(1)
            values = values if values.is_floating_point() else values.double()
            priority = values[:, 0] if values.shape[1] == 1 else _REDUCTIONS[self.reduction](values)
        self.tree.update(index, priority, generation, alpha=self._alpha, eps=self._eps)

    def empty(self) -> None:
        """Forget all rows."""
        self.tree.clear()

    def share(self) -> None:
        """Let processes that get this sampler from now on, forked or spawned, work on the same priorities."""
        self.tree.share()

    def state_dict(self) -> dict[str, Any]:
        """Priorities, generations and exponents."""
        return {"alpha": self._alpha, "beta": self._beta, "eps": self._eps, **self.tree.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on with the saved priorities and exponents."""
        self.alpha, self.beta, self.eps = (float(state_dict[name]) for name in ("alpha", "beta", "eps"))
        self.tree.load_state_dict({name: state_dict[name] for name in ("priority", "generation", "largest_ever")})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self._alpha}, beta={self._beta}, eps={self._eps})"


def _exponent(name: str, value: float) -> float:
    number = float(value)
    if not (math.isfinite(number) and number >= 0):
        raise ReplayBufferError(f"{name} must be a finite number >= 0, got {value}")
    return number
