"""Slices: whole rows of one episode, never over its end, the cursor or the filled part, and none left out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictReplayBuffer,
    native,
)
from rl_core.errors import ReplayBufferError
from rl_core.testing import BufferKit, SamplerKit
from rl_core.testing.numbered_rows import numbered_rows


@pytest.fixture(autouse=True, params=["native", "twin"])
def kernels(request, monkeypatch):
    if request.param == "twin":
        monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    native.load.cache_clear()
    yield
    native.load.cache_clear()


def one_per_row() -> torch.Tensor:
    return torch.ones(10**6, dtype=torch.bool)


class TestSliceSampler(SamplerKit):
    def make(self):
        return SliceSampler(slice_len=1, ends=~one_per_row())


class TestSliceSamplerOverSteps(SamplerKit):
    def make(self):
        return SliceSampler(slice_len=1, ends=one_per_row(), uniform_over="steps")


class TestSliceSamplerWithoutReplacement(SamplerKit):
    without_replacement = True

    def make(self):
        return SliceSamplerWithoutReplacement(slice_len=1, ends=one_per_row())


class TestBufferOfSlices(BufferKit):
    def make(self, max_size, batch_size):
        return TensorDictReplayBuffer(
            storage=LazyTensorStorage(max_size),
            sampler=SliceSampler(slice_len=1, traj_key="x", truncated_key=None),
            batch_size=batch_size,
            generator=torch.Generator().manual_seed(0),
        )


def episode(number: int, n: int, *, finished: bool = True) -> TensorDict:
    t = torch.arange(n)
    done = ((t == n - 1) & finished).unsqueeze(-1)
    nxt = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
    return TensorDict(
        {"episode_number": torch.full((n,), number), "t": t, "is_init": (t == 0).unsqueeze(-1), "next": nxt}, [n]
    )


def buffer_of(
    sampler: SliceSampler, capacity: int, batch_size: int, storage=LazyTensorStorage
) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=storage(capacity), sampler=sampler, batch_size=batch_size, generator=torch.Generator().manual_seed(0)
    )


def slices_in(batch: TensorDict, length: int) -> Counter:
    """How often each (episode, steps) came; every slice must be consecutive steps of one episode."""
    numbers, steps = batch["episode_number"].reshape(-1, length), batch["t"].reshape(-1, length)
    assert (numbers == numbers[:, :1]).all(), "a slice has rows of several episodes"
    assert (steps.diff(dim=1) == 1).all(), "a slice is not made of consecutive steps"
    return Counter(zip(numbers[:, 0].tolist(), steps[:, 0].tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------ ring edge
@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_at_the_ring_edge_exactly_the_possible_slices_come(storage):
    buffer = buffer_of(SliceSampler(slice_len=4), 10, 4000, storage)
    buffer.extend(episode(0, 6))
    buffer.extend(episode(1, 6))
    batch = buffer.sample() if storage is LazyTensorStorage else buffer.sample(2000)
    found = slices_in(batch, 4)
    assert set(found) == {(0, 2), (1, 0), (1, 1), (1, 2)}
    n = sum(found.values())
    # Two pieces with equal chances; the first has one start, the second three.
    for start, share in {(0, 2): 1 / 2, (1, 0): 1 / 6, (1, 1): 1 / 6, (1, 2): 1 / 6}.items():
        assert abs(found[start] - share * n) < 5 * (n * share) ** 0.5
    init = batch["is_init"].reshape(-1, 4)
    assert init[:, 0].all() and not init[:, 1:].any()


def test_over_steps_every_start_is_as_likely():
    buffer = buffer_of(SliceSampler(slice_len=4, uniform_over="steps"), 10, 4000)
    buffer.extend(episode(0, 6))
    buffer.extend(episode(1, 6))
    found = slices_in(buffer.sample(), 4)
    assert set(found) == {(0, 2), (1, 0), (1, 1), (1, 2)}
    assert all(abs(count - 250) < 5 * 250**0.5 for count in found.values())


def test_before_the_ring_is_full_no_empty_slot_comes():
    buffer = buffer_of(SliceSampler(slice_len=4), 100, 400)
    buffer.extend(episode(0, 7))
    found = slices_in(buffer.sample(), 4)
    assert set(found) == {(0, 0), (0, 1), (0, 2), (0, 3)}


def test_the_episode_that_is_being_written_counts_with_the_rows_it_has():
    buffer = buffer_of(SliceSampler(slice_len=3), 100, 300)
    data = episode(0, 5)
    buffer.extend(data[:2])
    with pytest.raises(ReplayBufferError, match="no episode has 3 rows: the longest of 1 pieces has 2"):
        buffer.sample()
    buffer.extend(data[2:4])
    assert set(slices_in(buffer.sample(), 3)) == {(0, 0), (0, 1)}
    buffer.add(data[4])
    assert set(slices_in(buffer.sample(), 3)) == {(0, 0), (0, 1), (0, 2)}


def test_few_long_episodes_among_many_short_ones_are_found():
    buffer = buffer_of(SliceSampler(slice_len=4), 3000, 80)
    for number in range(1000):
        buffer.extend(episode(number, 4 if number in (3, 777) else 2))
    counts = Counter()
    for _ in range(10):
        counts += slices_in(buffer.sample(), 4)
    assert set(counts) == {(3, 0), (777, 0)}
    assert abs(counts[3, 0] - 100) < 50


def test_few_long_episodes_are_found_when_starts_are_uniform_too():
    buffer = buffer_of(SliceSampler(slice_len=4, uniform_over="steps"), 3000, 400)
    for number in range(1000):
        buffer.extend(episode(number, 6 if number == 3 else 4 if number == 777 else 2))
    counts = slices_in(buffer.sample(), 4) + slices_in(buffer.sample(), 4)
    assert set(counts) == {(3, 0), (3, 1), (3, 2), (777, 0)}
    assert all(abs(count - 50) < 36 for count in counts.values())


# ------------------------------------------------------------------------------------------------------ lanes
@pytest.mark.parametrize("steps", [9, 25])
def test_slices_stay_in_their_lane(steps):
    lanes, capacity = 3, 12
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(lanes * capacity, ndim=2), sampler=SliceSampler(slice_len=4), batch_size=2000
    )
    lengths = (5, 7, 25)
    t = torch.arange(steps)
    step = torch.stack([t % length for length in lengths])
    number = torch.stack([100 * lane + t // length for lane, length in enumerate(lengths)])
    done = torch.stack([t % length == length - 1 for length in lengths]).unsqueeze(-1)
    data = TensorDict({"episode_number": number, "t": step, "next": {"done": done}}, [lanes, steps])
    for part in data.split(5, dim=1):
        buffer.extend(part)
    found = slices_in(buffer.sample(), 4)
    oldest = max(0, steps - capacity)
    expected = {
        (int(number[lane, at]), int(step[lane, at]))
        for lane in range(lanes)
        for at in range(oldest, steps - 3)
        if number[lane, at] == number[lane, at + 3]
    }
    assert set(found) == expected
    assert buffer.sample()["index"].shape == (2000, 2)


# ------------------------------------------------------------------------------------------------------ marks
def test_a_cut_adds_to_the_end_flags_and_leaves_the_stored_rows_alone():
    buffer = buffer_of(SliceSampler(slice_len=3), 100, 30)
    buffer.extend(episode(0, 4))
    before = buffer[:].clone()
    batch = buffer.sample().reshape(10, 3)
    nxt = batch["next"]
    assert nxt["truncated"][:, -1].all() and not nxt["truncated"][:, :-1].any()
    last_of_episode = batch["t"] == 3
    assert torch.equal(nxt["terminated"].squeeze(-1), last_of_episode) and last_of_episode.any()
    assert torch.equal(nxt["done"], nxt["terminated"] | nxt["truncated"])
    assert (buffer[:] == before).all()


def test_a_cut_is_never_taken_for_a_terminal_state():
    buffer = buffer_of(SliceSampler(slice_len=2), 100, 40)
    done = torch.tensor([0, 0, 0, 1]).bool().unsqueeze(-1)
    buffer.extend(TensorDict({"t": torch.arange(4), "next": {"done": done}}, [4]))
    batch = buffer.sample()
    terminal = batch["t"].unsqueeze(-1) == 3
    assert torch.equal(batch["next", "terminated"], terminal)
    assert batch["next", "truncated"].flatten().tolist() == [False, True] * 20
    assert torch.equal(batch["next", "done"], terminal | batch["next", "truncated"])


def test_a_stored_end_within_a_slice_is_not_wiped_out():
    buffer = buffer_of(SliceSampler(slice_len=4, traj_key="run"), 100, 8)
    truncated = torch.tensor([0, 1, 0, 0]).bool().unsqueeze(-1)
    terminated = torch.tensor([0, 0, 1, 0]).bool().unsqueeze(-1)
    nxt = {"truncated": truncated, "terminated": terminated, "done": truncated | terminated}
    buffer.extend(TensorDict({"run": torch.zeros(4), "next": nxt}, [4]))
    nxt = buffer.sample()["next"]
    assert nxt["truncated"].flatten().tolist() == [False, True, False, True] * 2
    assert nxt["terminated"].flatten().tolist() == [False, False, True, False] * 2
    assert torch.equal(nxt["done"], nxt["terminated"] | nxt["truncated"])


def test_a_stored_truncation_stays_one_where_terminated_is_not_stored():
    buffer = buffer_of(SliceSampler(slice_len=2), 100, 40)
    done = torch.tensor([0, 1, 0, 1]).bool().unsqueeze(-1)
    truncated = torch.tensor([0, 1, 0, 0]).bool().unsqueeze(-1)
    buffer.extend(TensorDict({"t": torch.arange(4), "next": {"done": done, "truncated": truncated}}, [4]))
    batch = buffer.sample()
    assert torch.equal(batch["next", "terminated"], batch["t"].unsqueeze(-1) == 3)


def test_end_flags_of_groups_are_cut_too():
    buffer = buffer_of(SliceSampler(slice_len=2), 100, 20)
    done = torch.zeros(4, 1, dtype=torch.bool)
    agents = {"done": torch.zeros(4, 3, 1, dtype=torch.bool), "terminated": torch.zeros(4, 3, 1, dtype=torch.bool)}
    buffer.extend(TensorDict({"next": {"done": done, "agents": agents}}, [4]))
    batch = buffer.sample().reshape(10, 2)
    assert batch["next", "agents", "truncated"][:, 1].all() and not batch["next", "agents", "truncated"][:, 0].any()
    assert batch["next", "agents", "done"][:, 1].all() and not batch["next", "agents", "terminated"].any()


def test_rows_without_end_flags_get_those_of_the_slices():
    buffer = buffer_of(SliceSampler(slice_len=2, traj_key="run"), 100, 8)
    buffer.extend(TensorDict({"run": torch.tensor([1, 1, 2, 2])}, [4]))
    batch = buffer.sample()
    assert batch["next", "done"].flatten().tolist() == [False, True] * 4 and not batch["next", "terminated"].any()


def test_a_plain_buffer_tells_in_its_info_where_slices_end():
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=2, ends=torch.zeros(10).bool()), batch_size=6
    )
    buffer.extend(torch.arange(8))
    rows, info = buffer.sample(return_info=True)
    assert (rows.reshape(3, 2).diff() == 1).all()
    assert info["next", "truncated"].tolist() == [False, True] * 3 and torch.equal(info["index"], rows)


# ------------------------------------------------------------------------------------------------------ short episodes
def test_short_episodes_come_whole_when_lengths_are_not_strict():
    buffer = buffer_of(SliceSampler(slice_len=4, strict_length=False), 100, 400)
    buffer.extend(episode(0, 3))
    buffer.extend(episode(1, 5))
    batch = buffer.sample()
    ends = batch["next", "truncated"].flatten().nonzero().flatten().tolist()
    starts = batch["is_init"].flatten().nonzero().flatten().tolist()
    seen = Counter()
    for start, end in zip(starts, ends, strict=True):
        rows = batch[start : end + 1]
        assert (rows["t"].diff() == 1).all() and (rows["episode_number"] == rows["episode_number"][0]).all()
        seen[int(rows["episode_number"][0]), int(rows["t"][0]), len(rows)] += 1
    assert set(seen) == {(0, 0, 3), (1, 0, 4), (1, 1, 4)} and sum(seen.values()) == 100
    assert abs(seen[0, 0, 3] - 50) < 25
    assert len(batch) == 400 - seen[0, 0, 3]


def test_padded_slices_repeat_their_last_row_and_say_so():
    buffer = buffer_of(SliceSampler(slice_len=4, strict_length=False, pad_output=True), 100, 40)
    buffer.extend(episode(0, 3))
    batch = buffer.sample().reshape(10, 4)
    assert batch["t"].tolist() == [[0, 1, 2, 2]] * 10
    assert batch["collector", "mask"].tolist() == [[True, True, True, False]] * 10
    assert batch["next", "done"].squeeze(-1).tolist() == [[False, False, True, True]] * 10
    assert batch["is_init"].squeeze(-1).tolist() == [[True, False, False, False]] * 10


INNER, LEFT, RIGHT = {(0, 1, 2), (1, 2, 3), (2, 3, 4)}, {(0,), (0, 1)}, {(4,), (3, 4)}


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        (False, INNER),
        ((True, False), INNER | LEFT),
        ((False, True), INNER | RIGHT),
        ((1, 0), INNER | {(0, 1)}),
        (True, INNER | LEFT | RIGHT),
    ],
)
def test_span_lets_slices_reach_over_the_edges_of_an_episode(span, expected):
    buffer = buffer_of(SliceSampler(slice_len=3, span=span), 100, 3000)
    buffer.extend(episode(0, 5))
    batch = buffer.sample()
    starts = batch["is_init"].flatten().nonzero().flatten().tolist()
    parts = [tuple(batch["t"][a:b].tolist()) for a, b in zip(starts, [*starts[1:], len(batch)], strict=True)]
    assert len(parts) == 1000 and set(parts) == expected


# ------------------------------------------------------------------------------------------------------ rules, errors
def test_trajectory_numbers_and_end_flags_are_found_by_themselves():
    buffer = buffer_of(SliceSampler(slice_len=2), 100, 200)
    ids = torch.tensor([5, 5, 5, 6, 6])
    done = torch.tensor([0, 1, 0, 0, 0]).bool().unsqueeze(-1)
    buffer.extend(TensorDict({"t": torch.arange(5), "collector": {"traj_ids": ids}, "next": {"done": done}}, [5]))
    assert set(buffer.sample()["t"].reshape(-1, 2)[:, 0].tolist()) == {0, 3}


def test_a_named_trajectory_key_is_the_only_rule():
    buffer = buffer_of(SliceSampler(slice_len=2, traj_key=("collector", "traj_ids")), 100, 200)
    ids = torch.tensor([5, 5, 5, 6, 6])
    done = torch.tensor([0, 1, 0, 0, 0]).bool().unsqueeze(-1)
    buffer.extend(TensorDict({"t": torch.arange(5), "collector": {"traj_ids": ids}, "next": {"done": done}}, [5]))
    assert set(buffer.sample()["t"].reshape(-1, 2)[:, 0].tolist()) == {0, 1, 3}


def test_end_flags_that_are_changed_in_place_count():
    buffer = buffer_of(SliceSampler(slice_len=3), 100, 300)
    buffer.extend(episode(0, 6))
    rows = buffer[2:3]
    rows["next", "done"][:] = True
    buffer[2:3] = rows
    assert set(slices_in(buffer.sample(), 3)) == {(0, 0), (0, 3)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of num_slices and slice_len"),
        ({"num_slices": 2, "slice_len": 2}, "give one of num_slices and slice_len"),
        ({"slice_len": 0}, "at least 1"),
        ({"slice_len": 2, "end_key": "done", "traj_key": "run"}, "end_key and traj_key: give one"),
        ({"slice_len": 2, "uniform_over": "rows"}, "'trajectories' or 'steps'"),
        ({"slice_len": 2, "uniform_over": "steps", "span": True}, "leave out span"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ReplayBufferError, match=message):
        SliceSampler(**arguments)


def test_a_batch_is_made_of_whole_slices():
    buffer = buffer_of(SliceSampler(num_slices=3), 100, 32)
    buffer.extend(episode(0, 20))
    with pytest.raises(ReplayBufferError, match="the batch size 32 is no multiple of num_slices=3"):
        buffer.sample()
    assert set(slices_in(buffer.sample(30), 10)) <= {(0, start) for start in range(11)}


def test_the_arguments_of_torchrl_are_taken():
    SliceSampler(slice_len=2, cache_values=True, compile=False, use_gpu=False, traj_key="episode")
    SliceSampler(num_slices=2, end_key=("next", "done"), strict_length=True, truncated_key=("next", "truncated"))


# ------------------------------------------------------------------------------------------------------ burn-in
def test_the_first_rows_of_a_slice_bring_the_state_up_to_date_only():
    buffer = buffer_of(SliceSampler(slice_len=4, burn_in=1), 100, 8)
    buffer.extend(episode(0, 6))
    assert buffer.sample()["learning_mask"].tolist() == [False, True, True, True] * 2
    with pytest.raises(ReplayBufferError, match="burn_in=1 leaves nothing"):
        buffer_of(SliceSampler(num_slices=8, burn_in=1), 100, 8).sample()


# ------------------------------------------------------------------------------------------------------ epochs
def test_each_episode_gives_one_slice_per_epoch():
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=3), 100, 6)
    for number in range(5):
        buffer.extend(episode(number, 3 + number))
    buffer.extend(episode(9, 2))  # too short
    orders = []
    for _ in range(4):
        batches = [batch for batch in buffer]
        assert [len(batch) for batch in batches] == [6, 6, 3]
        for batch in batches:
            slices_in(batch, 3)
        orders.append([number for batch in batches for number in batch["episode_number"].reshape(-1, 3)[:, 0].tolist()])
        assert sorted(orders[-1]) == [0, 1, 2, 3, 4]
    assert len({tuple(order) for order in orders}) > 1


def test_without_shuffling_episodes_come_from_the_oldest_on():
    sampler = SliceSamplerWithoutReplacement(slice_len=2, shuffle=False, drop_last=True)
    buffer = buffer_of(sampler, 8, 4)
    for number in range(5):
        buffer.extend(episode(number, 2))
    found = [batch["episode_number"].reshape(-1, 2)[:, 0].tolist() for batch in buffer]
    assert found == [[1, 2], [3, 4]]
    buffer.extend(episode(5, 2))
    buffer.extend(episode(6, 2)[:1])
    assert [batch["episode_number"].reshape(-1, 2)[:, 0].tolist() for batch in buffer] == [[3, 4]]


def test_an_epoch_of_no_batch_says_how_many_episodes_there_are():
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=3, drop_last=True), 100, 9)
    buffer.extend(episode(0, 5))
    buffer.extend(episode(1, 2))
    with pytest.raises(ReplayBufferError, match=r"1 of 2 episodes have 3 rows or more .* a batch needs 3"):
        buffer.sample()


# ------------------------------------------------------------------------------------------------------ parts
def test_a_sampler_set_on_a_full_ring_knows_the_cursor():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=400)
    buffer.extend(episode(0, 6))
    buffer.extend(episode(1, 6))
    buffer.set_sampler(SliceSampler(slice_len=4))
    assert set(slices_in(buffer.sample(), 4)) == {(0, 2), (1, 0), (1, 1), (1, 2)}


def test_saved_in_the_middle_of_an_epoch_a_buffer_goes_on_with_the_same_slices(tmp_path):
    def make() -> TensorDictReplayBuffer:
        return buffer_of(SliceSamplerWithoutReplacement(slice_len=2), 20, 4)

    first, second = make(), make()
    for number in range(9):
        first.extend(episode(number, 2 + number % 3))
    first.sample()
    first.dumps(tmp_path / "saved")
    second.loads(tmp_path / "saved")
    for _ in range(6):
        assert torch.equal(first.sample()["index"], second.sample()["index"])
    for buffer in (first, second):
        buffer.extend(episode(20, 4))
    assert torch.equal(first.sample()["index"], second.sample()["index"])


def test_on_its_own_the_sampler_reads_the_ends_of_a_storage():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(episode(0, 4))
    sampler = SliceSampler(slice_len=3)
    slots, info = sampler.sample(buffer.storage, 30)
    assert set(slots.reshape(10, 3)[:, 0].tolist()) == {0, 1}
    assert info["slice_end"].tolist() == [False, False, True] * 10
    buffer.extend(episode(1, 3))
    sampler.extend(torch.arange(4, 7))
    slots, _ = sampler.sample(buffer.storage, 300)
    assert set(slots.reshape(100, 3)[:, 0].tolist()) == {0, 1, 4}


def test_rows_that_have_no_end_flag_are_refused_when_slices_are_asked_for():
    buffer = buffer_of(SliceSampler(slice_len=1), 10, 2)
    buffer.extend(numbered_rows(0, 3))
    with pytest.raises(KeyError, match="nothing tells where an episode ends"):
        buffer.sample()
