"""Prioritised replay buffers: the buffers of this package with a PrioritizedSampler as large as their storage."""

from __future__ import annotations

from typing import Any

import torch

from rl_buffers.buffer import ReplayBuffer
from rl_buffers.samplers.prioritized import PrioritizedSampler
from rl_buffers.tensordict_buffer import TensorDictReplayBuffer
from rl_core.buffers import Storage
from rl_core.keys import Key

__all__ = ["PrioritizedReplayBuffer", "TensorDictPrioritizedReplayBuffer"]

_DEFAULT_SIZE = 1000


class PrioritizedReplayBuffer(ReplayBuffer):
    """A :class:`ReplayBuffer` that draws rows by priority (see :class:`PrioritizedSampler`).

    Weights and what a priority update needs come with ``sample(return_info=True)``.

    Args:
        alpha: exponent of priorities.
        beta: exponent of the weights.
        eps: added to raw priorities.
        dtype: of the weights.
        storage: default ``ListStorage(1000)``.
        reduction: how several priorities of one row become one.
        max_priority_within_buffer: whether the default priority is the largest of the rows that are there.
        stratified: whether a batch takes one row of each B-th of the sum of priorities.
        **kwargs: the other arguments of :class:`ReplayBuffer`, without `sampler`.

    Example:
        >>> from rl_buffers import LazyTensorStorage
        >>> buffer = PrioritizedReplayBuffer(alpha=0.7, beta=0.5, storage=LazyTensorStorage(10), batch_size=4)
        >>> _ = buffer.extend(torch.arange(10))
        >>> rows, info = buffer.sample(return_info=True)
        >>> buffer.update_priority(info["index"], rows.float(), info["index_generation"])
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float32,
        storage: Storage | None = None,
        reduction: str = "max",
        max_priority_within_buffer: bool = True,
        stratified: bool = True,
        **kwargs: Any,
    ) -> None:
        capacity = _DEFAULT_SIZE if storage is None else storage.max_size
        sampler = PrioritizedSampler(
            capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer, stratified=stratified
        )
        super().__init__(storage=storage, sampler=sampler, **kwargs)


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A :class:`TensorDictReplayBuffer` that draws rows by priority (see :class:`PrioritizedSampler`).

    Samples carry "index", "priority_weight" and "index_generation". A loss writes :attr:`priority_key` into them, and
    :meth:`update_tensordict_priority` takes it from there; rows that were overwritten meanwhile keep their priority.
    Data with that entry bring the priorities of their rows along when they are written.

    Args:
        alpha: exponent of priorities.
        beta: exponent of the weights.
        priority_key: the entry that holds raw priorities.
        eps: added to raw priorities.
        storage: default ``ListStorage(1000)``.
        reduction: how several priorities of one row become one.
        dtype: of the weights.
        max_priority_within_buffer: whether the default priority is the largest of the rows that are there.
        stratified: whether a batch takes one row of each B-th of the sum of priorities.
        **kwargs: the other arguments of :class:`TensorDictReplayBuffer`, without `sampler`.

    Example:
        >>> from rl_buffers import LazyTensorStorage
        >>> from tensordict import TensorDict
        >>> buffer = TensorDictPrioritizedReplayBuffer(
        ...     alpha=0.7, beta=0.5, storage=LazyTensorStorage(10), batch_size=4
        ... )
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(10)}, [10]))
        >>> sample = buffer.sample()
        >>> sample["td_error"] = sample["x"].float()
        >>> buffer.update_tensordict_priority(sample)
        >>> sample["priority_weight"]
        tensor([1., 1., 1., 1.])
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: Key = "td_error",
        eps: float = 1e-8,
        storage: Storage | None = None,
        reduction: str = "max",
        dtype: torch.dtype = torch.float32,
        max_priority_within_buffer: bool = True,
        stratified: bool = True,
        **kwargs: Any,
    ) -> None:
        capacity = _DEFAULT_SIZE if storage is None else storage.max_size
        sampler = PrioritizedSampler(
            capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer, stratified=stratified
        )
        super().__init__(priority_key=priority_key, storage=storage, sampler=sampler, **kwargs)
