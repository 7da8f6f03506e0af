"""BufferGroup: several buffers that are sampled, saved and emptied as one; rows are known by (buffer, slot)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.buffer import ReplayBuffer
from rl_buffers.inverted import Inverted
from rl_buffers.io import load_tree, save_tree
from rl_buffers.slots import as_slots
from rl_buffers.stats import BufferStats, added
from rl_core.errors import CheckpointError, KeyMissingError, ReplayBufferError
from rl_core.keys import Key
from rl_core.transforms import Compose, Transform

__all__ = ["BufferGroup", "Part", "joined_info"]

_INDEX, _GENERATION, _WEIGHT = "index", "index_generation", "priority_weight"

Part = tuple[Any, dict[str, Any]]
"""A batch of one buffer, and what is known of its rows: "index" is int64 ``[n, 2]``, (buffer, slot)."""


class BufferGroup:
    """What :class:`~rl_buffers.ReplayBufferEnsemble` and :class:`~rl_buffers.OfflineToOnlineReplayBuffer` share.

    Each buffer has its own lock, so that one can be written while another is sampled.

    Args:
        buffers: the buffers.
        transform: applied to each batch, after the buffers' own.
        batch_size: default of :meth:`sample`.
        generator: decides what is left to chance here, and seeds a generator for each buffer; default: torch's global
            one, and the buffers keep theirs.
        priority_key: the entry that holds raw priorities, written by losses.
    """

    _row_dims: int  # how many dimensions of a batch count rows

    def __init__(
        self,
        buffers: Sequence[ReplayBuffer],
        *,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None,
        batch_size: int | None,
        generator: torch.Generator | None,
        priority_key: Key,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ReplayBufferError(f"batch_size must be at least 1, got {batch_size}")
        self.buffers = list(buffers)
        self.batch_size = batch_size
        self.priority_key = priority_key
        self.transform = Compose()
        if transform is not None:
            self.append_transform(transform)
        self.set_rng(generator)

    def set_rng(self, generator: torch.Generator | None) -> None:
        """Draw from `generator`, and the buffers from new ones that it seeds."""
        self.generator = generator
        if generator is not None:
            for buffer in self.buffers:
                seed = int(torch.randint(2**62, (), generator=generator))
                buffer.set_rng(torch.Generator().manual_seed(seed))

    def append_transform(self, transform: Any, *, invert: bool = False) -> None:
        """Add a transform at the end."""
        self.transform.insert(len(self.transform), Inverted(transform) if invert else transform)
        self.transform.eval()

    # ------------------------------------------------------------------------------------------------ sampling
    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch, see the class; with `return_info` the pair of it and a dict with "index" (buffer, slot)."""
        size = self.batch_size if batch_size is None else batch_size
        if size is None or size < 1:
            raise ReplayBufferError(
                f"sample needs a batch size of at least 1, got {size}: pass it here or to the buffer"
            )
        batch, info = self._joined(size)
        if isinstance(batch, TensorDictBase):
            for name, value in info.items():
                batch.set(name, _spread(value, batch, self._row_dims))
        if len(self.transform):
            batch = self.transform(batch)
        return (batch, info) if return_info else batch

    def _joined(self, size: int) -> Part:
        raise NotImplementedError

    def _part(self, number: int, size: int) -> Part:
        """A batch of one buffer."""
        buffer = self.buffers[number]
        try:
            batch, info = buffer.sample(size, return_info=True)
        except ReplayBufferError as error:
            raise ReplayBufferError(f"buffer {number} of {len(self.buffers)}: {error}") from error
        lanes = buffer.storage.lane_shape
        slots = as_slots(info[_INDEX], len(buffer.storage), lanes)
        kept = {name: value for name, value in info.items() if _is_per_row(value, slots.numel())}
        return batch, {**kept, _INDEX: torch.stack([torch.full_like(slots, number), slots], -1)}

    def __iter__(self) -> Iterator[Any]:
        """Batches until one of the buffers has gone through its rows; without end where all samplers are endless."""
        if self.batch_size is None:
            raise ReplayBufferError("iteration needs a batch size: pass batch_size= to the buffer")
        for buffer in self.buffers:
            buffer._begin_epoch()
        return self._epoch()

    def _epoch(self) -> Iterator[Any]:
        while not any(buffer._ran_out for buffer in self.buffers):
            yield self.sample()

    # ------------------------------------------------------------------------------------------------ priorities
    def update_priority(self, index: Tensor, priority: Tensor, generation: Tensor | None = None) -> None:
        """Hand raw priorities to the buffers whose samplers use them.

        Args:
            index: (buffer, slot) as it comes with samples, int64 ``[..., 2]``.
            priority: with the same leading dimensions, or one number for all.
            generation: "index_generation" of the sample.
        """
        if index.shape[-1] != 2:
            raise ReplayBufferError(f"an index is (buffer, slot), of shape [..., 2]; got {list(index.shape)}")
        flat = index.reshape(-1, 2).to("cpu")
        values = torch.as_tensor(priority).detach()
        values = values.expand(len(flat)) if values.ndim == 0 else values.reshape(len(flat), -1)
        marks = None if generation is None else generation.reshape(-1)
        for number, buffer in enumerate(self.buffers):
            mine = flat[:, 0] == number
            if bool(mine.any()) and buffer.sampler.uses_priorities:
                there = mine.to(values.device)
                part = None if marks is None else marks[mine.to(marks.device)]
                buffer.update_priority(flat[mine, 1], values[there], part)

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Take priorities from a sample that a loss has written them to.

        Raises:
            KeyMissingError: "index" or :attr:`priority_key` is missing, although a sampler uses priorities.
        """
        if not any(buffer.sampler.uses_priorities for buffer in self.buffers):
            return
        index, priority = data.get(_INDEX, None), data.get(self.priority_key, None)
        if index is None or priority is None:
            missing = _INDEX if index is None else self.priority_key
            raise KeyMissingError(f"a priority update needs {missing!r}; the data have {sorted(map(str, data.keys()))}")
        self.update_priority(index, priority, data.get(_GENERATION, None))

    # ------------------------------------------------------------------------------------------------ rows
    def __len__(self) -> int:
        return sum(len(buffer) for buffer in self.buffers)

    @property
    def write_count(self) -> int:
        """How many rows were ever offered to the buffers."""
        return sum(buffer.write_count for buffer in self.buffers)

    def empty(self) -> None:
        """Forget all rows of all buffers."""
        for buffer in self.buffers:
            buffer.empty()

    def close(self) -> None:
        """End the threads of buffers that prefetch."""
        for buffer in self.buffers:
            buffer.close()

    def stats(self) -> BufferStats:
        """The sums of the buffers' counts."""
        each = [buffer.stats() for buffer in self.buffers]
        total = each[0]
        for other in each[1:]:
            total = added(total, other)
        return total

    # ------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> dict[str, Any]:
        """The buffers' states and the generator's."""
        return {
            "buffers": [self._state_of(number) for number in range(len(self.buffers))],
            "transform": dict(self.transform.state_dict()),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state as copies, buffer after buffer.

        Raises:
            CheckpointError: it has another number of buffers, or one of them cannot be loaded; those before it are.
        """
        states = state_dict["buffers"]
        if len(states) != len(self.buffers):
            raise CheckpointError(f"the state is of {len(states)} buffers, here are {len(self.buffers)}")
        for number, state in enumerate(states):
            self._load_state_of(number, state)
        self.transform.load_state_dict(state_dict["transform"])
        if state_dict["generator"] is not None:
            if self.generator is None:
                self.generator = torch.Generator()
            self.generator.set_state(state_dict["generator"].clone())

    def _state_of(self, number: int) -> dict[str, Any]:
        return self.buffers[number].state_dict()

    def _load_state_of(self, number: int, state: Mapping[str, Any]) -> None:
        self.buffers[number].load_state_dict(state)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state into folder `path`, without pickle and in one step."""
        save_tree(path, self.state_dict(), type(self).__name__)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read what :meth:`dumps` wrote; the folder may be deleted afterwards."""
        self.load_state_dict(load_tree(path, type(self).__name__))

    def save(self, path: str | os.PathLike[str]) -> None:
        """The same as :meth:`dumps`."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """The same as :meth:`loads`."""
        self.loads(path)

    def __getstate__(self) -> dict[str, Any]:
        state = None if self.generator is None else bytes(self.generator.get_state().tolist())
        return {**self.__dict__, "generator": state}  # torch's generator cannot be sent to a spawned process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["generator"] is not None:
            self.generator = torch.Generator()
            self.generator.set_state(torch.frombuffer(bytearray(state["generator"]), dtype=torch.uint8))


def _is_per_row(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.shape[:1] == (rows,)


def joined_info(parts: Sequence[Part], join: Callable[[list[Tensor]], Tensor]) -> dict[str, Any]:
    """What is known of the rows of several parts; where only some samplers give weights, the others' are 1.

    Args:
        parts: of the buffers.
        join: makes one tensor of one of each part.
    """
    names = list(dict.fromkeys(name for _, info in parts for name in info))
    joined: dict[str, Any] = {}
    for name in names:
        found = [info.get(name) for _, info in parts]
        if any(value is None for value in found):
            if name not in (_WEIGHT, _GENERATION):
                continue
            like = next(value for value in found if value is not None)
            fill = 1 if name == _WEIGHT else 0
            rows = [len(info[_INDEX]) for _, info in parts]
            found = [
                like.new_full((n, *like.shape[1:]), fill) if value is None else value
                for value, n in zip(found, rows, strict=True)
            ]
        joined[name] = join(found)  # type: ignore[arg-type]
    return joined


def _spread(value: Tensor, batch: TensorDictBase, rows: int) -> Tensor:
    """A value per row, repeated over the other batch dimensions where rows are sequences, on the batch's device."""
    extra = batch.shape[rows:]
    if extra:
        value = value.reshape(*value.shape[:rows], *(1 for _ in extra), *value.shape[rows:])
        value = value.expand(*batch.shape, *value.shape[rows + len(extra) :])
    return value if batch.device is None else value.to(batch.device)
