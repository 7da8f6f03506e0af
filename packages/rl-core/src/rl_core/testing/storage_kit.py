"""StorageKit: what every storage of a replay buffer must get right.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyStorage(StorageKit):
        def make(self, max_size):
            return MyStorage(max_size)
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rl_core.buffers import Span, Storage
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.testing.kit import Kit, since
from rl_core.testing.numbered_rows import assert_raises, numbered_rows, row_numbers

__all__ = ["StorageKit"]


class StorageKit(Kit):
    """Checks of a storage.

    Attributes:
        fixes_structure: whether the first write fixes keys, dtypes and shapes; no for storages of arbitrary objects.
    """

    fixes_structure: ClassVar[bool] = True

    def make(self, max_size: int) -> Storage:
        """A new, empty storage; to be written by the subclass."""
        raise NotImplementedError("define make(self, max_size) in your subclass of StorageKit")

    def _filled(self, n: int, max_size: int = 8) -> Storage:
        storage = self.make(max_size)
        block = storage.prepare(numbered_rows(0, n))
        assert block.steps == n, f"{n} rows were prepared, the block says {block.steps}"
        storage.write(block, [Span(0, n, 0)])
        return storage

    def _numbers(self, storage: Storage) -> list[int]:
        return row_numbers(storage.get(torch.arange(len(storage))))

    def test_preparing_writes_nothing(self) -> None:
        """``prepare`` leaves the rows alone."""
        storage = self.make(8)
        storage.prepare(numbered_rows(0, 3))
        assert len(storage) == 0

    def test_written_rows_come_back(self) -> None:
        """Each slot holds its row, with all its entries."""
        assert self._numbers(self._filled(5)) == [0, 1, 2, 3, 4]

    def test_rows_come_in_the_order_of_the_index_and_may_repeat(self) -> None:
        """``get`` follows the index."""
        assert row_numbers(self._filled(5).get(torch.tensor([4, 0, 4]))) == [4, 0, 4]

    def test_two_spans_go_to_their_places(self) -> None:
        """A write over the ring's edge splits, and skipped data are not stored."""
        storage = self._filled(6, max_size=6)
        storage.write(storage.prepare(numbered_rows(10, 5)), [Span(4, 6, 1), Span(0, 2, 3)])
        assert self._numbers(storage) == [13, 14, 2, 3, 11, 12]

    def test_spans_may_come_in_any_order(self) -> None:
        """Data longer than an empty ring start in its middle."""
        storage = self.make(5)
        storage.write(storage.prepare(numbered_rows(0, 8)), [Span(3, 5, 3), Span(0, 3, 5)])
        assert self._numbers(storage) == [5, 6, 7, 3, 4]

    @since("1.0")
    def test_an_entry_is_that_of_the_rows(self) -> None:
        """``entry`` gives what ``get`` would, for any order of slots: copies, and ``None`` where rows have no such."""
        storage, index = self._filled(5), torch.tensor([4, 0, 4])
        entries: dict[Any, Any] = dict(numbered_rows(0, 5)[index].items(True, True))
        for name, value in entries.items():
            entry = storage.entry(name, index)
            assert entry is not None, f"entry({name!r}) is None, the rows have it"
            assert entry.dtype == value.dtype and torch.equal(entry, value), f"entry({name!r}): {entry}, not {value}"
            entry.zero_()
        assert self._numbers(storage) == [0, 1, 2, 3, 4], "an entry that was read shares memory with the rows"
        for missing in ("none", ("x", "none")):
            assert storage.entry(missing, index) is None, f"entry({missing!r}) gives something that no row has"

    @since("1.0")
    def test_an_entry_follows_the_rows(self) -> None:
        """``entry`` sees what is written, over the ring's edge and in place."""
        storage = self._filled(6, max_size=6)
        storage.write(storage.prepare(numbered_rows(10, 3)), [Span(5, 6, 0), Span(0, 2, 1)])
        storage.set(torch.tensor([3]), numbered_rows(20, 1))
        wanted = row_numbers(storage.get(torch.arange(6)))
        rows = numbered_rows(0, 21)[torch.tensor([11, 12, 2, 20, 4, 10])]
        assert wanted == row_numbers(rows)
        entries: dict[Any, Any] = dict(rows.items(True, True))
        for name, value in entries.items():
            entry = storage.entry(name, torch.arange(6))
            assert entry is not None and torch.equal(entry, value), f"entry({name!r}): {entry}, not {value}"

    @since("1.0")
    def test_an_entry_of_a_slot_that_is_not_filled_raises(self) -> None:
        """Beyond the filled part, beyond the capacity, and below zero."""
        storage = self._filled(3)
        for slot in (3, 8, -1):
            assert_raises(
                ReplayBufferError,
                lambda slot=slot: storage.entry("x", torch.tensor([0, slot])),
                f"an entry of slot {slot} of 3",
            )

    def test_length_is_the_filled_part(self) -> None:
        """Overwriting does not lengthen it."""
        storage = self._filled(3)
        storage.write(storage.prepare(numbered_rows(3, 2)), [Span(1, 3, 0)])
        assert len(storage) == 3 and storage.max_size == 8

    def test_a_slot_that_is_not_filled_raises(self) -> None:
        """Beyond the filled part, beyond the capacity, and below zero."""
        storage = self._filled(3)
        for slot in (3, 8, 10**12, -1):
            assert_raises(
                ReplayBufferError, lambda slot=slot: storage.get(torch.tensor([0, slot])), f"get of slot {slot} of 3"
            )

    def test_rows_are_copies_of_the_data(self) -> None:
        """Changing data after writing them changes no row."""
        storage, data = self.make(8), numbered_rows(0, 3)
        storage.write(storage.prepare(data), [Span(0, 3, 0)])
        data["x"].zero_()
        assert self._numbers(storage) == [0, 1, 2]

    def test_a_batch_of_two_dimensions_is_flattened(self) -> None:
        """``[N, T]`` gives N * T rows in a 1-d storage."""
        storage = self.make(8)
        if storage.ndim != 1:
            return
        block = storage.prepare(numbered_rows(0, 6).reshape(2, 3))
        assert block.steps == 6
        storage.write(block, [Span(0, 6, 0)])
        assert self._numbers(storage) == [0, 1, 2, 3, 4, 5]

    def test_another_structure_raises_and_names_the_entry(self) -> None:
        """A missing, an extra, a recast and a reshaped entry."""
        if not self.fixes_structure:
            return
        storage, rows = self._filled(3), numbered_rows(3, 2)
        changed = {
            "x": [rows.exclude("x"), rows.copy().set("x", rows["x"].double()), rows.copy().set("x", rows["x"][:, :1])],
            "z": [rows.copy().set("z", torch.zeros(2))],
        }
        for name, wrong in changed.items():
            for data in wrong:
                try:
                    storage.prepare(data)
                except ReplayBufferError as error:
                    assert repr(name) in str(error), f"the error does not name {name!r}: {error}"
                else:
                    raise AssertionError(f"data that differ in {name!r} were accepted")

    def test_rows_can_be_overwritten_in_place(self) -> None:
        """``set`` replaces the named rows only."""
        storage = self._filled(4)
        storage.set(torch.tensor([2, 0]), numbered_rows(20, 2))
        assert self._numbers(storage) == [21, 1, 20, 3]

    def test_emptying_forgets_rows_but_not_how_to_store_them(self) -> None:
        """An emptied storage has no row and takes new ones."""
        storage = self._filled(4)
        storage.empty()
        assert len(storage) == 0
        storage.write(storage.prepare(numbered_rows(7, 2)), [Span(0, 2, 0)])
        assert self._numbers(storage) == [7, 8]

    def test_state_saved_loaded_saved_and_loaded_again_is_the_same(self) -> None:
        """The rows survive, and the loaded storage does not share memory with the state."""
        storage, first, second = self._filled(5), self.make(8), self.make(8)
        state = copy.deepcopy(storage.state_dict())
        first.load_state_dict(state)
        for tensor in _tensors(state):
            tensor.zero_()
        second.load_state_dict(first.state_dict())
        assert self._numbers(second) == self._numbers(first) == [0, 1, 2, 3, 4]

    def test_state_of_another_capacity_raises(self) -> None:
        """Slots of a ring of another size mean something else."""
        state = self._filled(5).state_dict()
        assert_raises(CheckpointError, lambda: self.make(6).load_state_dict(state), "a state of another max_size")

    def test_it_can_be_pickled(self) -> None:
        """For worker processes."""
        assert self._numbers(pickle.loads(pickle.dumps(self._filled(3)))) == [0, 1, 2]


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, (list, tuple)) else ()
    return [tensor for item in items for tensor in _tensors(item)]
