"""TensorDictMaxValueWriter: the best rows stay, whatever the order and the sizes of the writes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_buffers import LazyTensorStorage, ListStorage, TensorDictMaxValueWriter, TensorDictReplayBuffer
from rl_core.errors import CheckpointError, KeyMissingError, ReplayBufferError


def rows(*rewards: float) -> TensorDict:
    reward = torch.tensor(rewards).unsqueeze(-1)
    return TensorDict({"next": TensorDict({"reward": reward}, [len(rewards)])}, [len(rewards)])


def make(size: int, storage=LazyTensorStorage, **kwargs) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=storage(size), writer=TensorDictMaxValueWriter(**kwargs), batch_size=2)


def kept(buffer: TensorDictReplayBuffer) -> list[float]:
    return sorted(buffer[:]["next", "reward"].flatten().tolist())


def test_rows_that_do_not_stay_have_slot_minus_one():
    buffer = make(2)
    assert buffer.extend(rows(1, 5, 3, 0)).tolist() == [-1, 1, 0, -1]
    assert kept(buffer) == [3, 5] and buffer.write_count == 4 and len(buffer) == 2


def test_a_refused_single_row_gives_none():
    buffer = make(2)
    assert [buffer.add(rows(reward)[0]) for reward in (1, 5, 0, 3)] == [0, 1, None, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=6),
    st.sampled_from([LazyTensorStorage, ListStorage]),
)
def test_the_highest_rows_stay_and_ties_keep_the_older(size, writes, storage):
    buffer = make(size, storage)
    offered: list[float] = []
    for write in writes:
        if write:
            buffer.extend(rows(*map(float, write)))
        offered += write
        assert len(buffer) == min(size, len(offered))
        if len(buffer):
            assert kept(buffer) == sorted(offered)[-size:]


@pytest.mark.parametrize(
    ("reduction", "best"), [("sum", [3.0, 3.0]), ("mean", [3.0, 3.0]), ("max", [0.0, 5.0]), ("min", [3.0, 3.0])]
)
def test_the_values_of_a_row_are_reduced(reduction, best):
    buffer = make(1, rank_key="score", reduction=reduction)
    buffer.extend(TensorDict({"score": torch.tensor([[0.0, 5.0], [3.0, 3.0], [-9.0, 4.0]])}, [3]))
    assert buffer[0]["score"].tolist() == best


def test_sequences_are_ranked_as_a_whole():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1), writer=TensorDictMaxValueWriter(), dim_extend=0)
    data = torch.stack([rows(1, 1, 1), rows(0, 2, 2), rows(3, 0, 0)])
    assert buffer.extend(data).tolist() == [-1, 0, -1]


def test_the_ranks_survive_a_save(tmp_path):
    first, second = make(3), make(3)
    first.extend(rows(4, 2, 9, 7))
    first.dumps(tmp_path / "saved")
    second.loads(tmp_path / "saved")
    for buffer in (first, second):
        assert buffer.extend(rows(5, 3)).tolist() == [0, -1] and kept(buffer) == [5, 7, 9]


def test_rows_of_a_storage_that_is_handed_over_are_ranked():
    buffer, other = make(3), LazyTensorStorage(3)
    filled = TensorDictReplayBuffer(storage=other)
    filled.extend(rows(4, 2, 9))
    buffer.set_storage(other)
    assert buffer.extend(rows(3)).tolist() == [1]


def test_emptying_forgets_the_ranks():
    buffer = make(2)
    buffer.extend(rows(8, 9))
    buffer.empty()
    assert buffer.extend(rows(1)).tolist() == [0]


def test_errors_name_the_entry():
    buffer = make(2)
    with pytest.raises(KeyMissingError, match=r"no entry \('next', 'reward'\)"):
        buffer.extend(TensorDict({"x": torch.zeros(2)}, [2]))
    with pytest.raises(ReplayBufferError, match=r"row 1 has a rank \(\('next', 'reward'\)\) that is not a number"):
        make(2).extend(rows(1, float("nan")))
    with pytest.raises(ReplayBufferError, match="have no lanes: use ndim=1, not 2"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(4, ndim=2), writer=TensorDictMaxValueWriter()).extend(
            torch.stack([rows(1, 2)])
        )
    with pytest.raises(ReplayBufferError, match="reduction must be one of sum, mean"):
        TensorDictMaxValueWriter(reduction="product")


def test_it_does_not_go_on_from_a_ring():
    ring = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
    ring.set_writer(TensorDictMaxValueWriter())
    assert ring.extend(rows(2, 1)).tolist() == [0, 1]
    with pytest.raises(CheckpointError, match="does not rank rows: set this writer on an empty buffer"):
        TensorDictMaxValueWriter().load_state_dict({"cursor": 1, "write_count": 1})
