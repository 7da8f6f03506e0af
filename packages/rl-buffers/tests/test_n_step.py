"""n-step returns: reward sums, landing states and their end flags, at episode ends, at the cursor and in batches."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from rl_buffers import (
    LazyTensorStorage,
    ListStorage,
    MultiStep,
    MultiStepTransform,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.transforms import Compose


def steps(rewards: list[float], ends: list[str], start: int = 0) -> TensorDict:
    """Row t observes t, its successor t + 1; an end is "" (none), "m" (terminated) or "u" (truncated)."""
    t = torch.arange(start, start + len(rewards)).float().unsqueeze(-1)
    terminated = torch.tensor([end == "m" for end in ends]).unsqueeze(-1)
    truncated = torch.tensor([end == "u" for end in ends]).unsqueeze(-1)
    nxt = {
        "observation": t + 1,
        "reward": torch.tensor(rewards).float().unsqueeze(-1),
        "done": terminated | truncated,
        "terminated": terminated,
        "truncated": truncated,
    }
    return TensorDict({"observation": t, "next": nxt}, [len(rewards)])


def in_order(capacity: int, transform, batch_size: int, storage=LazyTensorStorage) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=storage(capacity),
        sampler=SamplerWithoutReplacement(shuffle=False),
        transform=transform,
        batch_size=batch_size,
    )


def column(batch: TensorDict, *key: str) -> list:
    return batch[key].flatten().tolist()


def targets(batch: TensorDict, gamma: float, value: float) -> torch.Tensor:
    """TD(0) with a value that is the same in all states."""
    discount = gamma ** batch["steps_to_next_obs"]
    return (batch["next", "reward"] + discount * ~batch["next", "terminated"] * value).flatten()


# ------------------------------------------------------------------------------------------------------ the end
def test_a_terminal_state_is_not_bootstrapped_from_however_far_it_is():
    data = steps([1, 1, 1, 1], ["", "", "", "m"])
    buffer = in_order(10, MultiStepTransform(3, 0.9), 4)
    buffer.extend(data)
    right = torch.tensor([2.71 + 0.729 * 1000, 2.71, 1.9, 1.0])
    torch.testing.assert_close(targets(buffer.sample(), 0.9, 1000.0), right)
    torch.testing.assert_close(targets(MultiStep(gamma=0.9, n_steps=3)(data), 0.9, 1000.0), right)


def test_end_flags_stay_at_their_step_where_that_is_asked_for():
    data = steps([1, 1, 1, 1], ["", "", "", "m"])
    buffer = in_order(10, MultiStepTransform(3, 0.9, landing_ends=False), 4)
    buffer.extend(data)
    wrong = torch.tensor([731.71, 731.71, 811.9, 1.0])
    torch.testing.assert_close(targets(buffer.sample(), 0.9, 1000.0), wrong)
    torch.testing.assert_close(targets(MultiStep(0.9, 3, landing_ends=False)(data), 0.9, 1000.0), wrong)


def test_a_truncated_landing_is_an_end_with_a_value():
    buffer = in_order(10, MultiStepTransform(3, 0.5), 4)
    buffer.extend(steps([1, 2, 4, 8], ["", "", "u", ""]))
    batch = buffer.sample()
    assert column(batch, "next", "reward") == [1 + 1 + 1, 2 + 2, 4, 8]
    assert column(batch, "next", "observation") == [3, 3, 3, 4]
    assert column(batch, "next", "truncated") == [True, True, True, False]
    assert column(batch, "next", "done") == [True, True, True, False]
    assert not any(column(batch, "next", "terminated")) and all(column(batch, "nonterminal"))
    assert column(batch, "steps_to_next_obs") == [3, 2, 1, 1]
    assert column(batch, "gamma") == [0.125, 0.25, 0.5, 0.5]
    assert column(batch, "next", "original_reward") == [1, 2, 4, 8]
    assert column(batch, "observation") == [0, 1, 2, 3]


def test_a_window_stops_at_the_newest_row_of_a_full_ring():
    buffer = in_order(4, MultiStepTransform(3, 1.0), 4)
    buffer.extend(steps([1, 2, 4, 8, 16, 32], [""] * 6))  # slots hold the steps 4, 5, 2, 3
    batch = buffer.sample()
    assert column(batch, "observation") == [4, 5, 2, 3]
    assert column(batch, "next", "reward") == [48, 32, 28, 56]
    assert column(batch, "next", "observation") == [6, 6, 5, 6]
    assert column(batch, "steps_to_next_obs") == [2, 1, 3, 3]


def test_rows_written_later_lengthen_the_returns_of_earlier_ones():
    buffer = in_order(10, MultiStepTransform(3, 1.0), 2)
    buffer.extend(steps([1, 2], ["", ""]))
    assert column(buffer.sample(), "next", "reward") == [3, 2]
    buffer.extend(steps([4], [""], start=2))
    assert column(buffer.sample(2), "next", "reward") == [7, 6]


# ------------------------------------------------------------------------------------------------------ shapes
def test_counts_have_the_shape_of_the_reward_of_their_group():
    data = steps([1, 1, 1], ["", "", ""])
    data["next", "agents", "reward"] = torch.arange(6.0).reshape(3, 2, 1)
    data["next", "agents", "observation"] = torch.arange(6.0).reshape(3, 2, 1)
    for make in (
        lambda keys: MultiStep(0.5, 2, reward_keys=keys),
        lambda keys: MultiStepTransform(2, 0.5, reward_keys=keys),
    ):
        multi_step = make([("agents", "reward"), "reward"])
        if isinstance(multi_step, MultiStep):
            batch = multi_step(data)
        else:
            buffer = in_order(10, multi_step, 3)
            buffer.extend(data)
            batch = buffer.sample()
        assert batch["agents", "steps_to_next_obs"].shape == (3, 2, 1)
        assert batch["agents", "gamma"].flatten().tolist() == [0.25] * 4 + [0.5] * 2
        assert column(batch, "next", "agents", "reward") == [0 + 1.0, 1 + 1.5, 2 + 2.0, 3 + 2.5, 4, 5]
        assert column(batch, "next", "agents", "observation") == [2, 3, 4, 5, 4, 5]
        assert column(batch, "next", "reward") == [1.5, 1.5, 1.0]


def test_text_moves_with_the_landing_step():
    data = steps([1, 1, 1], ["", "", "m"])
    data["next", "text"] = NonTensorStack("a", "b", "c")
    buffer = in_order(10, MultiStepTransform(2, 1.0), 3)
    buffer.extend(data)
    assert list(buffer.sample()["next", "text"]) == ["b", "c", "c"]


def test_lists_of_rows_work_alike():
    buffer = in_order(10, MultiStepTransform(3, 0.9), 4, ListStorage)
    buffer.extend(steps([1, 1, 1, 1], ["", "", "", "m"]))
    torch.testing.assert_close(buffer.sample()["next", "reward"].flatten(), torch.tensor([2.71, 2.71, 1.9, 1.0]))


def test_lanes_do_not_mix():
    data = torch.stack([steps([1, 1, 1, 1], ["", "", "", ""]), steps([10, 10, 10, 10], ["", "m", "", ""])])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100, ndim=2),
        sampler=SamplerWithoutReplacement(shuffle=False),
        transform=MultiStepTransform(3, 1.0),
        batch_size=8,
    )
    buffer.extend(data)
    batch = buffer.sample()
    by_lane = batch["next", "reward"].reshape(4, 2).T.tolist()
    assert by_lane == [[3, 3, 2, 1], [20, 10, 20, 10]]


def test_a_slice_looks_beyond_its_end_and_is_cut_there_nevertheless():
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=2),
        transform=MultiStepTransform(2, 1.0),
        batch_size=20,
    )
    buffer.extend(steps([1, 2, 4, 8, 16], [""] * 5))
    batch = buffer.sample().reshape(10, 2)
    t = batch["observation"].squeeze(-1)
    expected = torch.tensor([3.0, 6, 12, 24, 16])[t.long()]
    assert torch.equal(batch["next", "reward"].squeeze(-1), expected)
    assert batch["next", "truncated"].squeeze(-1).tolist() == [[False, True]] * 10


def test_other_transforms_come_after():
    def double(batch):
        return batch.set(("next", "reward"), 2 * batch["next", "reward"])

    for transform in (Compose(double, MultiStepTransform(2, 1.0)), Compose(MultiStepTransform(2, 1.0), double)):
        buffer = in_order(10, transform, 2)
        buffer.extend(steps([1, 2], ["", ""]))
        assert column(buffer.sample(), "next", "reward") == [6, 4]


def test_data_that_are_written_stay_as_they_are():
    data = steps([1, 1, 1, 1], ["", "", "", "m"])
    before = data.clone()
    multi_step = MultiStep(0.9, 3)
    multi_step(data)
    assert (data == before).all() and set(data.keys(True, True)) == set(before.keys(True, True))
    buffer = in_order(10, MultiStepTransform(3, 0.9), 4)
    buffer.extend(data)
    buffer.sample()
    assert (buffer[:] == before).all()


# ------------------------------------------------------------------------------------------------------ batches
def test_padding_after_an_episode_is_not_reached():
    data = steps([1, 1, 1, 0], ["", "", "", ""]).unsqueeze(0)
    data["collector", "mask"] = torch.tensor([[True, True, True, False]])
    assert MultiStep(1.0, 3)(data)["next", "reward"].flatten().tolist()[:3] == [3, 2, 1]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**20))
def test_batches_and_buffers_give_what_the_definition_says(lanes, T, n, seed):
    generator = torch.Generator().manual_seed(seed)
    gamma = 0.9
    reward = torch.randn(lanes, T, generator=generator, dtype=torch.float64)
    kinds = torch.randint(6, (lanes, T), generator=generator)
    names = [["m" if kind == 0 else "u" if kind == 1 else "" for kind in lane] for lane in kinds.tolist()]
    data = torch.stack([steps(reward[lane].tolist(), names[lane]) for lane in range(lanes)])
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(lanes * T, ndim=2),
        sampler=SamplerWithoutReplacement(shuffle=False),
        transform=MultiStepTransform(n, gamma),
        batch_size=lanes * T,
    )
    buffer.extend(data)
    drawn = buffer.sample()
    offline = MultiStep(gamma, n)(data)
    for lane in range(lanes):
        for t in range(T):
            total, k = 0.0, 0
            while True:
                total += gamma**k * float(reward[lane, t + k])
                k += 1
                if k == n or names[lane][t + k - 1] or t + k == T:
                    break
            row = drawn[(drawn["index"] == torch.tensor([t, lane])).all(-1)][0]
            for found in (row, offline[lane, t]):
                assert abs(float(found["next", "reward"]) - total) < 1e-5
                assert int(found["steps_to_next_obs"]) == k
                assert float(found["next", "observation"]) == t + k
                assert bool(found["next", "terminated"]) == (names[lane][t + k - 1] == "m")
                assert abs(float(found["gamma"]) - gamma**k) < 1e-6


# ------------------------------------------------------------------------------------------------------ errors
def test_arguments_out_of_range_are_refused():
    for make in (lambda n, g: MultiStep(g, n), lambda n, g: MultiStepTransform(n, g)):
        for n, gamma in ((0, 0.9), (1, 1.5), (1, -0.1)):
            with pytest.raises(ReplayBufferError, match="n_steps must be at least 1 and gamma in"):
                make(n, gamma)


def test_a_missing_reward_is_named():
    data = steps([1], [""]).exclude(("next", "reward"))
    with pytest.raises(KeyMissingError, match="reward_keys="):
        MultiStep(0.9, 2)(data)
    buffer = in_order(10, MultiStepTransform(2, 0.9), 1)
    buffer.extend(data)
    with pytest.raises(KeyMissingError, match="'next', 'reward'"):
        buffer.sample()


def test_rows_without_a_next_are_refused():
    buffer = in_order(10, MultiStepTransform(2, 0.9, done_keys="done"), 1)
    buffer.extend(TensorDict({"done": torch.zeros(2, 1).bool()}, [2]))
    with pytest.raises(ReplayBufferError, match="MultiStepTransform needs TensorDict rows with a 'next'"):
        buffer.sample()


def test_a_copied_buffer_has_returns_of_its_own():
    buffer = in_order(10, MultiStepTransform(3, 1.0), 2)
    buffer.extend(steps([1, 2], ["", ""]))
    other = copy.deepcopy(buffer)
    other.extend(steps([4], [""], start=2))
    assert column(buffer.sample(), "next", "reward") == [3, 2]
    assert column(other.sample(2), "next", "reward") == [7, 6]
