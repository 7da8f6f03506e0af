"""Whole trajectories: returns to go, lists, filters, and splits of plain data."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import (
    Boundaries,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    Reward2GoTransform,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
    find_start_stop_traj,
    split_trajs,
)
from rl_core.errors import KeyMissingError, ReplayBufferError


def rows(rewards: list[float], ends: list[int]) -> TensorDict:
    done = torch.tensor(ends).bool().unsqueeze(-1)
    nxt = {"reward": torch.tensor(rewards).float().unsqueeze(-1), "done": done}
    return TensorDict({"x": torch.arange(len(ends)), "next": nxt}, [len(ends)])


# ------------------------------------------------------------------------------------------------------ returns to go
def ordered(capacity: int, transform: Reward2GoTransform, batch_size: int) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        sampler=SamplerWithoutReplacement(shuffle=False),
        transform=transform,
        batch_size=batch_size,
    )


def test_a_return_to_go_is_the_sum_of_what_is_still_to_come():
    buffer = ordered(10, Reward2GoTransform(gamma=0.5), 5)
    buffer.extend(rows([1, 2, 4, 8, 16], [0, 0, 1, 0, 1]))
    assert buffer.sample()["reward_to_go"].flatten().tolist() == [1 + 1 + 1, 2 + 2, 4, 8 + 8, 16]


def test_the_sum_goes_on_over_the_edge_of_the_ring():
    buffer = ordered(4, Reward2GoTransform(), 4)
    buffer.extend(rows([1, 2, 4, 8, 16, 32], [0, 1, 0, 0, 0, 1]))  # slots hold the steps 4, 5, 2, 3
    assert buffer.sample()["reward_to_go"].flatten().tolist() == [48, 32, 60, 56]


def test_an_episode_without_an_end_has_no_return_to_go():
    buffer = ordered(10, Reward2GoTransform(), 2)
    buffer.extend(rows([1, 2], [0, 0]))
    with pytest.raises(ReplayBufferError, match="slot 0 has no end in the buffer"):
        buffer.sample()
    partial = ordered(10, Reward2GoTransform(unfinished="partial", out_keys=["so_far"]), 2)
    partial.extend(rows([1, 2], [0, 0]))
    assert partial.sample()["so_far"].flatten().tolist() == [3, 2]


def test_truncated_ends_an_episode_where_it_is_named():
    data = rows([1, 2, 4], [0, 0, 1])
    data["next", "truncated"] = torch.tensor([True, False, False]).unsqueeze(-1)
    buffer = ordered(10, Reward2GoTransform(done_key="done", truncated_key="truncated"), 3)
    buffer.extend(data)
    assert buffer.sample()["reward_to_go"].flatten().tolist() == [1, 6, 4]


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ReplayBufferError, match="'raise' or 'partial'"):
        Reward2GoTransform(unfinished="ignore")
    with pytest.raises(ReplayBufferError, match="as many out_keys"):
        Reward2GoTransform(in_keys=["reward", "cost"])


# ------------------------------------------------------------------------------------------------------ queries
@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_trajectories_come_from_the_oldest_on_with_their_rows_in_order(storage):
    buffer = ReplayBuffer(storage=storage(6))
    buffer.extend(rows([1, 2, 4, 8, 16, 32, 64], [0, 1, 0, 0, 1, 0, 0]))
    found = buffer.trajectories()
    assert [trajectory["x"].tolist() for trajectory in found] == [[1], [2, 3, 4], [5, 6]]
    assert [trajectory.finished for trajectory in found] == [True, True, False]
    assert [len(trajectory) for trajectory in found] == [1, 3, 2]
    assert [data["x"].tolist() for data in buffer.iter_trajectories()] == [[1], [2, 3, 4], [5, 6]]
    assert found[1].data.batch_size == (3,) and found[1][1:]["x"].tolist() == [3, 4]


def test_trajectories_can_be_chosen_by_what_they_hold():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(rows([1, 2, 4, 8, 16, 32, 64], [0, 1, 0, 0, 1, 0, 0]))
    long = buffer.filter_trajectories(lambda t: t.finished and t.length > 2)
    rich = buffer.filter_trajectories(lambda t: t["next", "reward"].sum() > 20)
    assert [t["x"].tolist() for t in long] == [[2, 3, 4]]
    assert [t["x"].tolist() for t in rich] == [[2, 3, 4], [5, 6]]
    with pytest.raises(KeyMissingError, match="'cost'"):
        rich[0]["cost"]


def test_an_empty_buffer_has_no_trajectories():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    assert buffer.trajectories() == []
    assert buffer.trajectories(Boundaries(traj_key="run")) == []


def test_trajectories_of_lanes_come_lane_by_lane():
    buffer = ReplayBuffer(storage=LazyTensorStorage(8, ndim=2))
    done = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 1]]).bool().unsqueeze(-1)
    buffer.extend(TensorDict({"x": torch.arange(8).reshape(2, 4), "next": {"done": done}}, [2, 4]))
    assert [t["x"].tolist() for t in buffer.trajectories()] == [[0, 1], [2, 3], [4, 5, 6, 7]]


# ------------------------------------------------------------------------------------------------------ plain data
def test_a_sample_of_slices_splits_into_its_slices():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=SliceSampler(slice_len=4, strict_length=False), batch_size=12
    )
    buffer.extend(rows([0] * 8, [0, 0, 1, 0, 0, 0, 0, 0]))
    parts = split_trajs(buffer.sample())
    assert len(parts) == 3 and all((part["x"].diff() == 1).all() and len(part) in (3, 4) for part in parts)


def test_each_row_of_a_batch_is_split_by_itself():
    data = torch.stack([rows([0] * 4, [0, 1, 0, 0]), rows([0] * 4, [0, 0, 0, 1])])
    assert [part["x"].tolist() for part in split_trajs(data)] == [[0, 1], [2, 3], [0, 1, 2, 3]]
    with pytest.raises(KeyMissingError, match="done_key="):
        split_trajs(data, "finished")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.booleans(), min_size=1, max_size=9),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, 8)),
)
def test_starts_and_stops_are_those_found_by_walking(lanes, flags, at_capacity, cursor):
    T = len(flags)
    cursor = None if cursor is None else cursor % T
    end = torch.stack([torch.tensor(flags).roll(lane) for lane in range(lanes)], -1)
    first, last, lengths = find_start_stop_traj(end=end, at_capacity=at_capacity, cursor=cursor)
    found = sorted(zip(first.tolist(), last.tolist(), lengths.tolist(), strict=True))
    expected = []
    for lane in range(lanes):
        ends = [bool(end[t, lane]) for t in range(T)]
        if not at_capacity:
            ends[-1] = True
        elif cursor is not None:
            ends[cursor - 1] = True
        if not any(ends):
            ends[-1] = True
        for t in range(T):
            if ends[t - 1]:
                length = next(k for k in range(T) if ends[(t + k) % T]) + 1
                expected.append(([t, lane], [(t + length - 1) % T, lane], length))
    assert found == sorted(expected)


def test_numbers_tell_trajectories_apart_too():
    first, last, lengths = find_start_stop_traj(trajectory=torch.tensor([4, 4, 7, 7, 7, 4]), at_capacity=True)
    assert first.flatten().tolist() == [5, 2] or sorted(first.flatten().tolist()) == [2, 5]
    assert sorted(zip(first.flatten().tolist(), last.flatten().tolist(), lengths.tolist(), strict=True)) == [
        (2, 4, 3),
        (5, 1, 3),
    ]
    with pytest.raises(ReplayBufferError, match="one of trajectory and end"):
        find_start_stop_traj(at_capacity=False)
