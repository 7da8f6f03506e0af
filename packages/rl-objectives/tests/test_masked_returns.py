"""Agents that do not act in every row: their returns equal those of a trajectory made of their own rows alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import LossError, SpecError
from rl_objectives import functional as R
from rl_objectives import native
from rl_objectives.functional.masked_td import masked_td_lambda_return_estimate

GAMMA, LMBDA = 0.9, 0.8


@st.composite
def masked_series(draw):
    """[T] columns: value, next_value, reward, done, terminated, acts, exists."""
    steps = draw(st.integers(1, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    value, next_value, reward = torch.randn(3, steps, dtype=torch.float64, generator=generator)

    def flags():
        return torch.tensor(draw(st.lists(st.booleans(), min_size=steps, max_size=steps)))

    done = flags() & flags()
    acts, exists = flags() | flags(), flags() | flags()
    # A value behind a row in which the agent acted is that of the next row, if it goes on there.
    goes_on = ~done & exists & exists.roll(-1) & (torch.arange(steps) < steps - 1)
    next_value = torch.where(goes_on, value.roll(-1), next_value)
    return value, next_value, reward, done, done & flags(), acts, exists


def own_trajectory(value, next_value, reward, done, terminated, acts, exists):
    """The agent's steps as a person would note them down: [row, reward, next value, done, terminated]."""
    steps, notes, open_step = len(reward), [], None
    for t in range(steps):
        if not exists[t]:
            continue
        if acts[t]:
            if open_step is not None:
                notes.append([*open_step[:2], value[t], False, False])
            open_step = [t, 0.0]
        if open_step is None:
            continue
        open_step[1] += reward[t]
        cut = t + 1 < steps and not exists[t + 1]
        if done[t] or terminated[t] or cut:
            notes.append([*open_step, next_value[t], True, bool(terminated[t])])
            open_step = None
    if open_step is not None:
        notes.append([*open_step, next_value[-1], False, False])
    return notes


def on_own_rows(function, series):
    """Apply a return function to the agent's own trajectory; rows in which it does not act get nan."""
    notes, value = own_trajectory(*series), series[0]
    result = torch.full_like(value, float("nan"))
    if notes:
        rows = torch.tensor([note[0] for note in notes])
        reward, next_value = (torch.stack([torch.as_tensor(n[i]).double() for n in notes])[:, None] for i in (1, 2))
        done, terminated = (torch.tensor([n[i] for n in notes])[:, None] for i in (3, 4))
        result[rows] = function(value[rows][:, None], next_value, reward, done, terminated).squeeze(-1)
    return result


def column(series):
    return [x.unsqueeze(-1) for x in series]


@pytest.mark.parametrize("compiled_kernel", [True, False])
@settings(max_examples=80, deadline=None)
@given(series=masked_series(), per_step=st.booleans())
def test_gae_equals_gae_on_the_own_rows(compiled_kernel, series, per_step):
    expected = on_own_rows(
        lambda v, nv, r, d, m: R.generalized_advantage_estimate(GAMMA, LMBDA, v, nv, r, d, m)[0], series
    )
    gamma = torch.full((len(series[0]), 1), GAMMA, dtype=torch.float64) if per_step else GAMMA
    with pytest.MonkeyPatch.context() as patch:
        if not compiled_kernel:
            patch.setattr(native, "library", lambda: None)
        advantage, target = R.masked_generalized_advantage_estimate(gamma, LMBDA, *column(series))
    acts = series[-2] & series[-1]
    torch.testing.assert_close(advantage.squeeze(-1), expected.nan_to_num(0.0))
    torch.testing.assert_close(target.squeeze(-1), torch.where(acts, series[0] + expected, series[0]))


@pytest.mark.parametrize("lmbda", [0.0, 0.8, 1.0])
@settings(max_examples=50, deadline=None)
@given(series=masked_series())
def test_td_lambda_equals_td_lambda_on_the_own_rows(lmbda, series):
    expected = on_own_rows(lambda v, nv, r, d, m: R.td_lambda_return_estimate(GAMMA, lmbda, nv, r, d, m), series)
    returns = masked_td_lambda_return_estimate(GAMMA, lmbda, *column(series)).squeeze(-1)
    torch.testing.assert_close(returns, torch.where(expected.isnan(), series[0], expected))


@settings(max_examples=50, deadline=None)
@given(series=masked_series())
def test_vtrace_with_ratio_1_equals_td1_on_the_own_rows(series):
    *steps, acts, exists = column(series)
    zero = torch.zeros_like(steps[0])
    advantage, target = R.vtrace_advantage_estimate(GAMMA, zero, zero, *steps, mask=acts, exists=exists)
    expected = masked_td_lambda_return_estimate(GAMMA, 1.0, *steps, acts, exists)
    torch.testing.assert_close(target, expected)
    torch.testing.assert_close(advantage, expected - steps[0])


def test_what_stands_in_rows_outside_of_the_spans_does_not_matter():
    value = torch.zeros(5, 1)
    reward = torch.tensor([[float("nan")], [1.0], [2.0], [float("nan")], [4.0]])
    done = torch.tensor([[False], [False], [True], [False], [False]])
    acts = torch.tensor([[False], [True], [False], [False], [True]])
    advantage, _ = R.generalized_advantage_estimate(1.0, 1.0, value, value, reward, done, done, mask=acts)
    assert advantage.flatten().tolist() == [0.0, 3.0, 0.0, 0.0, 4.0]
    value[3] = float("nan")
    advantage, _ = R.generalized_advantage_estimate(1.0, 1.0, value, value, reward, done, done, mask=acts)
    assert advantage.flatten().tolist() == [0.0, 3.0, 0.0, 0.0, 4.0]


def test_a_mask_of_ones_changes_nothing():
    torch.manual_seed(0)
    value, next_value, reward = torch.randn(3, 4, 9, 2, 1, dtype=torch.float64)
    done = torch.rand(4, 9, 2, 1) < 0.3
    series = (value, next_value, reward, done, done & (torch.rand(4, 9, 2, 1) < 0.5))
    everyone = torch.ones(4, 9, 2, 1, dtype=torch.bool)
    plain = R.generalized_advantage_estimate(GAMMA, LMBDA, *series, time_dim=1)
    masked = R.generalized_advantage_estimate(GAMMA, LMBDA, *series, time_dim=1, mask=everyone)
    for one, other in zip(masked, plain, strict=True):
        torch.testing.assert_close(one, other)
    ratios = torch.randn(2, 4, 9, 2, 1, dtype=torch.float64)
    plain = R.vtrace_advantage_estimate(GAMMA, *ratios, *series, time_dim=1)
    masked = R.vtrace_advantage_estimate(GAMMA, *ratios, *series, time_dim=1, mask=everyone)
    for one, other in zip(masked, plain, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_through_masked_gae_are_right():
    torch.manual_seed(0)
    value, next_value, reward = (torch.randn(2, 6, 1, dtype=torch.float64, requires_grad=True) for _ in range(3))
    done, acts = torch.rand(2, 6, 1) < 0.3, torch.rand(2, 6, 1) < 0.6

    def estimate(value, next_value, reward):
        return R.generalized_advantage_estimate(GAMMA, LMBDA, value, next_value, reward, done, mask=acts)

    assert torch.autograd.gradcheck(estimate, (value, next_value, reward))


def test_a_mask_of_another_kind_is_refused():
    zero, flags = torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    with pytest.raises(SpecError, match=r"acts must be a bool tensor; got torch\.float32"):
        R.generalized_advantage_estimate(0.9, 0.8, zero, zero, zero, flags, mask=zero)
    with pytest.raises(LossError, match=r"acts \[3, 2\] does not broadcast to the reward \[3, 1\]"):
        R.generalized_advantage_estimate(0.9, 0.8, zero, zero, zero, flags, mask=flags.expand(3, 2))


@pytest.mark.parametrize("steps", [0, 1])
def test_short_series_pass(steps, monkeypatch):
    zero, flags = torch.zeros(2, steps, 1), torch.ones(2, steps, 1, dtype=torch.bool)
    for _ in range(2):
        advantage, _ = R.generalized_advantage_estimate(0.9, 0.8, zero, zero, zero, flags, mask=flags)
        assert advantage.shape == (2, steps, 1)
        monkeypatch.setattr(native, "library", lambda: None)
