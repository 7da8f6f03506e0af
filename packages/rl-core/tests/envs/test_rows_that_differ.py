"""Rows of different shapes side by side: their steps as one TensorDict, and their specs."""

import torch
from tensordict import LazyStackedTensorDict, TensorDict, lazy_stack

from rl_core import Bounded, Composite, EnvBase, Unbounded
from rl_core.envs.stack_steps import stack_steps
from rl_core.testing import CountingEnv


def row(width, t):
    wide = torch.full((width,), float(t))
    return TensorDict({"wide": wide, "next": TensorDict({"wide": wide + 1})})


def test_rows_of_different_shapes_are_stacked_each_by_itself():
    data = stack_steps([lazy_stack([row(2, t), row(3, t)]) for t in range(4)], 1)
    assert isinstance(data, LazyStackedTensorDict) and data.batch_size == (2, 4) and data.names == [None, "time"]
    assert data[0]["wide"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert data[1]["next", "wide"].tolist() == [[1] * 3, [2] * 3, [3] * 3, [4] * 3]


def test_rows_of_one_shape_are_dense_however_they_came():
    data = stack_steps([lazy_stack([row(2, t), row(2, t)]) for t in range(4)], 1)
    assert not isinstance(data, LazyStackedTensorDict) and data["wide"].shape == (2, 4, 2)


class Pair(EnvBase):
    """Only specs: two rows whose actions are 1 and 2 wide."""

    def __init__(self):
        super().__init__(batch_size=[2])
        rows = [Composite(action=Bounded(-1.0, 1.0, (width,))) for width in (1, 2)]
        self.full_action_spec = torch.stack(rows, 0)
        self.observation_spec = Composite(x=Unbounded((2, 5)), shape=[2])


def test_every_row_has_its_own_specs_where_rows_differ():
    first, second = Pair().row_specs
    assert (first.action_spec.shape, second.action_spec.shape) == ((1,), (2,))
    assert first.batch_size == () and first.observation_spec["x"].shape == (5,) and second.done_keys == Pair().done_keys
    assert CountingEnv(batch_size=[2]).row_specs is None
