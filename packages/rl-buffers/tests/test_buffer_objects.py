"""Rows that are not tensors: text beside tensors, arbitrary objects, rows of different shapes."""

from __future__ import annotations

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from rl_buffers import LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer, stack_rows
from rl_core.errors import ReplayBufferError


def text_rows(start: int, n: int) -> TensorDict:
    x = torch.arange(start, start + n)
    names = NonTensorStack(*(f"t{k}" for k in x.tolist()))
    return TensorDict({"x": x, "next": TensorDict({"name": names}, [n])}, [n])


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_text_survives_add_extend_overwriting_and_sampling_with_the_right_row(storage):
    buffer = TensorDictReplayBuffer(storage=storage(5), batch_size=20)
    buffer.add(text_rows(0, 1)[0])
    buffer.extend(text_rows(1, 3))
    buffer.extend(text_rows(4, 4))
    sample = buffer.sample()
    assert list(sample["next", "name"]) == [f"t{k}" for k in sample["x"].tolist()]
    assert set(sample["x"].tolist()) <= {3, 4, 5, 6, 7} and buffer[4]["next", "name"] == "t4"


def test_one_value_for_a_whole_batch_becomes_one_per_row():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), batch_size=3)
    buffer.extend(TensorDict({"x": torch.arange(2), "task": NonTensorData("walk", batch_size=[2])}, [2]))
    buffer.extend(TensorDict({"x": torch.arange(2), "task": NonTensorData("run", batch_size=[2])}, [2]))
    assert [buffer[k]["task"] for k in range(4)] == ["walk", "walk", "run", "run"]


def test_text_in_a_rollout_of_two_dimensions_is_flattened_with_it():
    data = torch.stack([text_rows(0, 3), text_rows(3, 3)])
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(6), batch_size=6)
    buffer.extend(data)
    assert [buffer[k]["next", "name"] for k in range(6)] == [f"t{k}" for k in range(6)]


def test_text_survives_a_save(tmp_path):
    for storage in (LazyTensorStorage, ListStorage):
        first, second = (TensorDictReplayBuffer(storage=storage(5), batch_size=20) for _ in range(2))
        first.extend(text_rows(0, 7))
        first.dumps(tmp_path / storage.__name__)
        second.loads(tmp_path / storage.__name__)
        assert [second[k]["next", "name"] for k in range(5)] == ["t5", "t6", "t2", "t3", "t4"]


def test_a_text_entry_that_is_missing_is_named():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(text_rows(0, 2))
    with pytest.raises(ReplayBufferError, match=r"the data lack \('next', 'name'\)"):
        buffer.extend(text_rows(0, 2).exclude(("next", "name")))


def test_rows_can_be_overwritten_with_their_text():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(text_rows(0, 3))
    buffer[[2, 0]] = text_rows(8, 2)
    assert [buffer[k]["next", "name"] for k in range(3)] == ["t9", "t1", "t8"]


def test_any_object_can_be_a_row():
    buffer = ReplayBuffer(storage=ListStorage(3), batch_size=4)
    buffer.extend([{"a": torch.tensor(1), "b": ("u", 2.0)}, {"a": torch.tensor(3), "b": ("v", 4.0)}])
    sample = buffer.sample()
    assert sample["a"].shape == (4,) and len(sample["b"][0]) == 4
    assert [b for b in sample["b"][0]] == ["u" if a == 1 else "v" for a in sample["a"].tolist()]


def test_tensordicts_of_different_shapes_are_stacked_lazily():
    buffer = ReplayBuffer(storage=ListStorage(3), batch_size=6)
    for n in (2, 3):
        buffer.add(TensorDict({"tokens": torch.full((n,), n)}, []))
    sample = buffer.sample()
    assert sample.batch_size == (6,) and all(row["tokens"].numel() == row["tokens"][0] for row in sample.unbind(0))


def test_tensors_of_different_shapes_say_what_to_do():
    with pytest.raises(ReplayBufferError, match=r"shapes \[\(2,\), \(3,\)\].*collate_fn="):
        stack_rows([torch.zeros(2), torch.zeros(3)])


def test_a_list_storage_copies_what_it_is_given():
    row = {"x": torch.zeros(2)}
    buffer = ReplayBuffer(storage=ListStorage(3), batch_size=1)
    buffer.add(row)
    row["x"].fill_(5.0)
    assert buffer.sample()["x"].sum() == 0


def test_a_tensordict_buffer_refuses_other_rows():
    buffer = TensorDictReplayBuffer(storage=ListStorage(3), batch_size=1)
    buffer.extend(["a"])
    with pytest.raises(ReplayBufferError, match=r"samples TensorDicts.*gave a list: use ReplayBuffer"):
        buffer.sample()
