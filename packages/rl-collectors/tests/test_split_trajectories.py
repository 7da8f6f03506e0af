import pytest
import torch
from tensordict import TensorDict

from rl_collectors import split_trajectories
from rl_core.errors import KeyMissingError


def test_pieces_are_padded_in_the_order_of_rows_then_time():
    ids = torch.tensor([[0, 0, 2], [1, 1, 1]])
    data = TensorDict({"x": torch.arange(6.0).reshape(2, 3, 1), ("collector", "traj_ids"): ids}, [2, 3])
    split = split_trajectories(data)
    assert split.batch_size == (3, 3) and split.names == [None, "time"]
    assert split["x"].squeeze(-1).tolist() == [[0, 1, 0], [2, 0, 0], [3, 4, 5]]
    assert split["collector", "mask"].tolist() == [[True, True, False], [True, False, False], [True, True, True]]


def test_without_ids_ends_separate_trajectories():
    done = torch.tensor([False, True, False, False]).unsqueeze(-1)
    split = split_trajectories(TensorDict({"x": torch.arange(4.0), ("next", "done"): done}, [4]))
    assert split["x"].tolist() == [[0, 1], [2, 3]] and split["traj_ids"].tolist() == [[0, 0], [1, 1]]


def test_rows_with_equal_ids_are_not_glued_together():
    done = torch.zeros(2, 2, 1, dtype=torch.bool)
    assert split_trajectories(TensorDict({("next", "done"): done}, [2, 2])).batch_size == (2, 2)


def test_data_without_ids_or_ends_is_an_error():
    with pytest.raises(KeyMissingError, match="trajectory_key"):
        split_trajectories(TensorDict({"x": torch.zeros(3)}, [3]))
