"""ReplayBufferEnsemble: batches of parts, each from one of several buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import Tensor

from rl_buffers.buffer import ReplayBuffer
from rl_buffers.group import BufferGroup, Part, joined_info
from rl_buffers.samplers.ensemble import SamplerEnsemble
from rl_buffers.storages.ensemble import StorageEnsemble
from rl_buffers.writers.ensemble import WriterEnsemble
from rl_core.errors import ReplayBufferError
from rl_core.keys import Key
from rl_core.transforms import Transform

__all__ = ["ReplayBufferEnsemble"]


class ReplayBufferEnsemble(BufferGroup):
    """Samples several buffers at once: a batch is ``[num_buffer_sampled, B / num_buffer_sampled]``, one buffer a part.

    Rows are written to one of the buffers, ``ensemble[i].extend(data)``. Samples carry "index", int64 ``[..., 2]``:
    the number of the buffer and the slot there, which :meth:`update_priority` understands.

    Args:
        *rbs: the buffers; or, in their place, the next three.
        storages: one storage for each buffer, a list or a :class:`StorageEnsemble`.
        samplers: as many samplers, a list or a :class:`SamplerEnsemble`, which then says what `p`,
            `sample_from_all` and `num_buffer_sampled` are.
        writers: as many writers, a list or a :class:`WriterEnsemble`.
        transform: applied to each batch, after the buffers' own transforms.
        batch_size: default of :meth:`sample`, a multiple of the number of parts.
        collate_fn: makes a batch of a list of parts; default: they are stacked.
        collate_fns: what the buffers that are made of storages get as `collate_fn`.
        p: probabilities of the buffers; default: all the same.
        sample_from_all: every batch has one part from each buffer, in their order.
        num_buffer_sampled: of how many parts a batch is, drawn with replacement; default: as many as buffers.
        generator: decides which buffers take part, and seeds a generator for each of them.
        priority_key: the entry that holds raw priorities.

    Example:
        >>> from rl_buffers import LazyTensorStorage, TensorDictReplayBuffer
        >>> from tensordict import TensorDict
        >>> buffers = [TensorDictReplayBuffer(storage=LazyTensorStorage(10)) for _ in range(2)]
        >>> ensemble = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=6)
        >>> for i in range(2):
        ...     _ = ensemble[i].extend(TensorDict({"x": torch.full((4,), i)}, [4]))
        >>> batch = ensemble.sample()
        >>> batch.batch_size, batch["x"].tolist(), batch["index"].shape
        (torch.Size([2, 3]), [[0, 0, 0], [1, 1, 1]], torch.Size([2, 3, 2]))
    """

    _row_dims = 2

    def __init__(
        self,
        *rbs: ReplayBuffer,
        storages: StorageEnsemble | Sequence[Any] | None = None,
        samplers: SamplerEnsemble | Sequence[Any] | None = None,
        writers: WriterEnsemble | Sequence[Any] | None = None,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        collate_fns: Sequence[Callable[[Any], Any] | None] | None = None,
        p: Sequence[float] | Tensor | None = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        generator: torch.Generator | None = None,
        priority_key: Key = "td_error",
    ) -> None:
        if bool(rbs) == (storages is not None):
            raise ReplayBufferError("an ensemble is made either of buffers, or of storages, samplers and writers")
        if rbs and (samplers is not None or writers is not None or collate_fns is not None):
            raise ReplayBufferError(
                "the buffers have samplers, writers and collate_fn already: leave these arguments out"
            )
        buffers = list(rbs) if storages is None else _made(storages, samplers, writers, collate_fns)
        if isinstance(samplers, SamplerEnsemble):
            if p is not None or sample_from_all or num_buffer_sampled is not None:
                raise ReplayBufferError(
                    "give p, sample_from_all and num_buffer_sampled to the SamplerEnsemble, or give a list of samplers"
                )
            self.samplers = samplers
        else:
            self.samplers = SamplerEnsemble(
                *(buffer.sampler for buffer in buffers),
                p=p,
                sample_from_all=sample_from_all,
                num_buffer_sampled=num_buffer_sampled,
            )
        if batch_size is not None:
            self.samplers.part_size(batch_size)
        self.collate_fn = collate_fn
        super().__init__(
            buffers, transform=transform, batch_size=batch_size, generator=generator, priority_key=priority_key
        )

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw from `generator`, and the buffers from new ones that it seeds."""
        super().set_rng(generator)
        self.samplers.generator = generator

    @property
    def storages(self) -> StorageEnsemble:
        """The buffers' storages."""
        return StorageEnsemble(*(buffer.storage for buffer in self.buffers))

    @property
    def writers(self) -> WriterEnsemble:
        """The buffers' writers."""
        return WriterEnsemble(*(buffer.writer for buffer in self.buffers))

    def __getitem__(self, number: int) -> ReplayBuffer:
        """One of the buffers."""
        return self.buffers[number]

    def add(self, data: Any) -> NoReturn:
        """Always an error: a row is written to one of the buffers."""
        raise ReplayBufferError("a row is written to one buffer of an ensemble: ensemble[i].add(data)")

    def extend(self, data: Any) -> NoReturn:
        """Always an error: rows are written to one of the buffers."""
        raise ReplayBufferError("rows are written to one buffer of an ensemble: ensemble[i].extend(data)")

    def _joined(self, size: int) -> Part:
        each = self.samplers.part_size(size)
        self.samplers.generator = self.generator
        parts = [self._part(number, each) for number in self.samplers.choose()]
        sizes = [len(info["index"]) for _, info in parts]
        if len(set(sizes)) > 1:
            raise ReplayBufferError(
                f"the buffers gave {sizes} rows for a part of {each}: use samplers that give whole batches "
                "(drop_last=True)"
            )
        batches = [batch for batch, _ in parts]
        return (_stacked if self.collate_fn is None else self.collate_fn)(batches), joined_info(parts, torch.stack)

    def __repr__(self) -> str:
        return f"ReplayBufferEnsemble({', '.join(map(repr, self.buffers))}, batch_size={self.batch_size})"


def _made(
    storages: Any, samplers: Any, writers: Any, collate_fns: Sequence[Callable[[Any], Any] | None] | None
) -> list[ReplayBuffer]:
    """A buffer for each storage."""
    n = len(list(storages))
    parts: dict[str, list[Any]] = {"storage": list(storages)}
    for name, given in (("sampler", samplers), ("writer", writers), ("collate_fn", collate_fns)):
        parts[name] = [None] * n if given is None else list(given)
        if len(parts[name]) != n:
            raise ReplayBufferError(f"{n} storages need {n} {name}s, got {len(parts[name])}")
    return [ReplayBuffer(**dict(zip(parts, values, strict=True))) for values in zip(*parts.values(), strict=True)]


def _stacked(batches: list[Any]) -> Any:
    """One batch ``[parts, rows]`` of parts ``[rows]``."""
    first = batches[0]
    if isinstance(first, TensorDictBase):
        return LazyStackedTensorDict.maybe_dense_stack(batches, 0)
    if isinstance(first, Tensor):
        return torch.stack(batches)
    if isinstance(first, dict):
        return {key: _stacked([batch[key] for batch in batches]) for key in first}
    return batches
