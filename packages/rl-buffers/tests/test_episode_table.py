"""The episode table: after any writes it is what reading all rows again gives, with the kernels and with their twin."""

from __future__ import annotations

import copy
import pickle
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    native,
)
from rl_buffers.episodes.boundaries import Boundaries
from rl_buffers.episodes.table import EpisodeTable
from rl_core.buffers import Span, Writer
from rl_core.errors import KeyMissingError, ReplayBufferError


@contextmanager
def kernels(kind: str):
    """Tables made inside use the C++ kernels ("native") or their twin."""
    with pytest.MonkeyPatch.context() as patch:
        if kind == "twin":
            patch.setenv("RL_BUFFERS_NATIVE", "0")
        native.load.cache_clear()
        yield
    native.load.cache_clear()


@pytest.fixture(params=["native", "twin"])
def both(request):
    with kernels(request.param):
        yield


def pieces(table: EpisodeTable) -> list[list[int]]:
    """The slots of each piece in the order of time, pieces sorted."""
    slots = table.expand(table.first_slots(), table.lengths()).tolist()
    found = []
    for length in table.lengths().tolist():
        found.append(slots[:length])
        slots = slots[length:]
    return sorted(found)


class Model:
    """Rows with the time of their writing; pieces are found by looking at all of them."""

    def __init__(self, steps: int, lanes: int) -> None:
        self.steps, self.lanes, self.clock = steps, lanes, 0
        self.rows: dict[tuple[int, int], dict] = {}

    def write(self, done: torch.Tensor, traj: torch.Tensor, run: int = 0) -> None:
        for t in range(done.shape[1]):
            if run and t % run == 0:
                self.clock += 1  # nothing was written at this time: the next row follows none
            for lane in range(self.lanes):
                self.rows[self.place, lane] = {
                    "time": self.clock,
                    "done": bool(done[lane, t]),
                    "traj": int(traj[lane, t]),
                }
            self.place = (self.place + 1) % self.steps
            self.clock += 1

    place = 0

    def pieces(self, by_done: bool, by_traj: bool) -> list[list[int]]:
        found = []
        for lane in range(self.lanes):
            order = sorted((row["time"], place) for (place, at), row in self.rows.items() if at == lane)
            for time, place in order:
                row, slot = self.rows[place, lane], place * self.lanes + lane
                before = (
                    self.rows[found[-1][-1] // self.lanes, lane]
                    if found and found[-1][-1] % self.lanes == lane
                    else None
                )
                joined = (
                    before is not None
                    and before["time"] == time - 1
                    and not (by_done and before["done"])
                    and not (by_traj and before["traj"] != row["traj"])
                )
                if joined:
                    found[-1].append(slot)
                else:
                    found.append([slot])
        return sorted(found)


RULES = {
    "end_key": (Boundaries(end_key=("next", "done")), True, False),
    "traj_key": (Boundaries(traj_key="episode"), False, True),
    "both": (Boundaries(), True, True),
}


def data(done: torch.Tensor, traj: torch.Tensor, lanes: int) -> TensorDict:
    shape = done.shape if lanes > 1 else done.shape[1:]
    return TensorDict({"episode": traj.reshape(shape), "next": {"done": done.reshape(*shape, 1)}}, batch_size=shape)


@st.composite
def histories(draw):
    lanes, steps = draw(st.integers(1, 3)), draw(st.integers(1, 9))
    writes = st.tuples(st.just("write"), st.integers(1, 2 * steps + 1), st.integers(0, 2**20))
    sets = st.tuples(st.just("set"), st.integers(1, steps * lanes), st.integers(0, 2**20))
    other = st.tuples(st.sampled_from(["empty", "reload", "pickle"]), st.just(0), st.just(0))
    return lanes, steps, draw(st.lists(st.one_of(writes, writes, sets, other), min_size=1, max_size=12))


def play(lanes: int, steps: int, operations: list, rule: str, kind: str):
    """Do the operations on a buffer and on the model; yields the table and the model after each."""
    boundaries, by_done, by_traj = RULES[rule]
    buffer = ReplayBuffer(storage=LazyTensorStorage(steps * lanes, ndim=2 if lanes > 1 else 1))
    table, model = buffer.episodes(copy.deepcopy(boundaries)), Model(steps, lanes)
    for name, size, seed in operations:
        generator = torch.Generator().manual_seed(seed)
        if name == "write":
            done = torch.rand(lanes, size, generator=generator) < 0.3
            traj = torch.randint(3, (lanes, size), generator=generator) // 2
            buffer.extend(data(done, traj, lanes))
            model.write(done, traj)
        elif name == "set" and len(buffer):
            slots = torch.randperm(len(buffer), generator=generator)[:size]
            rows = buffer[slots]
            rows["next", "done"] = torch.rand(len(slots), 1, generator=generator) < 0.5
            rows["episode"] = torch.randint(2, (len(slots),), generator=generator)
            buffer[slots] = rows
            for slot, row in zip(slots.tolist(), rows, strict=True):
                place = (slot // lanes, slot % lanes)
                model.rows[place].update(done=bool(row["next", "done"]), traj=int(row["episode"]))
        elif name == "empty":
            buffer.empty()
            model = Model(steps, lanes)
        elif name == "reload":
            other = ReplayBuffer(storage=LazyTensorStorage(steps * lanes, ndim=2 if lanes > 1 else 1))
            other.episodes(copy.deepcopy(boundaries))
            other.load_state_dict(copy.deepcopy(buffer.state_dict()))
            buffer = other
        elif name == "pickle":
            buffer = pickle.loads(pickle.dumps(buffer))
        table = next(iter(buffer._episodes._tables.values()))
        yield buffer, table, model.pieces(by_done, by_traj)


@settings(max_examples=60, deadline=None)
@given(histories(), st.sampled_from(sorted(RULES)), st.sampled_from(["native", "twin"]))
def test_after_any_writes_the_table_is_what_reading_all_rows_gives(history, rule, kind):
    with kernels(kind):
        for _, table, expected in play(*history, rule, kind):
            assert pieces(table) == expected
            slots = [slot for piece in expected for slot in piece]
            if slots:
                place = table.locate(torch.tensor(slots))
                assert place.offset.tolist() == [k for piece in expected for k in range(len(piece))]
                assert place.left.tolist() == [len(piece) - k for piece in expected for k in range(len(piece))]


@settings(max_examples=40, deadline=None)
@given(histories(), st.sampled_from(sorted(RULES)), st.integers(1, 4), st.booleans(), st.booleans())
def test_kernels_and_twin_agree_to_the_last_draw(history, rule, length, by_step, strict):
    found = []
    for kind in ("native", "twin"):
        with kernels(kind):
            draws = []
            for _, table, _ in play(*history, rule, kind):
                if len(table) and (not strict or int(table.lengths().max()) >= length):
                    generator = torch.Generator().manual_seed(0)
                    drawn = table.draw(7, length, by_step=by_step, strict=strict, generator=generator)
                    slots = table.expand(*drawn)
                    padded = table.expand(*drawn, width=length)
                    draws.append(
                        [part.tolist() for part in (*drawn, slots, padded, table.lengths(), table.first_slots())]
                    )
            found.append(draws)
    assert found[0] == found[1]


@settings(max_examples=30, deadline=None)
@given(histories(), st.sampled_from(sorted(RULES)))
def test_a_table_that_is_read_from_the_rows_is_the_one_that_was_kept(history, rule):
    for buffer, table, expected in play(*history, rule, "native"):
        fresh = EpisodeTable(copy.deepcopy(RULES[rule][0]))
        fresh.rebuild(buffer.storage, buffer.writer.cursor)
        assert pieces(fresh) == expected == pieces(table)


def rows(*done: int, **entries) -> TensorDict:
    flags = torch.tensor(done, dtype=torch.bool).unsqueeze(-1)
    extra = {name: torch.tensor(value) for name, value in entries.items()}
    return TensorDict({"x": torch.arange(len(done)), **extra, "next": {"done": flags}}, [len(done)])


def test_the_cursor_is_a_boundary_and_the_piece_at_the_head_grows(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    table = buffer.episodes()
    buffer.extend(rows(0, 0, 0))
    assert pieces(table) == [[0, 1, 2]]
    buffer.extend(rows(0, 0, 0, 0))
    assert pieces(table) == [[2, 3, 4, 0, 1]]
    assert not table.finished(torch.tensor([3])).any()
    buffer.extend(rows(1, 0))
    assert pieces(table) == [[3], [4, 0, 1, 2]]
    assert table.finished(torch.tensor([4, 2, 3])).tolist() == [True, True, False]


def test_rollouts_of_several_environments_laid_end_to_end_do_not_run_together(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    table = buffer.episodes()
    flat = rows(*[0] * 6).reshape(2, 3)
    buffer.extend(flat)
    buffer.extend(flat)
    assert pieces(table) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    buffer.extend(flat[:1])  # a single environment goes on, but after which of the two is not known here
    buffer.extend(flat[:1])
    assert pieces(table)[-1][-6:] == [12, 13, 14, 15, 16, 17]


def test_a_write_of_rows_that_skips_places_does_not_join_what_lies_beside_it(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(3))
    table = buffer.episodes()
    buffer.extend(rows(0, 0, 0, 0, 0, 0, 0))  # the first four are never stored
    assert pieces(table) == [[1, 2, 0]]


class EverySecond(RoundRobinWriter):
    """Stores the data's steps 0, 2, 4 ... in neighbouring places."""

    def extend(self, steps, storage, data=None):
        start, self.cursor = self.cursor, self.cursor + (steps + 1) // 2
        return [Span(start + k, start + k + 1, 2 * k) for k in range((steps + 1) // 2)]


def test_rows_between_which_some_were_left_out_do_not_follow_each_other(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), writer=EverySecond())
    table = buffer.episodes()
    buffer.extend(rows(0, 0, 0, 0, 0))
    assert pieces(table) == [[0], [1], [2]]


class InNoOrder(Writer):
    cursor = None

    def extend(self, steps, storage, data=None):
        return [Span(k, k + 1, steps - 1 - k) for k in range(steps)]

    def empty(self):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


def test_rows_in_no_order_of_time_are_pieces_of_one_row(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), writer=InNoOrder())
    kept = buffer.episodes()
    buffer.extend(rows(0, 0, 0))
    late = buffer.episodes(Boundaries(end_key=("next", "done")))
    assert pieces(kept) == pieces(late) == [[0], [1], [2]]


def test_end_flags_of_a_group_end_the_episode_when_all_are_true(both):
    flags = torch.tensor([[1, 0], [1, 1], [0, 0]], dtype=torch.bool).unsqueeze(-1)
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    table = buffer.episodes(Boundaries(end_key=("next", "agents", "done")))
    buffer.extend(TensorDict({"next": {"agents": {"done": flags}}}, [3]))
    assert pieces(table) == [[0, 1], [2]]


def test_lists_of_rows_have_a_table_too(both):
    buffer = TensorDictReplayBuffer(storage=ListStorage(4), batch_size=2)
    table = buffer.episodes()
    buffer.extend(rows(0, 1, 0, 0, 0))
    assert pieces(table) == [[1], [2, 3, 0]]


def test_a_table_asked_for_late_knows_the_rows_and_the_cursor(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(rows(0, 0, 1, 0, 0, 0, 0))
    table = buffer.episodes()
    assert pieces(table) == [[2], [3, 4, 0, 1]]
    assert buffer.episodes() is table


def test_rows_that_do_not_tell_where_episodes_end_can_be_stored_but_not_asked(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5))
    table = buffer.episodes()
    buffer.extend(TensorDict({"x": torch.zeros(3)}, [3]))
    with pytest.raises(KeyMissingError, match=r"end_key=\.\.\. or traj_key=\.\.\."):
        table.check()
    with pytest.raises(KeyMissingError, match="'finished'"):
        named = buffer.episodes(Boundaries(end_key="finished"))
        named.check()


def test_two_rules_at_once_are_refused():
    with pytest.raises(ReplayBufferError, match="end_key and traj_key"):
        Boundaries(end_key="done", traj_key="episode")


def test_signals_from_outside_stand_in_for_entries(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(TensorDict({"x": torch.zeros(4)}, [4]))
    ends = buffer.episodes(Boundaries(ends=torch.tensor([False, True, False, False])))
    numbers = buffer.episodes(Boundaries(trajectories=torch.tensor([7, 7, 7, 8])))
    assert pieces(ends) == [[0, 1], [2, 3]] and pieces(numbers) == [[0, 1, 2], [3]]
    short = buffer.episodes(Boundaries(ends=torch.tensor([False, True])))
    with pytest.raises(ReplayBufferError, match="ends has 2 rows, the storage holds a row at slot 3"):
        short.check()


def test_slots_that_hold_no_row_are_refused(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(6))
    table = buffer.episodes()
    buffer.extend(rows(0, 0, 0))
    with pytest.raises(ReplayBufferError):
        table.expand(torch.tensor([3]), torch.tensor([1]))
    with pytest.raises(ReplayBufferError):
        table.expand(torch.tensor([1]), torch.tensor([0]))


def test_memory_grows_with_the_rows_up_to_the_capacity(both):
    buffer = ReplayBuffer(storage=LazyTensorStorage(5000))
    table = buffer.episodes()
    for _ in range(3):
        buffer.extend(rows(*[1] * 2000))
    assert len(table) == 5000 and table._arrays.marks.numel() == 5000
