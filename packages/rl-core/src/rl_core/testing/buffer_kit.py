"""BufferKit: what every replay buffer must get right, whatever its parts are.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyBuffer(BufferKit):
        def make(self, max_size, batch_size):
            return MyBuffer(max_size, batch_size=batch_size, generator=torch.Generator().manual_seed(0))
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import torch

from rl_core.buffers import ReplayBuffer
from rl_core.errors import ReplayBufferError
from rl_core.testing.kit import Kit
from rl_core.testing.numbered_rows import assert_raises, numbered_rows, row_numbers

__all__ = ["BufferKit"]


class BufferKit(Kit):
    """Checks of a whole buffer of TensorDicts that overwrites its oldest rows.

    Attributes:
        fixes_structure: whether the first write fixes the rows' entries; no for storages of arbitrary objects.
    """

    fixes_structure: ClassVar[bool] = True

    def make(self, max_size: int, batch_size: int) -> ReplayBuffer:
        """A new, empty buffer with a fixed seed; to be written by the subclass."""
        raise NotImplementedError("define make(self, max_size, batch_size) in your subclass of BufferKit")

    def _numbers(self, buffer: ReplayBuffer, draws: int = 60) -> set[int]:
        return {number for _ in range(draws) for number in row_numbers(buffer.sample())}

    def test_a_sample_has_the_batch_size_asked_for(self) -> None:
        """The buffer's, unless a call says otherwise."""
        buffer = self.make(10, 4)
        buffer.extend(numbered_rows(0, 8))
        assert buffer.sample().batch_size == (4,) and buffer.sample(2).batch_size == (2,)

    def test_only_stored_rows_come(self) -> None:
        """Before the ring is full, at its edge, and after data longer than the capacity."""
        for sizes in ([3], [4, 4], [4, 4, 4], [23], [7, 16]):
            buffer = self.make(10, 5)
            total = 0
            for n in sizes:
                index = buffer.extend(numbered_rows(total, n))
                assert len(index) == n, f"extend of {n} rows returned {len(index)} slots"
                total += n
            assert len(buffer) == min(10, total)
            assert self._numbers(buffer) == set(range(max(0, total - 10), total))

    def test_single_rows_are_stored_too(self) -> None:
        """``add`` takes one row without a batch dimension."""
        buffer = self.make(3, 2)
        for k in range(5):
            buffer.add(numbered_rows(k, 1)[0])
        assert len(buffer) == 3 and self._numbers(buffer) == {2, 3, 4}

    def test_the_data_given_are_not_changed(self) -> None:
        """No key is added, no value altered."""
        buffer, data = self.make(10, 4), numbered_rows(0, 6)
        before = data.clone()
        buffer.extend(data)
        buffer.sample()
        assert set(data.keys(True, True)) == set(before.keys(True, True)) and bool((data == before).all())

    def test_a_sample_is_a_copy(self) -> None:
        """Changing it changes no row."""
        buffer = self.make(10, 4)
        buffer.extend(numbered_rows(0, 6))
        for _ in range(10):
            buffer.sample()["x"].fill_(-1.0)
        assert self._numbers(buffer) == set(range(6))

    def test_refused_data_leave_the_buffer_as_it_was(self) -> None:
        """An error moves neither rows nor cursor."""
        if not self.fixes_structure:
            return
        buffer = self.make(4, 2)
        buffer.extend(numbered_rows(0, 3))
        wrong = numbered_rows(3, 2).set("extra", torch.zeros(2))
        assert_raises(ReplayBufferError, lambda: buffer.extend(wrong), "an extra entry")
        buffer.extend(numbered_rows(3, 2))
        assert self._numbers(buffer) == {1, 2, 3, 4}

    def test_an_empty_buffer_cannot_be_sampled(self) -> None:
        """Neither a new one nor an emptied one."""
        buffer = self.make(4, 2)
        assert_raises(ReplayBufferError, buffer.sample, "sampling a new buffer")
        buffer.extend(numbered_rows(0, 3))
        buffer.empty()
        assert len(buffer) == 0
        assert_raises(ReplayBufferError, buffer.sample, "sampling an emptied buffer")
        buffer.extend(numbered_rows(5, 2))
        assert self._numbers(buffer) == {5, 6}

    def test_saved_loaded_saved_and_loaded_it_samples_the_same(self) -> None:
        """Rows, cursor, sampler and generator survive on disk; the folders are not needed afterwards."""
        buffer, first, second = (self.make(8, 3) for _ in range(3))
        buffer.extend(numbered_rows(0, 6))
        buffer.sample()
        buffer.extend(numbered_rows(6, 4))
        buffer.sample()
        with TemporaryDirectory() as folder:
            buffer.dumps(Path(folder) / "one")
            first.loads(Path(folder) / "one")
            first.dumps(Path(folder) / "two")
            first.dumps(Path(folder) / "two")  # an existing save is replaced
            second.loads(Path(folder) / "two")
        draws = [[row_numbers(subject.sample()) for _ in range(5)] for subject in (buffer, first, second)]
        assert draws[0] == draws[1] == draws[2], f"saved, loaded and loaded again sample {draws}"
        for subject in (buffer, first, second):
            subject.extend(numbered_rows(10, 1))
            assert len(subject) == 8 and self._numbers(subject) == set(range(3, 11))
