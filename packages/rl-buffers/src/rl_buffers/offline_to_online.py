"""OfflineToOnlineReplayBuffer: batches of which one part comes from a dataset and the rest from new experience."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.buffer import ReplayBuffer
from rl_buffers.group import BufferGroup, Part, joined_info
from rl_buffers.storages.lazy_tensor import LazyTensorStorage
from rl_buffers.storages.tensor_storage import TensorStorage
from rl_buffers.tensordict_buffer import TensorDictReplayBuffer
from rl_buffers.writers.immutable import ImmutableDatasetWriter
from rl_core.buffers import Sampler, Storage
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.keys import Key
from rl_core.transforms import Transform

__all__ = ["OfflineToOnlineReplayBuffer", "prefill_replay_buffer"]

_OFFLINE, _ONLINE = 0, 1


class OfflineToOnlineReplayBuffer(BufferGroup):
    """Mixes a dataset, which is only read, and an online buffer, which all writes go to.

    A batch ``[B]`` has ``round(B * offline_fraction)`` rows of the dataset, which come first; as long as nothing was
    written it has only those. "index" is int64 ``[B, 2]``: 0 (offline) or 1 (online), and the slot there. Both must
    have the same entries.

    Args:
        offline_dataset: a buffer such as an :class:`OfflineDataset`, or a TensorDict of rows.
        online_storage: where new rows go.
        online_capacity: in its place, the number of rows of a :class:`LazyTensorStorage`.
        offline_fraction: the part of a batch that comes from the dataset, in [0, 1]; see :meth:`anneal`.
        batch_size: default of :meth:`sample`.
        transform: applied to each batch, its inverse to what is written.
        online_sampler: which new rows are drawn; default: all with the same probability.
        generator: seeds a generator for each of the two.
        priority_key: the entry that holds raw priorities.

    Example:
        >>> from tensordict import TensorDict
        >>> buffer = OfflineToOnlineReplayBuffer(
        ...     TensorDict({"x": torch.zeros(50)}, [50]), online_capacity=100, offline_fraction=0.25, batch_size=8
        ... )
        >>> _ = buffer.extend(TensorDict({"x": torch.ones(5)}, [5]))
        >>> buffer.sample()["x"]
        tensor([0., 0., 1., 1., 1., 1., 1., 1.])
        >>> buffer.anneal(step=500, total=1000), buffer.sample()["x"].sum()
        (0.125, tensor(7.))
    """

    _row_dims = 1

    def __init__(
        self,
        offline_dataset: ReplayBuffer | TensorDictBase,
        *,
        online_storage: Storage | None = None,
        online_capacity: int | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
        online_sampler: Sampler | None = None,
        generator: torch.Generator | None = None,
        priority_key: Key = "td_error",
    ) -> None:
        if (online_storage is None) == (online_capacity is None):
            raise ReplayBufferError("new rows need either online_storage or online_capacity")
        storage = LazyTensorStorage(int(online_capacity or 0)) if online_storage is None else online_storage
        if isinstance(offline_dataset, TensorDictBase):
            offline_dataset = TensorDictReplayBuffer(
                storage=TensorStorage(offline_dataset), writer=ImmutableDatasetWriter()
            )
        if not isinstance(offline_dataset, ReplayBuffer):
            raise ReplayBufferError(
                f"offline_dataset is a replay buffer or a TensorDict of rows, got {type(offline_dataset).__name__}"
            )
        online = TensorDictReplayBuffer(storage=storage, sampler=online_sampler, priority_key=priority_key)
        self.offline_fraction = offline_fraction
        self._first_fraction = self.offline_fraction
        super().__init__(
            [offline_dataset, online],
            transform=transform,
            batch_size=batch_size,
            generator=generator,
            priority_key=priority_key,
        )

    @property
    def offline(self) -> ReplayBuffer:
        """The dataset."""
        return self.buffers[_OFFLINE]

    @property
    def online(self) -> ReplayBuffer:
        """The buffer of new rows."""
        return self.buffers[_ONLINE]

    @property
    def offline_fraction(self) -> float:
        """The part of a batch that comes from the dataset."""
        return self._fraction

    @offline_fraction.setter
    def offline_fraction(self, value: float) -> None:
        if not 0 <= value <= 1:
            raise ReplayBufferError(f"offline_fraction is in [0, 1], got {value}")
        self._fraction = float(value)

    def anneal(self, step: int, total: int) -> float:
        """Let the part of the dataset go down in a straight line, from the first fraction at 0 to none at `total`.

        Returns:
            The fraction at `step`.
        """
        if total < 1 or step < 0:
            raise ReplayBufferError(f"anneal needs step >= 0 and total >= 1, got {step} and {total}")
        self.offline_fraction = self._first_fraction * (1 - min(1.0, step / total))
        return self.offline_fraction

    def add(self, data: TensorDictBase) -> Any:
        """Store one new row."""
        rows = self._inverse(data)
        return None if rows is None else self.online.add(rows)

    def extend(self, data: TensorDictBase) -> Tensor:
        """Store new rows; returns their slots in :attr:`online`."""
        rows = self._inverse(data)
        return torch.empty(0, dtype=torch.int64) if rows is None else self.online.extend(rows)

    def _inverse(self, data: TensorDictBase) -> TensorDictBase | None:
        """What is to be stored, if anything: without the index that a sample carries."""
        data = data.exclude("index") if "index" in data else data
        return self.transform.inv(data) if len(self.transform) else data

    def empty(self) -> None:
        """Forget the new rows; the dataset stays."""
        self.online.empty()

    def _joined(self, size: int) -> Part:
        offline = size if len(self.online) == 0 else int(size * self.offline_fraction + 0.5)
        parts = [self._part(number, n) for number, n in ((_OFFLINE, offline), (_ONLINE, size - offline)) if n]
        batches = [batch for batch, _ in parts]
        for batch in batches:
            if not isinstance(batch, TensorDictBase):
                raise ReplayBufferError(f"datasets and new rows are mixed as TensorDicts, got {type(batch).__name__}")
        batches = [_without(batch, parts) for batch in batches]
        if len(batches) > 1:
            _check_same_entries(*batches)
        return (batches[0] if len(batches) == 1 else torch.cat(batches, 0)), joined_info(parts, torch.cat)

    def _state_of(self, number: int) -> dict[str, Any]:
        """Without the dataset's rows, which are where they came from."""
        buffer = self.buffers[number]
        if number == _ONLINE:
            return buffer.state_dict()
        with buffer._lock:
            return {**buffer.state_dict(), "storage": {"rows": len(buffer)}}

    def _load_state_of(self, number: int, state: Mapping[str, Any]) -> None:
        buffer = self.buffers[number]
        if number == _ONLINE:
            buffer.load_state_dict(state)
            return
        if state["storage"]["rows"] != len(buffer):
            raise CheckpointError(
                f"the state is of a dataset with {state['storage']['rows']} rows, this one has {len(buffer)}"
            )
        restore = buffer._sampling_from(state)
        with buffer._lock:
            buffer._check_kinds(state)
            buffer._load_small_parts(state)
        restore()

    def state_dict(self) -> dict[str, Any]:
        """The new rows, and where sampling was; not the dataset's rows, which must be there when it is loaded."""
        return {**super().state_dict(), "fractions": [self._first_fraction, self._fraction]}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state; the dataset must have as many rows as the saved one.

        Raises:
            CheckpointError: it has not, or the state cannot be loaded.
        """
        super().load_state_dict(state_dict)
        self._first_fraction, self._fraction = (float(value) for value in state_dict["fractions"])

    def __repr__(self) -> str:
        return f"OfflineToOnlineReplayBuffer({self.offline!r}, {self.online!r}, offline_fraction={self._fraction:g})"


def _without(batch: TensorDictBase, parts: list[Part]) -> TensorDictBase:
    """A batch without what its buffer told of its rows, which is joined apart."""
    told = {name for _, info in parts for name in info}
    return batch.exclude(*told & set(batch.keys()))


def _check_same_entries(offline: TensorDictBase, online: TensorDictBase) -> None:
    ours, theirs = (set(batch.keys(True, True)) for batch in (offline, online))
    if ours != theirs:
        raise ReplayBufferError(
            f"the dataset and the new rows have other entries: only the dataset has {sorted(map(str, ours - theirs))}, "
            f"only the new rows {sorted(map(str, theirs - ours))}. Leave these out where they are written or read."
        )


def prefill_replay_buffer(
    buffer: Any,
    data: ReplayBuffer | TensorDictBase | Iterable[TensorDictBase],
    num_rows: int | None = None,
    *,
    chunk_size: int = 1000,
) -> int:
    """Copy rows into a buffer before training starts.

    Args:
        buffer: anything with ``extend``.
        data: a buffer or dataset, a TensorDict of rows, or TensorDicts one after the other.
        num_rows: copy only so many, from the first; default: all.
        chunk_size: how many are read at once.

    Returns:
        How many rows were copied.

    Raises:
        ReplayBufferError: there are fewer than `num_rows`; those that there are were copied.

    >>> from rl_buffers import LazyTensorStorage
    >>> from tensordict import TensorDict
    >>> buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    >>> prefill_replay_buffer(buffer, TensorDict({"x": torch.arange(30)}, [30]), 4), len(buffer)
    (4, 4)
    """
    if num_rows is not None and num_rows < 0:
        raise ReplayBufferError(f"num_rows must be >= 0, got {num_rows}")
    copied = 0
    for chunk in _chunks(data, chunk_size):
        left = None if num_rows is None else num_rows - copied
        if left == 0:
            break
        rows = chunk if left is None else chunk[:left]
        buffer.extend(rows)
        copied += rows.shape[0]
    if num_rows is not None and copied < num_rows:
        raise ReplayBufferError(f"{num_rows} rows were asked for, there are {copied}")
    return copied


def _chunks(data: ReplayBuffer | TensorDictBase | Iterable[TensorDictBase], size: int) -> Iterable[Any]:
    if isinstance(data, (ReplayBuffer, TensorDictBase)):
        return (data[start : start + size] for start in range(0, len(data), size))
    return data
