"""V-trace, Retrace and n-step returns against sums written out from the papers' equations, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import LossError, SpecError
from rl_objectives import functional as R
from rl_objectives import native


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(native, "library", lambda: None)
    return request.param


@st.composite
def off_policy_series(draw):
    """[B, T] columns in float64: log_pi, log_mu, value, next_value, reward, done, terminated."""
    shape = draw(st.sampled_from([(1, 1), (1, 6), (3, 9), (9, 5)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    log_pi, log_mu, value, reward = torch.randn(4, *shape, dtype=torch.float64, generator=generator)
    done = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    terminated = done & (torch.rand(shape, generator=generator) < 0.5)
    # The next value is the following row's, except where an episode ends.
    landing = torch.randn(shape, dtype=torch.float64, generator=generator)
    last = torch.arange(shape[1]) == shape[1] - 1
    next_value = torch.where(done | last, landing, value.roll(-1, 1))
    return log_pi, log_mu, value, next_value, reward, done, terminated


def episodes(done):
    """(first, last) of each piece of a row that nothing crosses."""
    first = 0
    for t in range(len(done)):
        if done[t] or t == len(done) - 1:
            yield first, t
            first = t + 1


def slow_vtrace(gamma, rho_bar, c_bar, log_pi, log_mu, value, next_value, reward, done, terminated):
    """Espeholt et al., 2018, eq. 1, each v_s as the sum over t of its own terms; advantages of section 4.2."""
    v, advantage = torch.zeros_like(value), torch.zeros_like(value)
    for first, last in episodes(done):
        ratio = [(log_pi[t] - log_mu[t]).exp() for t in range(len(done))]
        bootstrap = [gamma * next_value[t] * (not terminated[t]) for t in range(len(done))]
        for s in range(first, last + 1):
            v[s] = value[s]
            for t in range(s, last + 1):
                weight = gamma ** (t - s)
                for i in range(s, t):
                    weight = weight * min(c_bar, ratio[i])
                v[s] += weight * min(rho_bar, ratio[t]) * (reward[t] + bootstrap[t] - value[t])
        for s in range(first, last + 1):
            behind = bootstrap[s] if s == last else gamma * v[s + 1]
            advantage[s] = min(rho_bar, ratio[s]) * (reward[s] + behind - value[s])
    return advantage, v


def by_row(function, *series):
    rows = [function(*row) for row in zip(*series, strict=True)]
    if isinstance(rows[0], tuple):
        return tuple(torch.stack(column).unsqueeze(-1) for column in zip(*rows, strict=True))
    return torch.stack(rows).unsqueeze(-1)


def columns(series):
    return [x.unsqueeze(-1) for x in series]


@pytest.mark.parametrize("compiled_kernel", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    series=off_policy_series(),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    rho_bar=st.sampled_from([0.5, 1.0, 3.0]),
    c_bar=st.sampled_from([0.7, 1.0, 2.0]),
    per_step=st.booleans(),
)
def test_vtrace_equals_the_sum_of_the_paper(compiled_kernel, series, gamma, rho_bar, c_bar, per_step):
    expected = by_row(lambda *row: slow_vtrace(gamma, rho_bar, c_bar, *row), *series)
    discount = torch.full_like(series[2], gamma).unsqueeze(-1) if per_step else gamma
    with pytest.MonkeyPatch.context() as patch:
        if not compiled_kernel:
            patch.setattr(native, "library", lambda: None)
        result = R.vtrace_advantage_estimate(
            discount, *columns(series), rho_thresh=rho_bar, c_thresh=torch.tensor(c_bar, dtype=torch.float64)
        )
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_on_policy_vtrace_is_exactly_the_td1_return(backend):
    torch.manual_seed(0)
    log_prob, value, reward = torch.randn(3, 4, 20, 1, dtype=torch.float64)
    done = torch.rand(4, 20, 1) < 0.2
    terminated = done & (torch.rand(4, 20, 1) < 0.5)
    next_value = torch.where(done, torch.randn_like(value), value.roll(-1, 1))
    advantage, target = R.vtrace_advantage_estimate(
        0.9, log_prob, log_prob, value, next_value, reward, done, terminated
    )
    expected = R.td1_return_estimate(0.9, next_value, reward, done, terminated)
    torch.testing.assert_close(target, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(advantage, expected - value, rtol=0, atol=1e-12)


def test_a_truncation_bootstraps_a_termination_does_not_and_nothing_crosses_either(backend):
    """gamma .5, ratio 1, V 0; two one-step episodes of reward 1 that land on a value of 4, then one more step."""
    value, reward, ratio = torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3, 1)
    next_value, done = torch.tensor([[4.0], [4.0], [2.0]]), torch.tensor([[True], [True], [False]])
    terminated = torch.tensor([[False], [True], [False]])
    result = R.vtrace_advantage_estimate(0.5, ratio, ratio, value, next_value, reward, done, terminated)
    for series in result:
        assert series.flatten().tolist() == [3.0, 1.0, 2.0]
    merged, _ = R.vtrace_advantage_estimate(0.5, ratio, ratio, value, next_value, reward, done)
    assert merged.flatten().tolist() == [1.0, 1.0, 2.0]


def test_vtrace_cuts_its_weights_by_hand_computed_numbers(backend):
    """Ratios .5 and 3; gamma 1, V 0, rewards 1, 1 and a termination: v_1 = 1, v_0 = .5 (1 + 0) + .5 * 1 = 1."""
    log_pi, log_mu = torch.tensor([[0.5], [3.0]]).log(), torch.zeros(2, 1)
    zero, one, done = torch.zeros(2, 1), torch.ones(2, 1), torch.tensor([[False], [True]])
    advantage, target = R.vtrace_advantage_estimate(1.0, log_pi, log_mu, zero, zero, one, done)
    torch.testing.assert_close(target, torch.tensor([[1.0], [1.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[1.0], [1.0]]))
    # With rho_bar 2 the second step weighs 2: v_1 = 2, v_0 = .5 + .5 * 2, A_0 = .5 (1 + 2).
    advantage, target = R.vtrace_advantage_estimate(1.0, log_pi, log_mu, zero, zero, one, done, rho_thresh=2.0)
    torch.testing.assert_close(target, torch.tensor([[1.5], [2.0]]))
    torch.testing.assert_close(advantage, torch.tensor([[1.5], [2.0]]))


def test_a_nan_behind_an_end_does_not_reach_vtrace_before_it(backend):
    zero = torch.zeros(4, 1)
    next_value, reward = zero.clone(), torch.tensor([[1.0], [1.0], [float("nan")], [1.0]])
    next_value[1] = float("nan")
    done = torch.tensor([[False], [True], [False], [False]])
    for series in R.vtrace_advantage_estimate(0.9, zero, zero, zero, next_value, reward, done):
        assert series[:2].isfinite().all() and series[2].isnan()
    returns = R.retrace_return_estimate(0.9, 1.0, zero, zero, zero, next_value, reward, done)
    assert returns[:2].isfinite().all() and returns[2].isnan()
    returns = R.n_step_return_estimate(3, 0.9, next_value, reward, done)
    assert returns[:2].isfinite().all() and returns[2].isnan()


def test_gradients_of_vtrace_and_retrace_are_right():
    torch.manual_seed(0)
    log_pi, value, next_value, reward = (
        torch.randn(2, 5, 1, dtype=torch.float64, requires_grad=True) for _ in range(4)
    )
    done = torch.zeros(2, 5, 1, dtype=torch.bool)
    done[0, 2] = True

    def both(log_pi, value, next_value, reward):
        log_mu = torch.zeros_like(log_pi)
        series = (log_pi, log_mu, value, next_value, reward, done)
        # thresholds that no ratio comes near: a cut has no derivative at its edge
        pair = R.vtrace_advantage_estimate(0.9, *series, rho_thresh=50.0, c_thresh=60.0)
        return (*pair, R.retrace_return_estimate(0.9, 0.8, *series, c_thresh=50.0))

    assert torch.autograd.gradcheck(both, (log_pi, value, next_value, reward))


def slow_retrace(gamma, lmbda, log_pi, log_mu, value, next_value, reward, done, terminated):
    """Munos et al., 2016, eq. 3: Q plus the sum over t of discounted errors, weighted by the product of c_1..c_t."""
    result = value.clone()
    for first, last in episodes(done):
        for s in range(first, last + 1):
            for t in range(s, last + 1):
                weight = gamma ** (t - s)
                for i in range(s + 1, t + 1):
                    weight = weight * lmbda * min(1.0, (log_pi[i] - log_mu[i]).exp())
                result[s] += weight * (reward[t] + gamma * next_value[t] * (not terminated[t]) - value[t])
    return result


@settings(max_examples=25, deadline=None)
@given(series=off_policy_series(), gamma=st.sampled_from([0.0, 0.9, 1.0]), lmbda=st.sampled_from([0.0, 0.7, 1.0]))
def test_retrace_equals_the_sum_of_the_paper(series, gamma, lmbda):
    expected = by_row(lambda *row: slow_retrace(gamma, lmbda, *row), *series)
    torch.testing.assert_close(R.retrace_return_estimate(gamma, lmbda, *columns(series)), expected)


def slow_n_step(n, gamma, next_value, reward, done, terminated):
    result = torch.zeros_like(reward)
    for first, last in episodes(done):
        for s in range(first, last + 1):
            landing = min(s + n - 1, last)
            result[s] = sum(gamma ** (t - s) * reward[t] for t in range(s, landing + 1))
            result[s] += gamma ** (landing - s + 1) * next_value[landing] * (not terminated[landing])
    return result


@pytest.mark.parametrize("compiled_kernel", [True, False])
@settings(max_examples=25, deadline=None)
@given(series=off_policy_series(), gamma=st.sampled_from([0.0, 0.9, 1.0]), n=st.integers(1, 12), per_step=st.booleans())
def test_n_step_returns_equal_the_sum(compiled_kernel, series, gamma, n, per_step):
    _, _, _, *rest = series
    expected = by_row(lambda *row: slow_n_step(n, gamma, *row), *rest)
    discount = torch.full_like(rest[0], gamma).unsqueeze(-1) if per_step else gamma
    with pytest.MonkeyPatch.context() as patch:
        if not compiled_kernel:
            patch.setattr(native, "library", lambda: None)
        result = R.n_step_return_estimate(n, discount, *columns(rest))
    torch.testing.assert_close(result, expected)


def test_one_step_is_td0_and_many_are_td1():
    torch.manual_seed(0)
    value, reward = torch.randn(2, 3, 8, 1)
    done = torch.rand(3, 8, 1) < 0.3
    terminated = done & (torch.rand(3, 8, 1) < 0.5)
    one = R.n_step_return_estimate(1, 0.9, value, reward, done, terminated)
    torch.testing.assert_close(one, R.td0_return_estimate(0.9, value, reward, terminated))
    many = R.n_step_return_estimate(100, 0.9, value, reward, done, terminated)
    torch.testing.assert_close(many, R.td1_return_estimate(0.9, value, reward, done, terminated))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_and_torch_agree_to_1e_6(dtype, monkeypatch):
    torch.manual_seed(0)
    log_pi, log_mu, value, next_value, reward = torch.randn(5, 12, 300, 1).to(dtype)
    done = torch.rand(12, 300, 1) < 0.02
    flags = done, done & (torch.rand(12, 300, 1) < 0.5)

    def all_of_them():
        yield from R.vtrace_advantage_estimate(0.99, log_pi, log_mu, value, next_value, reward, *flags)
        yield R.n_step_return_estimate(7, 0.99, next_value, reward, *flags)
        yield R.retrace_return_estimate(0.99, 0.9, log_pi, log_mu, value, next_value, reward, *flags)

    fast = list(all_of_them())
    monkeypatch.setattr(native, "library", lambda: None)
    for one, other in zip(fast, all_of_them(), strict=True):
        scale = other.abs().max()
        torch.testing.assert_close(one / scale, other / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize("time_dim", [0, 1, -2, -3])
def test_any_dimension_can_be_time(time_dim):
    torch.manual_seed(0)
    log_pi, log_mu, value, next_value, reward = torch.randn(5, 4, 5, 6, 2, dtype=torch.float64)
    done = torch.rand(4, 5, 6, 2) < 0.3
    series = (log_pi, log_mu, value, next_value, reward, done)
    advantage, _ = R.vtrace_advantage_estimate(0.9, *series, time_dim=time_dim)
    expected, _ = R.vtrace_advantage_estimate(0.9, *[x.movedim(time_dim, -2) for x in series])
    torch.testing.assert_close(advantage, expected.movedim(-2, time_dim))


def test_shapes_that_would_broadcast_are_refused_by_name():
    zero, done = torch.zeros(3, 1), torch.zeros(3, 1, dtype=torch.bool)
    with pytest.raises(LossError, match=r"reward \[3, 1\] and log_pi \[3\] must have one shape"):
        R.vtrace_advantage_estimate(0.9, torch.zeros(3), torch.zeros(3), zero, zero, zero, done)
    with pytest.raises(LossError, match=r"gamma \[2\] does not broadcast to the reward \[3, 1\]"):
        R.vtrace_advantage_estimate(torch.ones(2), zero, zero, zero, zero, zero, done)
    with pytest.raises(LossError, match=r"lmbda \[4, 3, 1\] does not broadcast"):
        R.td_lambda_return_estimate(0.9, torch.ones(4, 3, 1), zero, zero, done)
    with pytest.raises(SpecError, match="rho_thresh is the largest importance weight, a number > 0; got 0"):
        R.vtrace_advantage_estimate(0.9, zero, zero, zero, zero, zero, done, rho_thresh=0.0)
    with pytest.raises(SpecError, match="n_steps is at least 1; got 0"):
        R.n_step_return_estimate(0, 0.9, zero, zero, done)
