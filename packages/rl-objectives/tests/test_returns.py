"""Return functions against hand-computed numbers and an O(T^2) reference written from the definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import SpecError
from rl_objectives import functional as R
from rl_objectives import native
from rl_objectives.functional.scan import reverse_scan, torch_reverse_scan


def case_25(dtype=torch.float64):
    reward = torch.ones(3, 1, dtype=dtype)
    value = torch.full((3, 1), 0.5, dtype=dtype)
    next_value = torch.tensor([[0.5], [0.5], [2.0]], dtype=dtype)
    done = torch.tensor([[False], [False], [True]])
    return value, next_value, reward, done


TRUNCATED = [2.82632, 2.606, 2.3]
TERMINATED = [1.8932, 1.31, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tensor_discount", [False, True])
@pytest.mark.parametrize("compiled_kernel", [True, False])
def test_a_truncated_last_step_bootstraps_and_a_terminated_one_does_not(
    dtype, tensor_discount, compiled_kernel, monkeypatch
):
    if not compiled_kernel:
        monkeypatch.setattr(native, "library", lambda: None)
    value, next_value, reward, done = case_25(dtype)
    gamma, lmbda = (torch.full_like(reward, 0.9), torch.full_like(reward, 0.8)) if tensor_discount else (0.9, 0.8)
    for terminated, expected in ((torch.zeros_like(done), TRUNCATED), (done, TERMINATED)):
        advantage, target = R.generalized_advantage_estimate(gamma, lmbda, value, next_value, reward, done, terminated)
        expected = torch.tensor(expected, dtype=dtype).unsqueeze(-1)
        torch.testing.assert_close(advantage, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(target, expected + 0.5, rtol=1e-5, atol=1e-5)


def test_without_terminated_every_end_is_a_termination():
    value, next_value, reward, done = case_25()
    advantage, _ = R.generalized_advantage_estimate(0.9, 0.8, value, next_value, reward, done)
    torch.testing.assert_close(advantage.squeeze(-1), torch.tensor(TERMINATED, dtype=torch.float64))


def test_lambda_0_is_the_td_error_and_lambda_1_the_return_less_the_value():
    value, next_value, reward, done = case_25()
    alive = torch.zeros_like(done)
    td_error, _ = R.generalized_advantage_estimate(0.9, 0.0, value, next_value, reward, done, alive)
    torch.testing.assert_close(td_error.squeeze(-1), torch.tensor([0.95, 0.95, 2.3], dtype=torch.float64))
    full, _ = R.generalized_advantage_estimate(0.9, 1.0, value, next_value, reward, done, alive)
    # 1 + .9 * (1 + .9 * (1 + .9 * 2)) = 4.168; less .5
    torch.testing.assert_close(full[0], torch.tensor([3.668], dtype=torch.float64))


def test_td_lambda_agrees_with_gae_where_each_next_value_is_the_following_value():
    value, next_value, reward, done = case_25()
    alive = torch.zeros_like(done)
    returns = R.td_lambda_return_estimate(0.9, 0.8, next_value, reward, done, alive)
    torch.testing.assert_close(returns.squeeze(-1) - 0.5, torch.tensor(TRUNCATED, dtype=torch.float64))
    advantage = R.td_lambda_advantage_estimate(0.9, 0.8, value, next_value, reward, done, done)
    torch.testing.assert_close(advantage.squeeze(-1), torch.tensor(TERMINATED, dtype=torch.float64))


def slow_gae(gamma, lmbda, value, next_value, reward, done, terminated):
    """Sum of (gamma lambda)^k delta_{t+k} up to and including the first end; every step from scratch, float64."""
    steps = reward.shape[0]
    delta = [reward[t] + gamma[t] * next_value[t] * (not terminated[t]) - value[t] for t in range(steps)]
    result = torch.zeros(steps, dtype=torch.float64)
    for t in range(steps):
        weight = 1.0
        for k in range(t, steps):
            result[t] += weight * delta[k]
            weight *= gamma[k] * lmbda[k]
            if done[k]:
                break
    return result


def slow_td_lambda(gamma, lmbda, next_value, reward, done, terminated):
    """The recursion of the lambda-return unrolled from each start, float64."""
    steps = reward.shape[0]

    def from_step(t):
        if terminated[t]:
            return reward[t]
        if done[t] or t == steps - 1:
            return reward[t] + gamma[t] * next_value[t]
        return reward[t] + gamma[t] * ((1 - lmbda[t]) * next_value[t] + lmbda[t] * from_step(t + 1))

    return torch.stack([from_step(t) for t in range(steps)])


@st.composite
def trajectories(draw):
    shape = draw(st.sampled_from([(1, 7, 1), (9, 13, 1), (2, 3, 17, 1), (2, 11, 3), (16, 1, 1), (3, 30, 1)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    value, next_value, reward = torch.randn(3, *shape, dtype=torch.float64, generator=generator)
    done = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.1, 0.5]))
    terminated = done & (torch.rand(shape, generator=generator) < 0.5)
    gamma, lmbda = draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])), draw(st.sampled_from([0.0, 0.7, 0.95, 1.0]))
    per_step = draw(st.booleans())
    if per_step:
        gamma, lmbda = gamma * torch.rand(2, *shape, dtype=torch.float64, generator=generator), torch.tensor(lmbda)
        gamma, lmbda = gamma[0], lmbda.double().expand(shape)
    return gamma, lmbda, value, next_value, reward, done, terminated


def column_by_column(function, gamma, lmbda, *series):
    """Apply a reference on [T] to each column of [*B, T, F]."""
    shape = series[-1].shape
    gamma, lmbda = (torch.as_tensor(x, dtype=torch.float64).expand(shape) for x in (gamma, lmbda))
    moved = [x.movedim(-2, 0).flatten(1).unbind(1) for x in (gamma, lmbda, *series)]
    columns = [function(*column) for column in zip(*moved, strict=True)]
    trailing = series[-1].movedim(-2, 0).shape
    return torch.stack(columns, 1).reshape(trailing).movedim(0, -2)


@pytest.mark.parametrize("compiled_kernel", [True, False])
@settings(max_examples=40, deadline=None)
@given(data=trajectories())
def test_gae_equals_the_quadratic_reference(compiled_kernel, data):
    with pytest.MonkeyPatch.context() as patch:
        if not compiled_kernel:
            patch.setattr(native, "library", lambda: None)
        advantage, target = R.vec_generalized_advantage_estimate(*data)
    torch.testing.assert_close(advantage, column_by_column(slow_gae, *data))
    torch.testing.assert_close(target, advantage + data[2])


@pytest.mark.parametrize("compiled_kernel", [True, False])
@settings(max_examples=40, deadline=None)
@given(data=trajectories())
def test_td_lambda_and_td1_equal_the_recursion(compiled_kernel, data):
    gamma, lmbda, _, *rest = data
    with pytest.MonkeyPatch.context() as patch:
        if not compiled_kernel:
            patch.setattr(native, "library", lambda: None)
        mixed = R.vec_td_lambda_return_estimate(gamma, lmbda, *rest)
        full = R.vec_td1_return_estimate(gamma, *rest)
    torch.testing.assert_close(mixed, column_by_column(slow_td_lambda, gamma, lmbda, *rest))
    torch.testing.assert_close(full, column_by_column(slow_td_lambda, gamma, 1.0, *rest))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_and_torch_twin_agree_to_1e_6(dtype):
    if native.native_state() != "native":
        pytest.skip("no library here")
    torch.manual_seed(0)
    value, next_value, reward = torch.randn(3, 12, 300, 1).to(dtype)
    done = torch.rand(12, 300, 1) < 0.02
    arguments = (0.99, 0.95, value, next_value, reward, done, done & (torch.rand(12, 300, 1) < 0.5))
    fast = R.generalized_advantage_estimate(*arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "library", lambda: None)
        twin = R.generalized_advantage_estimate(*arguments)
    for one, other in zip(fast, twin, strict=True):
        scale = other.abs().max()
        torch.testing.assert_close(one / scale, other / scale, rtol=0, atol=1e-6)


def test_gradients_of_the_torch_twin_are_right():
    torch.manual_seed(0)
    value, next_value, reward = (torch.randn(2, 5, 1, dtype=torch.float64, requires_grad=True) for _ in range(3))
    done = torch.zeros(2, 5, 1, dtype=torch.bool)
    done[0, 2] = done[1, 4] = True
    ended = done.clone()
    ended[0, 2] = False
    gamma = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)

    def both(gamma, value, next_value, reward):
        gae = R.generalized_advantage_estimate(gamma, 0.8, value, next_value, reward, done, ended)
        return (*gae, R.td_lambda_return_estimate(gamma, 0.8, next_value, reward, done, ended))

    assert torch.autograd.gradcheck(both, (gamma, value, next_value, reward))


@pytest.mark.parametrize("time_dim", [0, 1, 2, -1, -4])
def test_any_dimension_can_be_time(time_dim):
    torch.manual_seed(0)
    value, next_value, reward = torch.randn(3, 4, 5, 6, 2, dtype=torch.float64)
    done = torch.rand(4, 5, 6, 2) < 0.3
    advantage, _ = R.generalized_advantage_estimate(0.9, 0.8, value, next_value, reward, done, done, time_dim=time_dim)
    moved = [x.movedim(time_dim, -2) for x in (value, next_value, reward, done, done)]
    expected, _ = R.generalized_advantage_estimate(0.9, 0.8, *moved)
    torch.testing.assert_close(advantage, expected.movedim(-2, time_dim))


def test_inputs_need_not_be_contiguous_and_are_left_alone():
    value = torch.randn(5, 3, 1).transpose(0, 1)
    done = torch.zeros(3, 5, 1, dtype=torch.bool)
    kept = value.clone()
    strided, _ = R.generalized_advantage_estimate(0.9, 0.8, value, value, value, done)
    dense, _ = R.generalized_advantage_estimate(0.9, 0.8, kept, kept, kept, done)
    torch.testing.assert_close(strided, dense)
    torch.testing.assert_close(value, kept, rtol=0, atol=0)


@pytest.mark.parametrize("compiled_kernel", [True, False])
def test_a_nan_behind_an_end_stays_behind_it(compiled_kernel, monkeypatch):
    if not compiled_kernel:
        monkeypatch.setattr(native, "library", lambda: None)
    value, next_value, reward = torch.zeros(3, 4, 1)
    next_value[1] = float("nan")  # an autoreset simulator may leave no final observation
    reward[2] = float("nan")
    done = torch.tensor([[False], [True], [False], [False]])
    advantage, _ = R.generalized_advantage_estimate(0.9, 0.8, value, next_value, reward, done, done)
    returns = R.td_lambda_return_estimate(0.9, 0.8, next_value, reward, done, done)
    assert advantage[:2].isfinite().all() and returns[:2].isfinite().all()


def test_td0_takes_the_next_value_unless_terminated():
    ended = torch.tensor([[False], [True]])
    reward, value = torch.ones(2, 1), torch.full((2, 1), 4.0)
    assert R.td0_return_estimate(0.5, value, reward, ended).flatten().tolist() == [3.0, 1.0]
    advantage = R.td0_advantage_estimate(0.5, value, value, reward, torch.ones_like(ended), ended)
    assert advantage.flatten().tolist() == [-1.0, -3.0]


def test_reward_to_go_stops_at_ends_and_bootstraps_nothing():
    reward = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    done = torch.tensor([[False], [True], [False], [False]])
    assert R.reward2go(reward, done, 0.5).flatten().tolist() == [2.0, 2.0, 5.0, 4.0]
    assert R.reward2go(reward, done, torch.tensor(0.5)).flatten().tolist() == [2.0, 2.0, 5.0, 4.0]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 8, 9])
def test_the_scan_and_its_twin_solve_the_recurrence(steps):
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, steps, 2, dtype=torch.float64)
    b[:, ::4] = 0
    expected, x = torch.zeros_like(a), torch.zeros(3, 2, dtype=torch.float64)
    for t in reversed(range(steps)):
        x = a[:, t] + b[:, t] * x
        expected[:, t] = x
    torch.testing.assert_close(reverse_scan(a, b, 1), expected)
    torch.testing.assert_close(torch_reverse_scan(a, b, 1), expected)


def test_shapes_that_would_broadcast_are_refused_by_name():
    value, next_value, reward, done = case_25()
    with pytest.raises(SpecError, match=r"state_value \[3, 1\] and reward \[3\] must have one shape"):
        R.generalized_advantage_estimate(0.9, 0.8, value, next_value, reward.squeeze(-1), done)
    with pytest.raises(SpecError, match=r"state_value \[3, 1\] and done \[3, 3\]"):
        R.generalized_advantage_estimate(0.9, 0.8, value, next_value, reward, done.expand(3, 3))


def test_flags_must_be_bool():
    value, next_value, reward, done = case_25()
    with pytest.raises(SpecError, match=r"terminated must be a bool tensor; got torch\.float32"):
        R.generalized_advantage_estimate(0.9, 0.8, value, next_value, reward, done, done.float())


def test_mixed_precision_gives_the_wider_type():
    value, next_value, reward, done = case_25()
    advantage, _ = R.generalized_advantage_estimate(0.9, 0.8, value.float(), next_value, reward.float(), done)
    assert advantage.dtype == torch.float64
