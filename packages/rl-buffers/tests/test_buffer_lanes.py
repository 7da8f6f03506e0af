"""Storages of ndim > 1: lanes that grow by time steps."""

from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from rl_buffers import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from rl_core.errors import ReplayBufferError


def steps(start: int, n: int, lanes: int = 3) -> TensorDict:
    """Lane l at step t holds 100 l + t."""
    x = 100 * torch.arange(lanes).unsqueeze(1) + torch.arange(start, start + n)
    return TensorDict({"x": x}, [lanes, n])


def buffer(max_size: int = 20, **kwargs) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(max_size, ndim=2), **kwargs)


def test_the_capacity_is_rounded_up_to_whole_steps():
    lanes = buffer(20)
    lanes.extend(steps(0, 2))
    assert lanes.storage.max_size == 21 and lanes.storage.max_steps == 7 and len(lanes) == 6


def test_each_call_appends_steps_to_all_lanes():
    lanes = buffer(20)
    lanes.extend(steps(0, 2))
    lanes.extend(steps(2, 3))
    assert lanes[:]["x"].tolist() == steps(0, 5)["x"].tolist()


def test_the_ring_overwrites_the_oldest_steps_of_all_lanes():
    lanes = buffer(12)
    lanes.extend(steps(0, 3))
    index = lanes.extend(steps(3, 3))
    assert sorted(lanes[:]["x"][1].tolist()) == [102, 103, 104, 105]
    assert index.reshape(3, 3, 2)[1].tolist() == [[3, 1], [0, 1], [1, 1]]


def test_add_takes_one_step_of_all_lanes():
    lanes = buffer(12)
    for t in range(3):
        lanes.add(steps(t, 1)[:, 0])
    assert lanes[:]["x"].tolist() == steps(0, 3)["x"].tolist()


def test_a_sample_is_flat_and_its_index_has_step_and_lane():
    lanes = buffer(21, batch_size=50)
    lanes.extend(steps(0, 7))
    sample = lanes.sample()
    assert sample.batch_size == (50,) and sample["index"].shape == (50, 2)
    assert torch.equal(sample["x"], 100 * sample["index"][:, 1] + sample["index"][:, 0])
    assert torch.equal(lanes[sample["index"]]["x"], sample["x"])
    assert len(sample["x"].unique()) > 10


def test_other_numbers_of_lanes_are_refused():
    lanes = buffer()
    lanes.extend(steps(0, 2))
    with pytest.raises(ReplayBufferError, match=r"the data have lanes \[2\], this storage has \[3\]"):
        lanes.extend(steps(0, 2, lanes=2))


def test_a_batch_without_time_is_refused_by_extend():
    with pytest.raises(
        ReplayBufferError, match=r"extend takes batch size \[lane0, time\] \(storage ndim=2\), got .*\[3\]"
    ):
        buffer().extend(steps(0, 1)[:, 0])


def test_text_stays_with_its_lane_and_step():
    lanes = buffer(20, batch_size=30)
    names = [[f"{lane}-{t}" for t in range(4)] for lane in range(3)]
    data = steps(0, 4).set("name", NonTensorStack(*(NonTensorStack(*row) for row in names)))
    lanes.extend(data)
    sample = lanes.sample()
    expected = [f"{x // 100}-{x % 100}" for x in sample["x"].tolist()]
    assert list(sample["name"]) == expected


def test_lanes_survive_a_save(tmp_path):
    first, second = buffer(12, batch_size=8), buffer(12, batch_size=8)
    first.extend(steps(0, 6))
    first.dumps(tmp_path / "saved")
    second.loads(tmp_path / "saved")
    second.extend(steps(6, 1))
    first.extend(steps(6, 1))
    assert torch.equal(first[:]["x"], second[:]["x"])


def test_two_lane_dimensions_work_alike():
    rows = ReplayBuffer(storage=LazyTensorStorage(24, ndim=3), batch_size=5)
    rows.extend(torch.arange(24).reshape(2, 3, 4))
    assert torch.equal(rows[:], torch.arange(24).reshape(2, 3, 4))
    sample, info = rows.sample(return_info=True)
    step, first, second = info["index"].unbind(-1)
    assert torch.equal(sample, first * 12 + second * 4 + step)
