"""TensorDictReplayBuffer: samples are TensorDicts that carry their slots, and priorities are read from TensorDicts."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.buffer import ReplayBuffer
from rl_buffers.slots import Written
from rl_buffers.writers.round_robin import TensorDictRoundRobinWriter
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.keys import Key

__all__ = ["TensorDictReplayBuffer"]

_INDEX, _GENERATION, _WEIGHT = "index", "index_generation", "priority_weight"


class TensorDictReplayBuffer(ReplayBuffer):
    """A :class:`ReplayBuffer` of TensorDicts.

    Samples carry "index", the slots of their rows (int64 ``[B]``, or ``[B, ndim]`` with lanes; repeated over a sequence
    where rows are sequences), and what the sampler tells about each row, such as "priority_weight" and
    "index_generation". These entries are left out of data that are written, so that a sample can be stored again.

    Args:
        priority_key: the entry that holds raw priorities, written by losses.
        **kwargs: the arguments of :class:`ReplayBuffer`.

    Example:
        >>> from rl_buffers import LazyTensorStorage, SamplerWithoutReplacement
        >>> from tensordict import TensorDict
        >>> import torch
        >>> buffer = TensorDictReplayBuffer(
        ...     storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(), batch_size=5
        ... )
        >>> _ = buffer.extend(TensorDict({"x": torch.arange(10)}, [10]))
        >>> sorted(x for batch in buffer for x in batch["x"].tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    _default_writer = TensorDictRoundRobinWriter

    def __init__(self, *, priority_key: Key = "td_error", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.priority_key = priority_key
        self._takes_priorities = False  # while an extend is under way that takes them
        self._labels = {_INDEX, _GENERATION, _WEIGHT} if self.sampler.uses_priorities else {_INDEX}

    def extend(self, data: TensorDictBase, update_priority: bool | None = None) -> Tensor:
        """Store many rows; see :meth:`ReplayBuffer.extend`.

        Args:
            data: a TensorDict, or with a :class:`ListStorage` a list of them.
            update_priority: whether priorities in the data are used; default: if the sampler uses priorities and
                the data have :attr:`priority_key`.
        """
        self._await_insert()
        with self._lock:
            self._takes_priorities = update_priority is not False and self.sampler.uses_priorities
            try:
                return self._extend(self._rows_of(data))
            finally:
                self._takes_priorities = False

    def _stored(self, data: Any, written: Written) -> None:
        """Take the priorities of the rows that were written, which a transform may have chosen among those given."""
        if self._takes_priorities and isinstance(data, TensorDictBase):
            priority = data.get(self.priority_key, None)
            if priority is not None:
                self.update_priority(written.slots, priority.flatten(0, data.ndim - 1))

    def _labelled(self, batch: Any, index: Tensor, info: dict[str, Any]) -> Any:
        if not isinstance(batch, TensorDictBase):
            raise ReplayBufferError(
                "a TensorDictReplayBuffer samples TensorDicts, the storage and collate_fn gave a "
                f"{type(batch).__name__}: use ReplayBuffer for other data"
            )
        if batch.device is not None and batch.device.type != "cpu":
            index = index.to(batch.device)
        batch.set(_INDEX, _per_entry(index, batch))
        for name, value in info.items():
            if not isinstance(name, str) and batch.get(name, None) is value:  # the sampler has marked it in the batch
                continue
            if isinstance(value, Tensor) and value.shape[:1] == batch.shape[:1]:
                batch.set(name, _per_entry(value, batch))
                self._labels.add(name)
        return batch

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Take priorities from a sample that a loss has written them to.

        Where the sample has "index_generation", rows that were overwritten since it was drawn are left out.

        Args:
            data: a TensorDict with "index" and :attr:`priority_key`.

        Raises:
            KeyMissingError: one of the two is missing, although the sampler uses priorities.
        """
        if not self.sampler.uses_priorities:
            return
        index, priority = data.get(_INDEX, None), data.get(self.priority_key, None)
        if index is None or priority is None:
            missing = _INDEX if index is None else self.priority_key
            have = ", ".join(repr(key) for key in data.keys(True, True))
            raise KeyMissingError(
                f"a priority update needs {missing!r}; the data have {have}. 'index' comes with a sample "
                "of this buffer, priorities come from a loss: name their entry with priority_key=... of the buffer"
            )
        generation = data.get(_GENERATION, None)
        if data.ndim > 1:
            index = index.flatten(1, data.ndim - 1)[:, 0]
            generation = None if generation is None else generation.flatten(1)[:, 0]
        self.update_priority(index, priority, generation)

    def _rows_of(self, data: Any) -> Any:
        """Data without what a sample carries beside its rows."""
        if not isinstance(data, TensorDictBase):
            return data
        have = data.keys()
        there = [name for name in self._labels if name in have]
        return data.exclude(*there) if there else data


def _per_entry(value: Tensor, batch: TensorDictBase) -> Tensor:
    """A value per row ``[B, ...]`` repeated over the other batch dimensions where rows are whole sequences."""
    extra = batch.shape[1:]
    if not extra:
        return value
    return value.reshape(value.shape[0], *(1 for _ in extra), *value.shape[1:]).expand(*batch.shape, *value.shape[1:])
