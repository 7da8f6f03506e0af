"""OfflineDataset: what every dataset is, a replay buffer of transitions with a report of how they were read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_buffers.datasets.cache import Converted, Origin
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.layout import as_tensordict
from rl_buffers.datasets.mapping import map_rows
from rl_buffers.datasets.padded import pad_episodes
from rl_buffers.datasets.report import DatasetReport
from rl_buffers.storages.tensor_storage import TensorStorage
from rl_buffers.tensordict_buffer import TensorDictReplayBuffer
from rl_buffers.writers.immutable import ImmutableDatasetWriter
from rl_core.buffers import Sampler, Storage, Writer
from rl_core.transforms import Transform

__all__ = ["OfflineDataset"]


class OfflineDataset(TensorDictReplayBuffer):
    """A :class:`~rl_buffers.TensorDictReplayBuffer` of a dataset's transitions.

    Rows have batch size ``[T]``: "observation" (or the entries of a dict of observations), "action", their ("next",
    ...) with "reward", "done", "terminated" and "truncated", and the number of the episode, ("collector", "traj_ids").
    The next observation of an episode's last transition is the true one, never the next episode's.

    Args:
        data: the converted rows.
        batch_size: default of :meth:`sample`.
        sampler: which rows make a batch; default: uniform with replacement.
        writer: default: one that refuses, :class:`~rl_buffers.ImmutableDatasetWriter`.
        collate_fn: see :class:`~rl_buffers.ReplayBuffer`, as the next three.
        pin_memory: give samples in pinned memory.
        prefetch: how many samples are drawn ahead.
        transform: applied to each sample.
        split_trajs: keep one row per episode, ``[N, T_max]``, padded with zeros, in memory; ("collector", "mask") tells
            transitions from padding. A batch then holds `batch_size` episodes.
        storage: holds the rows instead of the leaves of `data`.

    Attributes:
        report: counts of episodes, and what was left out of the files; ``print(dataset.report)``.
        metadata: what the files say about themselves.
        origin: "files" where they were read now, "cache" where the rows of an earlier reading are mapped.
    """

    report: DatasetReport
    metadata: Mapping[str, Any]
    origin: Origin

    def __init__(
        self,
        data: Converted,
        batch_size: int | None = None,
        *,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
        split_trajs: bool = False,
        storage: Storage | None = None,
    ) -> None:
        if data.report.transitions == 0:
            raise DatasetError(f"no transition is left:\n{data.report}")
        self.report, self.metadata, self.origin = data.report, data.metadata, data.origin
        if storage is None:
            rows = pad_episodes(data.leaves) if split_trajs else as_tensordict(data.leaves)
            storage = TensorStorage(rows)
        super().__init__(
            storage=storage,
            sampler=sampler,
            writer=ImmutableDatasetWriter() if writer is None else writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            batch_size=batch_size,
        )

    def preprocess(
        self,
        fn: Callable[[TensorDict], TensorDictBase],
        num_workers: int = 0,
        *,
        chunksize: int = 1000,
        num_frames: int | None = None,
        dest: str | Path | None = None,
        mp_start_method: str = "spawn",
    ) -> TensorStorage:
        """What a function makes of the rows, chunk by chunk; the dataset stays as it is.

        Args:
            fn: takes and returns a TensorDict of rows ``[n, ...]``; it may return more or fewer rows, or other entries.
            num_workers: processes that share the chunks; `fn` is pickled then. 0: this process.
            chunksize: rows of a chunk.
            num_frames: take only so many rows, from the first.
            dest: a folder for the result, which is then mapped; default: it is kept in memory.
            mp_start_method: how processes start.

        Returns:
            A storage for another buffer: ``TensorDictReplayBuffer(storage=dataset.preprocess(fn), batch_size=32)``.

        Raises:
            DatasetError: `fn` fails, for some rows or by returning something else.
        """
        rows = len(self) if num_frames is None else min(num_frames, len(self))
        chunks = (self.storage.get(slots) for slots in _chunks(rows, chunksize))
        target = None if dest is None else Path(dest)
        return TensorStorage(map_rows(fn, chunks, chunksize, num_workers, target, mp_start_method))


def _chunks(rows: int, chunksize: int) -> tuple[torch.Tensor, ...]:
    if chunksize < 1:
        raise DatasetError(f"chunksize is at least 1, got {chunksize}")
    return torch.arange(rows).split(chunksize)
