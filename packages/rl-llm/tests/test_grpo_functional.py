"""Ratios, clips, aggregation, engine weights and group advantages on plain tensors, by hand and by slow references."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import SpecError
from rl_llm.functional import (
    aggregate,
    cispo_gain,
    clipped_gain,
    count_items,
    discounted_returns,
    group_advantage,
    importance_weights,
    masked_token_mean,
    sequence_log_ratio,
    sequence_mean_log_ratio,
    token_log_ratio,
    trajectory_index,
    trajectory_return,
)

NAN = float("nan")


def random_mask(rows=5, length=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (rows, 1), generator=generator)
    return torch.arange(length) < lengths


# ---------------------------------------------------------------------------------------------------------- ratios
def test_a_token_log_ratio_ignores_whatever_stands_outside_of_the_mask():
    log_prob = torch.tensor([-1.0, NAN, math.inf], requires_grad=True)
    log_ratio = token_log_ratio(log_prob, torch.tensor([-1.5, NAN, -math.inf]), torch.tensor([True, False, False]))
    assert log_ratio.tolist() == [0.5, 0.0, 0.0]
    log_ratio.exp().sum().backward()
    torch.testing.assert_close(log_prob.grad, torch.tensor([math.exp(0.5), 0.0, 0.0]))


def test_a_huge_log_ratio_gives_finite_values_and_gradients():
    log_prob = torch.tensor([0.0], requires_grad=True)
    ratio = token_log_ratio(log_prob, torch.tensor([-500.0]), torch.tensor([True])).exp()
    clipped_gain(ratio, torch.tensor([1.0]), 0.8, 1.2).sum().backward()
    assert ratio.isfinite().all() and log_prob.grad.isfinite().all()


def test_the_sequence_ratio_is_the_geometric_mean_over_the_tokens_of_the_answer():
    mask = torch.tensor([[False, True, True, False]])
    log_ratio = torch.tensor([[0.0, 0.4, -0.1, 0.0]])
    torch.testing.assert_close(sequence_mean_log_ratio(log_ratio, mask), torch.tensor([[0.15]]))
    torch.testing.assert_close(sequence_log_ratio(log_ratio, mask), torch.tensor([[0.0, 0.15, 0.15, 0.0]]))


def test_each_token_carries_its_share_of_the_gradient_of_the_sequence_ratio():
    mask = random_mask()
    log_ratio = (torch.randn(5, 7) * mask).requires_grad_()
    sequence = sequence_mean_log_ratio(log_ratio, mask).exp().squeeze(-1)
    (expected,) = torch.autograd.grad(sequence.sum(), log_ratio)
    carried = sequence_log_ratio(log_ratio, mask).exp()
    per_sequence = torch.where(mask, carried, 0.0).sum(-1) / mask.sum(-1)
    torch.testing.assert_close(per_sequence, sequence)
    (found,) = torch.autograd.grad(per_sequence.sum(), log_ratio)
    torch.testing.assert_close(found, torch.where(mask, expected, 0.0))


# ----------------------------------------------------------------------------------------------------------- clips
@given(log_ratio=st.floats(-3, 3), advantage=st.floats(-2, 2), low=st.floats(0, 0.9), high=st.floats(0, 2))
@settings(max_examples=200, deadline=None)
def test_the_clipped_gain_is_the_smaller_of_two_products(log_ratio, advantage, low, high):
    def tensors():
        return torch.tensor([log_ratio], dtype=torch.float64, requires_grad=True)

    a = torch.tensor([advantage], dtype=torch.float64)
    one, two = tensors(), tensors()
    found = clipped_gain(one.exp(), a, 1 - low, 1 + high)
    ratio = two.exp()
    expected = torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(one.grad, two.grad)


def test_the_dual_clip_bounds_the_loss_of_bad_tokens_only():
    ratio, advantage = torch.tensor([9.0, 9.0, 2.0]), torch.tensor([-1.0, 1.0, -1.0])
    gain = clipped_gain(ratio, advantage, 0.8, 1.2, dual_clip=3.0)
    torch.testing.assert_close(gain, torch.tensor([-3.0, 1.2, -2.0]))


def test_the_cispo_gradient_does_not_vanish_where_the_ratio_is_clipped():
    log_prob = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
    ratio = (log_prob - torch.tensor([-1.0, 0.0, 1.0])).exp()
    cispo_gain(ratio, log_prob, torch.tensor([2.0, 2.0, 2.0]), 0.8, 1.2).sum().backward()
    torch.testing.assert_close(log_prob.grad, torch.tensor([2.4, 2.0, 1.6]))


# ----------------------------------------------------------------------------------------------------- aggregation
def test_each_aggregation_has_its_own_denominator():
    values = torch.tensor([[1.0, 2.0, 3.0], [8.0, NAN, NAN], [NAN, NAN, NAN]])
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    assert aggregate(values, mask, "token").item() == pytest.approx(14 / 4)
    assert aggregate(values, mask, "sequence").item() == pytest.approx((2 + 8) / 2)
    assert aggregate(values, mask, "dr_grpo", max_length=10).item() == pytest.approx(14 / 30)
    assert aggregate(values, mask, "none").tolist() == [[1, 2, 3], [8, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("mode", ["token", "sequence", "dr_grpo"])
def test_sum_and_none_are_the_mean_before_it_is_divided(mode):
    mask, values = random_mask(), torch.randn(5, 7)
    mean = aggregate(values, mask, mode, max_length=9)
    total = aggregate(values, mask, mode, reduction="sum", max_length=9)
    rows = aggregate(values, mask, mode, reduction="none", max_length=9)
    assert rows.shape == (5,)
    torch.testing.assert_close(rows.sum(), total)
    torch.testing.assert_close(total / count_items(mask, mode), mean)


@pytest.mark.parametrize("mode", ["token", "sequence", "dr_grpo"])
@given(parts=st.sampled_from([1, 2, 4, 8]), padding=st.integers(0, 5))
@settings(max_examples=20, deadline=None)
def test_parts_add_up_to_the_whole_whatever_the_split_and_the_padding(mode, parts, padding):
    mask, values = random_mask(8), torch.randn(8, 7, generator=torch.Generator().manual_seed(1))
    whole = aggregate(values, mask, mode, max_length=9)
    wider = torch.nn.functional.pad(mask, (0, padding)), torch.nn.functional.pad(values, (0, padding), value=NAN)
    total = count_items(mask, mode)
    summed = sum(
        aggregate(v, m, mode, num_items=total, max_length=9)
        for v, m in zip(wider[1].chunk(parts), wider[0].chunk(parts), strict=True)
    )
    torch.testing.assert_close(summed, whole)


def test_a_mean_over_no_tokens_is_zero_with_a_zero_gradient():
    values = torch.full((2, 3), NAN, requires_grad=True)
    for mode in ("token", "sequence", "dr_grpo"):
        loss = aggregate(values * 1.0, torch.zeros(2, 3, dtype=torch.bool), mode, max_length=3)
        assert loss.item() == 0.0
    assert masked_token_mean(values, torch.zeros(2, 3, dtype=torch.bool)).item() == 0.0


# -------------------------------------------------------------------------------------------------- engine weights
def reference_weights(old, engine, mask, mode, level, low, high, length_normalized):
    """One sequence at a time, one token at a time."""
    result = torch.ones_like(old)
    for b in range(old.shape[0]):
        places = [t for t in range(old.shape[1]) if mask[b, t]]
        logs = [float(old[b, t] - engine[b, t]) for t in places]
        if level == "sequence":
            total = sum(logs) / len(logs) if length_normalized else sum(logs)
            logs = [total] * len(logs)
        for t, log in zip(places, logs, strict=True):
            w = math.exp(log)
            below, above = low is not None and w < low, high is not None and w > high
            if mode == "mask":
                w = 0.0 if below or above else w
            else:
                w = low if below else high if above else w
            result[b, t] = w
    return result


@pytest.mark.parametrize("mode", ["mask", "truncate"])
@pytest.mark.parametrize(("level", "normalized"), [("token", True), ("sequence", True), ("sequence", False)])
@pytest.mark.parametrize(("low", "high"), [(None, 1.5), (0.7, None), (0.7, 1.5), (None, None)])
def test_engine_weights_equal_a_slow_reference(mode, level, normalized, low, high):
    mask = random_mask()
    old, engine = (torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 0.6).unbind()
    engine = torch.where(mask, engine, NAN)
    found = importance_weights(
        old, engine, mask, mode=mode, level=level, low=low, high=high, length_normalized=normalized
    )
    expected = reference_weights(old, engine, mask, mode, level, low, high, normalized)
    torch.testing.assert_close(found.weight, expected)
    raw = reference_weights(old, engine, mask, mode, level, None, None, normalized)[mask]
    assert found.mean.item() == pytest.approx(raw.mean().item())
    assert found.ess.item() == pytest.approx((raw.sum() ** 2 / (raw.numel() * raw.square().sum())).item())
    assert found.cut.item() == pytest.approx((expected[mask] != raw).double().mean().item())


def test_an_engine_that_agrees_has_weights_of_one_and_an_ess_of_one():
    mask, log_prob = random_mask(), torch.randn(5, 7)
    found = importance_weights(log_prob, log_prob, mask, mode="mask", level="sequence", high=3.0)
    assert (found.weight == 1).all() and found.mean == 1 and found.ess == 1 and found.cut == 0


def test_the_default_sequence_weight_does_not_grow_with_the_length():
    for length in (4, 400):
        engine, mask = torch.full((1, length), -1.1), torch.ones(1, length, dtype=torch.bool)
        options = {"mode": "mask", "level": "sequence", "high": 3.0}
        old = torch.full((1, length), -1.0)
        assert importance_weights(old, engine, mask, **options).cut == 0
    assert importance_weights(old, engine, mask, length_normalized=False, **options).cut == 1


def test_no_correction_is_asked_for_by_none():
    found = importance_weights(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), mode=None)
    assert found.weight.tolist() == [[1, 1]] and found.ess == 1 and found.cut == 0
    with pytest.raises(SpecError, match="truncate"):
        importance_weights(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), mode="clip")


# ------------------------------------------------------------------------------------------------------ advantages
def reference_advantage(returns, group, baseline, epsilon):
    result = []
    for g, k in zip(returns, group, strict=True):
        mates = [other for other, name in zip(returns, group, strict=True) if name == k]
        mean = sum(mates) / len(mates)
        if len(mates) == 1 or max(mates) == min(mates):
            result.append(0.0)
        elif baseline == "mean":
            result.append(g - mean)
        elif baseline == "leave_one_out":
            result.append(g - (sum(mates) - g) / (len(mates) - 1))
        else:
            variance = sum((m - mean) ** 2 for m in mates) / (len(mates) - 1)
            result.append((g - mean) / (variance**0.5 + epsilon))
    return torch.tensor(result, dtype=torch.float64)


@pytest.mark.parametrize("baseline", ["std", "mean", "leave_one_out"])
@given(rows=st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0, -3.0]), st.integers(-2, 3)), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_group_advantages_equal_a_slow_reference(baseline, rows):
    returns, group = [r for r, _ in rows], [g for _, g in rows]
    found = group_advantage(torch.tensor(returns, dtype=torch.float64), torch.tensor(group), baseline=baseline)
    torch.testing.assert_close(found.advantage, reference_advantage(returns, group, baseline, 1e-4))
    assert found.groups == len(set(group))
    assert found.singles == sum(group.count(k) == 1 for k in set(group))
    dead = [k for k in set(group) if len({r for r, g in rows if g == k}) == 1]
    assert found.dead == len(dead) and found.dead_share == len(dead) / found.groups


@pytest.mark.parametrize("baseline", ["std", "mean", "leave_one_out"])
def test_one_member_or_equal_returns_give_exact_zeros(baseline):
    returns = torch.tensor([0.1, 0.1, 0.1, 0.7])
    found = group_advantage(returns, torch.tensor([5, 5, 5, 9]), baseline=baseline)
    assert found.advantage.tolist() == [0, 0, 0, 0]
    assert (found.groups, found.singles, found.dead, found.dead_share) == (2, 1, 2, 1.0)


def test_one_success_in_four_has_the_textbook_advantage():
    found = group_advantage(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.int64), epsilon=0.0)
    torch.testing.assert_close(found.advantage, torch.tensor([1.5, -0.5, -0.5, -0.5]))


def test_no_groups_have_no_advantages():
    found = group_advantage(torch.empty(0), torch.empty(0, dtype=torch.int64))
    assert found.advantage.shape == (0,) and found.dead_share == 0.0


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(SpecError, match=r"\[3\].*\[2\]"):
        group_advantage(torch.zeros(3), torch.zeros(2, dtype=torch.int64))


# --------------------------------------------------------------------------------------------------------- returns
def test_every_turn_of_a_trajectory_has_its_return():
    done = torch.tensor([False, True, False, False, True])
    index = trajectory_index(done)
    assert index.tolist() == [0, 0, 1, 1, 1]
    reward = torch.tensor([0.0, 1.0, 2.0, -1.0, 5.0])
    assert trajectory_return(reward, index).tolist() == [1, 1, 6, 6, 6]
    assert trajectory_return(reward, index, "max").tolist() == [1, 1, 5, 5, 5]
    assert trajectory_return(reward, index, "mean").tolist() == [0.5, 0.5, 2, 2, 2]


def test_discounted_returns_stop_at_the_end_of_a_dialog():
    reward = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 8.0]])
    done = torch.tensor([[True, False, True], [False, False, True]])
    assert discounted_returns(reward, done, 0.5).tolist() == [[1.0, 1.5, 1.0], [2.0, 4.0, 8.0]]
