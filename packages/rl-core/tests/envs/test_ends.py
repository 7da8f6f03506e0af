import pytest
import torch
from tensordict import TensorDict

from rl_core.envs.ends import any_done, complete_ends, end_groups
from rl_core.errors import EnvError


def flags(*names, shape=(1,)):
    return end_groups({name: torch.Size(shape) for name in names})


def bits(*values):
    return torch.tensor(values, dtype=torch.bool).unsqueeze(-1)


def test_nothing_given_means_no_end():
    td = complete_ends(TensorDict({}), flags("done", "terminated", "truncated"))
    assert not td["done"].any() and not td["terminated"].any() and not td["truncated"].any()
    assert td["done"].shape == (1,)


def test_done_alone_terminates():
    td = complete_ends(TensorDict({"done": bits(True)[0]}), flags("done", "terminated"))
    assert td["terminated"].item() is True


def test_done_is_terminated_or_truncated():
    groups = flags("done", "terminated", "truncated", shape=(4, 1))
    td = TensorDict({"terminated": bits(0, 1, 0, 1), "truncated": bits(0, 0, 1, 1)}, [4])
    assert complete_ends(td, groups)["done"].squeeze(-1).tolist() == [False, True, True, True]


def test_a_done_that_is_neither_counts_as_truncated():
    groups = flags("done", "terminated", "truncated")
    td = complete_ends(TensorDict({"done": bits(True)[0], "terminated": bits(False)[0]}), groups)
    assert td["truncated"].item() is True and td["done"].item() is True


def test_done_and_truncated_without_terminated_is_an_error():
    with pytest.raises(EnvError, match="cannot be inferred"):
        complete_ends(
            TensorDict({"done": bits(True)[0], "truncated": bits(False)[0]}), flags("done", "terminated", "truncated")
        )


def test_flags_without_the_trailing_dimension_are_reshaped():
    td = complete_ends(TensorDict({"terminated": torch.tensor(True)}), flags("done", "terminated"))
    assert td["terminated"].shape == (1,) and td["done"].item() is True


def test_flags_of_another_dtype_are_an_error():
    with pytest.raises(EnvError, match=r"torch\.bool"):
        complete_ends(TensorDict({"done": torch.ones(1)}), flags("done", "terminated"))


def test_groups_complete_on_their_own():
    groups = end_groups(
        {"done": torch.Size([1]), ("agents", "done"): torch.Size([2, 1]), ("agents", "truncated"): torch.Size([2, 1])}
    )
    td = TensorDict({("agents", "terminated"): bits(True, False), ("agents", "truncated"): bits(False, True)})
    complete_ends(td, groups)
    assert td["agents", "done"].all() and not td["done"].any()
    assert any_done(td, groups, 0) is None  # the root decides


def test_without_a_root_flag_any_member_ends_the_row():
    groups = end_groups({("agents", "done"): torch.Size([2, 3, 1])})
    td = TensorDict({("agents", "done"): torch.zeros(2, 3, 1, dtype=torch.bool)}, [2])
    td["agents", "done"][1, 2] = True
    assert any_done(td, groups, 1).tolist() == [False, True]


def test_other_leaf_names_are_an_error():
    with pytest.raises(EnvError, match="'finished'"):
        end_groups({"finished": torch.Size([1])})
