"""Endless, resumable streams of blocks of samples: from sequences, iterables and dataloaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase

from rl_core.errors import CheckpointError, SpecError

__all__ = [
    "Block",
    "BlockSource",
    "IndexedData",
    "IterableSource",
    "LoaderSource",
    "Sample",
    "SequenceSource",
    "samples_of",
]

Sample = dict[str, Any]
Block = list[Sample]


@runtime_checkable
class IndexedData(Protocol):
    """Data with a length and an index: a list, a torch data set, a ``datasets.Dataset``."""

    def __len__(self) -> int:
        """The number of samples."""

    def __getitem__(self, index: Any, /) -> Any:
        """One sample."""


class BlockSource(Protocol):
    """Blocks of samples without end; its state says where the next block begins."""

    def next_block(self) -> Block:
        """The next samples."""

    def reseed(self, seed: int) -> None:
        """Begin anew, in the order of another seed."""

    def state_dict(self) -> dict[str, int]:
        """Where the next block begins."""

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on there."""


class SequenceSource:
    """Samples of a sequence, epoch after epoch, each epoch in an order of its own.

    The order of epoch e is a permutation drawn from the generator with seed ``seed + e``, so a place in the stream is
    two numbers. Blocks run over the ends of epochs.

    Args:
        dataset: with a length and an index.
        block: samples per block.
        shuffle: draw an order; else that of the data set.
        seed: of the orders.

    Raises:
        SpecError: the data set is empty.
    """

    def __init__(self, dataset: IndexedData, *, block: int, shuffle: bool, seed: int) -> None:
        if not len(dataset):
            raise SpecError("the data set is empty; it needs at least one sample")
        self.dataset, self.block, self.shuffle, self.seed = dataset, block, shuffle, seed
        self.epoch, self.place = 0, 0
        self._order: tuple[int, list[int]] | None = None

    def _index(self) -> int:
        if not self.shuffle:
            return self.place
        if self._order is None or self._order[0] != self.epoch:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            self._order = (self.epoch, torch.randperm(len(self.dataset), generator=generator).tolist())
        return self._order[1][self.place]

    def next_block(self) -> Block:
        """The next ``block`` samples."""
        samples = []
        for _ in range(self.block):
            samples.append(_as_sample(self.dataset[self._index()]))
            self.place += 1
            if self.place == len(self.dataset):
                self.epoch, self.place = self.epoch + 1, 0
        return samples

    def reseed(self, seed: int) -> None:
        """Begin anew, in the order of another seed."""
        self.seed, self.epoch, self.place, self._order = seed, 0, 0, None

    def state_dict(self) -> dict[str, int]:
        """Seed, epoch and place, and the length of the data set for a check."""
        return {"seed": self.seed, "epoch": self.epoch, "place": self.place, "length": len(self.dataset)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on where the state was taken.

        Raises:
            CheckpointError: the data set has another length than the one of the state.
        """
        if state_dict["length"] != len(self.dataset):
            raise CheckpointError(
                f"the data set has {len(self.dataset)} samples, the saved position is one of {state_dict['length']}; "
                "resume with the same data set"
            )
        self.seed, self.epoch, self.place = (state_dict[name] for name in ("seed", "epoch", "place"))
        self._order = None


class LoaderSource:
    """Blocks of an iterable of batches (a dataloader), begun anew when it ends.

    Its order is the iterable's own; a resumed stream skips what was read in the current pass.

    Args:
        loader: gives batches: a dict of columns, a list of samples, a TensorDict ``[b]``, or one sample.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.epoch, self.place = 0, 0
        self._iterator: Iterator[Any] | None = None

    def next_block(self) -> Block:
        """The samples of the next batch.

        Raises:
            SpecError: the iterable gives nothing.
        """
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.loader)
            for batch in self._iterator:
                self.place += 1
                return samples_of(batch)
            self._iterator = None
            self.epoch, self.place = self.epoch + 1, 0
        raise SpecError(
            f"the {type(self.loader).__name__} gives no batch when it is iterated again: it is empty, or a one-time "
            "iterator; pass a list, a DataLoader, or dataloader_factory=..."
        )

    def reseed(self, seed: int) -> None:
        """Begin anew; the order is the iterable's own."""
        self.epoch, self.place, self._iterator = 0, 0, None

    def state_dict(self) -> dict[str, int]:
        """How many passes, and batches of this pass, were read."""
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on after the batches that were read.

        Raises:
            CheckpointError: the iterable has fewer batches than were read.
        """
        self.epoch, self.place = state_dict["epoch"], state_dict["place"]
        self._iterator = iter(self.loader)
        for read in range(self.place):
            if next(self._iterator, None) is None:
                raise CheckpointError(
                    f"the saved position is after {self.place} batches, the {type(self.loader).__name__} gives {read}"
                )


class IterableSource(LoaderSource):
    """Blocks of ``block`` samples of an iterable of samples."""

    def __init__(self, dataset: Iterable[Any], *, block: int) -> None:
        super().__init__(dataset)
        self.block = block

    def next_block(self) -> Block:
        """The next ``block`` samples; they run over the end of a pass."""
        samples: Block = []
        while len(samples) < self.block:
            samples += super().next_block()
        return samples


def _as_sample(item: Any) -> Sample:
    if isinstance(item, str):
        return {"query": item}
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, TensorDictBase):
        return {str(name): _plain(value) for name, value in item.items()}
    raise SpecError(f"a sample is a dict of columns or a text, got {type(item).__name__}: {item!r:.80}")


def _plain(value: Any) -> Any:
    return value.tolist() if type(value).__name__ == "NonTensorStack" else getattr(value, "data", value)


def samples_of(batch: Any) -> Block:
    """The samples of one batch of a dataloader.

    Raises:
        SpecError: columns of different lengths, or a batch of an unknown kind.
    """
    if isinstance(batch, (list, tuple)):
        return [_as_sample(item) for item in batch]
    if isinstance(batch, TensorDictBase):
        return [_as_sample(row) for row in batch.unbind(0)] if batch.batch_dims else [_as_sample(batch)]
    if isinstance(batch, Mapping):
        columns = {name: value for name, value in batch.items()}
        sized = [
            not isinstance(value, str) and isinstance(value, (list, tuple, torch.Tensor)) for value in columns.values()
        ]
        if not all(sized) or not columns:
            return [_as_sample(batch)]
        lengths = {name: len(value) for name, value in columns.items()}
        if len(set(lengths.values())) != 1:
            raise SpecError(f"the columns of a batch differ in length: {lengths}; give one value per sample")
        return [{name: value[i] for name, value in columns.items()} for i in range(next(iter(lengths.values())))]
    return [_as_sample(batch)]
