"""WriterKit: what every writer of a replay buffer must get right.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyWriter(WriterKit):
        def make(self):
            return MyWriter()
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar

from rl_core.buffers import Writer
from rl_core.testing.kit import Kit, since
from rl_core.testing.numbered_rows import CountedSlots, numbered_rows

__all__ = ["WriterKit"]


class WriterKit(Kit):
    """Checks of a writer.

    Attributes:
        keeps_newest: whether the rows stored are always the newest ones.
    """

    keeps_newest: ClassVar[bool] = True

    def make(self) -> Writer:
        """A new writer; to be written by the subclass."""
        raise NotImplementedError("define make(self) in your subclass of WriterKit")

    def _run(self, writer: Writer, ring: dict[int, int], sizes: Sequence[int], capacity: int, start: int = 0) -> None:
        """Offer numbered steps and keep, for each place, which step it holds."""
        count = start
        for n in sizes:
            storage = CountedSlots(len(ring), capacity)
            spans = writer.extend(n, storage, numbered_rows(count, n))
            places = [place for a, b, _ in spans for place in range(a, b)]
            sources = [source + i for a, b, source in spans for i in range(b - a)]
            assert all(0 <= place < capacity for place in places), f"places {places} with a capacity of {capacity}"
            assert len(set(places)) == len(places), f"a place is written twice in one call: {places}"
            assert all(0 <= source < n for source in sources), f"sources {sources} of {n} steps"
            assert len(set(sources)) == len(sources), f"a step is stored twice: {sources}"
            ring.update(zip(places, (count + source for source in sources), strict=True))
            assert set(ring) == set(range(len(ring))), f"the filled places {sorted(ring)} have a gap"
            count += n

    def test_places_are_legal_and_leave_no_gap(self) -> None:
        """Over many sizes of data, at every place of the ring, longer than the capacity too."""
        for capacity in (1, 3, 5):
            self._run(self.make(), {}, [1, 2, 0, 4, 3, 11, 1, 5, 10, 2, 7], capacity)

    def test_the_newest_rows_stay(self) -> None:
        """After any writes the storage holds the last ``capacity`` steps."""
        if not self.keeps_newest:
            return
        for sizes in ([3], [3, 4], [8], [2, 13], [5, 5], [4, 4, 4, 1]):
            ring: dict[int, int] = {}
            self._run(self.make(), ring, sizes, 5)
            total = sum(sizes)
            assert sorted(ring.values()) == list(range(max(0, total - 5), total)), f"writes of {sizes} left {ring}"

    @since("1.0")
    def test_the_cursor_is_where_time_starts_over(self) -> None:
        """Read from ``cursor`` on and around, the filled steps come oldest first; ``None`` claims no such order."""
        for capacity in (1, 3, 5):
            writer, ring, count = self.make(), dict[int, int](), 0
            for n in (1, 2, 0, 4, 3, 11, 1, 5, 10, 2, 7):
                self._run(writer, ring, [n], capacity, start=count)
                count += n
                self._check_order(writer, ring, capacity, f"after {count} steps with a capacity of {capacity}")

    @since("1.0")
    def test_the_next_step_overwrites_the_one_at_the_cursor(self) -> None:
        """In a full ring the cursor is the place of the oldest step, which goes first."""
        writer, ring = self.make(), dict[int, int]()
        self._run(writer, ring, [7], 5)
        for count in range(7, 14):
            cursor = writer.cursor
            if cursor is None:
                return
            self._run(writer, ring, [1], 5, start=count)
            assert ring[cursor] == count, f"the cursor was {cursor}, but step {count} went elsewhere: {ring}"

    @since("1.0")
    def test_the_cursor_survives_saving_and_starts_over_when_emptied(self) -> None:
        """It is part of the state."""
        writer, loaded, ring = self.make(), self.make(), dict[int, int]()
        self._run(writer, ring, [4, 3], 5)
        loaded.load_state_dict(copy.deepcopy(writer.state_dict()))
        assert loaded.cursor == writer.cursor, f"the cursor was {writer.cursor}, the loaded writer has {loaded.cursor}"
        writer.empty()
        ring = {}
        self._run(writer, ring, [3], 5)
        self._check_order(writer, ring, 5, "after emptying and 3 steps")

    @staticmethod
    def _check_order(writer: Writer, ring: dict[int, int], capacity: int, when: str) -> None:
        cursor = writer.cursor
        if cursor is None:
            return
        assert 0 <= cursor <= capacity, f"{when} the cursor is {cursor}"
        held = [ring[place] for place in (*range(cursor, len(ring)), *range(min(cursor, len(ring))))]
        assert held == sorted(held), f"{when} the cursor is {cursor}, from where the steps come as {held}"

    def test_it_counts_every_step_offered(self) -> None:
        """``write_count``."""
        writer = self.make()
        self._run(writer, {}, [3, 9, 2], 5)
        assert writer.write_count == 14

    def test_emptying_starts_over(self) -> None:
        """The next step goes to the first place of an empty storage."""
        writer = self.make()
        self._run(writer, {}, [3], 5)
        writer.empty()
        self._run(writer, {}, [2, 4], 5)

    def test_a_loaded_writer_goes_on_where_the_saved_one_was(self) -> None:
        """The cursor survives, twice."""
        writer, loaded, again = self.make(), self.make(), self.make()
        ring: dict[int, int] = {}
        self._run(writer, ring, [4, 3], 5)
        loaded.load_state_dict(copy.deepcopy(writer.state_dict()))
        again.load_state_dict(copy.deepcopy(loaded.state_dict()))
        rings = [dict(ring), dict(ring)]
        self._run(writer, rings[0], [2], 5, start=7)
        self._run(again, rings[1], [2], 5, start=7)
        assert rings[0] == rings[1], f"the original gave {rings[0]}, the loaded one {rings[1]}"
