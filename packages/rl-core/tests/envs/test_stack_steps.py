"""Stacking steps: time last, dense where they agree, one tensor for what stays the same."""

import torch
from tensordict import LazyStackedTensorDict, TensorDict

from rl_core.envs.stack_steps import stack_entries, stack_steps


def rows(*values, **constants):
    return [{"x": torch.tensor(value), **constants} for value in values]


def test_time_comes_after_the_batch():
    data = stack_entries(rows([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]), 1, torch.Size([2]), None)
    assert data.batch_size == (2, 3) and data["x"].tolist() == [[1, 3, 5], [2, 4, 6]]


def test_what_every_step_holds_is_repeated_in_memory_of_its_own():
    constant, nested = torch.tensor([7.0, 8.0]), TensorDict({"g": torch.tensor([1.0, 2.0])}, batch_size=[2])
    data = stack_entries(rows([1.0, 2.0], [3.0, 4.0], c=constant, n=nested), 1, torch.Size([2]), None)
    assert data["c"].tolist() == [[7, 7], [8, 8]] and data["n", "g"].tolist() == [[1, 1], [2, 2]]
    data["c"][0, 0] = data["n", "g"][0, 0] = -1.0
    assert data["c"].tolist() == [[-1, 7], [8, 8]] and data["n", "g"].tolist() == [[-1, 1], [2, 2]]
    assert constant.tolist() == [7, 8] and nested["g"].tolist() == [1, 2]


def test_gradients_of_what_is_repeated_add_up():
    constant = torch.tensor([1.0, 2.0], requires_grad=True)
    data = stack_entries(rows([1.0], [2.0], [3.0], c=constant), 0, torch.Size([]), None)
    (data["c"] * torch.tensor([[1.0], [10.0], [100.0]])).sum().backward()
    assert constant.grad.tolist() == [111, 111]


def test_a_single_step_is_copied():
    value = torch.zeros(2)
    data = stack_entries([{"x": value}], 0, torch.Size([]), None)
    data["x"].fill_(1.0)
    assert value.tolist() == [0, 0]


def test_steps_of_other_entries_or_shapes_are_not_dense():
    assert stack_entries([{"x": torch.zeros(1)}, {}], 0, torch.Size([]), None) is None
    assert stack_entries([{}, {"x": torch.zeros(1)}], 0, torch.Size([]), None) is None
    assert stack_entries([{"x": torch.zeros(1)}, {"x": torch.zeros(2)}], 0, torch.Size([]), None) is None


def test_steps_that_differ_are_a_lazy_stack_with_named_time():
    steps = [TensorDict({"x": torch.zeros(size)}) for size in (1, 2)]
    data = stack_steps(steps, 0)
    assert isinstance(data, LazyStackedTensorDict) and data.names == ["time"] and data[1]["x"].shape == (2,)
