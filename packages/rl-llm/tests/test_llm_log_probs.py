"""Chunked log-probabilities and entropies against the dense formulas in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rl_core.errors import PolicyError, SpecError
from rl_llm.policies.log_probs import from_logits, token_log_probs
from rl_llm.policies.sampling import SamplingDistribution, behaviour_log_probs

N, H, V = 7, 5, 11


def problem(seed=0, dtype=torch.float64, n=N, h=H, v=V):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, h, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(v, h, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    bias = torch.randn(v, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    targets = torch.randint(0, v, (n,), generator=generator)
    return hidden, weight, bias, targets


def dense(logits, targets, temperature):
    """Log-probabilities and entropies, all at once, in the plainest way."""
    p = (logits / temperature).softmax(-1)
    return p.gather(-1, targets[:, None]).squeeze(-1).log(), -(p * p.log()).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_values_and_gradients_equal_the_dense_formula(temperature, chunk_size):
    hidden, weight, bias, targets = problem()
    weights = torch.randn(N, dtype=torch.float64), torch.randn(N, dtype=torch.float64)
    log_prob, entropy = token_log_probs(
        hidden, weight, targets, bias=bias, temperature=temperature, with_entropy=True, chunk_size=chunk_size
    )
    ours = torch.autograd.grad((weights[0] * log_prob + weights[1] * entropy).sum(), (hidden, weight, bias))
    expected = dense(hidden @ weight.T + bias, targets, temperature)
    torch.testing.assert_close(log_prob, expected[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(entropy, expected[1], atol=1e-12, rtol=0)
    theirs = torch.autograd.grad((weights[0] * expected[0] + weights[1] * expected[1]).sum(), (hidden, weight, bias))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-12, rtol=0)


def test_autograd_agrees_with_finite_differences():
    hidden, weight, bias, targets = problem(1)
    torch.autograd.gradcheck(
        lambda h, w, b: token_log_probs(h, w, targets, bias=b, temperature=0.7, with_entropy=True, chunk_size=2),
        (hidden, weight, bias),
    )
    logits = (hidden @ weight.T).detach().requires_grad_()
    torch.autograd.gradcheck(
        lambda z: from_logits(z, targets, temperature=0.7, with_entropy=True, chunk_size=2), logits
    )


@pytest.mark.parametrize(("top_p", "top_k"), [(0.8, 0), (1.0, 3), (0.7, 5)])
def test_a_truncated_distribution_has_the_gradient_of_its_own_log_probs(top_p, top_k):
    hidden, weight, bias, targets = problem(2)
    torch.autograd.gradcheck(
        lambda h, w, b: token_log_probs(
            h, w, targets, bias=b, temperature=0.9, top_p=top_p, top_k=top_k, with_entropy=True, chunk_size=3
        ),
        (hidden, weight, bias),
    )


def test_a_frozen_head_or_frozen_hidden_states_get_no_gradient():
    hidden, weight, _, targets = problem(3)
    token_log_probs(hidden, weight.detach(), targets)[0].sum().backward()
    assert hidden.grad is not None and weight.grad is None
    hidden.grad = None
    token_log_probs(hidden.detach(), weight, targets)[0].sum().backward()
    assert hidden.grad is None and weight.grad is not None


def test_from_logits_equals_the_formula_and_leaves_its_input_alone():
    hidden, weight, _, targets = problem(4)
    logits = (hidden @ weight.T).detach()
    before = logits.clone()
    log_prob, entropy = from_logits(logits, targets, temperature=0.5, with_entropy=True, chunk_size=2)
    expected = dense(before, targets, 0.5)
    torch.testing.assert_close(log_prob, expected[0])
    torch.testing.assert_close(entropy, expected[1])
    assert torch.equal(logits, before)


def test_a_batch_keeps_its_shape():
    hidden, weight, _, targets = problem(5, n=6)
    log_prob, entropy = token_log_probs(hidden.view(2, 3, H), weight, targets.view(2, 3), with_entropy=True)
    assert log_prob.shape == entropy.shape == (2, 3)
    torch.testing.assert_close(log_prob.flatten(), token_log_probs(hidden, weight, targets)[0])


def test_two_equal_logits_are_each_half():
    log_prob, entropy = token_log_probs(torch.zeros(1, 3), torch.zeros(2, 3), torch.tensor([1]), with_entropy=True)
    assert log_prob.item() == pytest.approx(math.log(0.5))
    assert entropy.item() == pytest.approx(math.log(2))


def test_a_token_without_probability_gives_finite_entropy_and_gradients():
    logits = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    log_prob, entropy = from_logits(logits, torch.tensor([2]), with_entropy=True)
    (log_prob + entropy).sum().backward()
    assert torch.isfinite(entropy).all()
    assert torch.isfinite(logits.grad).all()


def test_half_precision_is_summed_in_float32():
    hidden, weight, _, targets = problem(6, torch.bfloat16)
    log_prob, _ = token_log_probs(hidden, weight, targets)
    assert log_prob.dtype == torch.float32
    expected = torch.log_softmax((hidden @ weight.T).float(), -1).gather(-1, targets[:, None]).squeeze(-1)
    torch.testing.assert_close(log_prob, expected)
    log_prob.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_no_tokens_give_no_log_probs():
    _, weight, _, _ = problem()
    log_prob, entropy = token_log_probs(
        torch.zeros(0, H, dtype=torch.float64), weight, torch.zeros(0, dtype=torch.long)
    )
    assert log_prob.shape == (0,) and entropy is None


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return out


def test_no_tensor_is_larger_than_a_chunk_of_logits():
    tokens, hidden_size, vocabulary, chunk = 256, 4, 100, 8
    hidden, weight, _, targets = problem(7, torch.float32, tokens, hidden_size, vocabulary)
    with LargestTensor() as forward:
        log_prob, entropy = token_log_probs(hidden, weight, targets, with_entropy=True, chunk_size=chunk)
    with LargestTensor() as backward:
        torch.autograd.grad((log_prob + entropy).sum(), (hidden, weight))
    largest_necessary = max(chunk * vocabulary, tokens * hidden_size, vocabulary * hidden_size)
    assert forward.numel <= largest_necessary
    assert backward.numel <= largest_necessary
    with LargestTensor() as dense_forward:
        dense(hidden @ weight.T, targets, 1.0)
    assert dense_forward.numel == tokens * vocabulary


def test_from_logits_makes_one_tensor_of_the_logits_size_which_is_their_gradient():
    class Count(TorchDispatchMode):
        large = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.numel() >= 64 * 50:
                # What shares memory with an input (a view, an operation in place) is no new tensor.
                known = {arg.data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
                self.large += out.data_ptr() not in known
            return out

    logits = torch.randn(64, 50, requires_grad=True)
    with Count() as forward:
        log_prob, _ = from_logits(logits, torch.zeros(64, dtype=torch.long), chunk_size=4)
    assert forward.large == 0
    with Count() as backward:
        log_prob.sum().backward()
    assert backward.large == 1


def test_a_greedy_policy_cannot_be_scored():
    hidden, weight, _, targets = problem()
    with pytest.raises(PolicyError, match="temperature > 0"):
        token_log_probs(hidden, weight, targets, temperature=0.0)


def test_shapes_and_ids_that_do_not_fit_are_named():
    hidden, weight, _, targets = problem()
    with pytest.raises(SpecError, match=r"\[7, 5\] and \[11, 4\]"):
        token_log_probs(hidden, weight[:, :4], targets)
    with pytest.raises(SpecError, match="one token for each position"):
        token_log_probs(hidden, weight, targets[:-1])
    with pytest.raises(SpecError, match="from -100 to"):
        token_log_probs(hidden, weight, torch.where(targets == targets[0], -100, targets))
    with pytest.raises(SpecError, match=r"torch\.int64"):
        token_log_probs(hidden, weight, targets.float())
    with pytest.raises(ValueError, match="chunk_size"):
        token_log_probs(hidden, weight, targets, chunk_size=0)


# ------------------------------------------------------------------------------------------ the distribution itself
def test_top_k_then_top_p_leave_the_tokens_computed_by_hand():
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    assert behaviour_log_probs(logits, top_k=3).exp().tolist() == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    # .4 + .3 reach .6; without .3 it would be .4.
    assert behaviour_log_probs(logits, top_p=0.6).exp().tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    # After top-3 the shares are .444, .333, .222: two of them reach .7.
    assert behaviour_log_probs(logits, top_p=0.7, top_k=3).exp().tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])


def test_the_most_probable_token_survives_any_top_p():
    assert behaviour_log_probs(torch.tensor([3.0, 1.0, 2.0]), top_p=1e-6).tolist() == [0.0, -math.inf, -math.inf]


def test_temperature_comes_before_the_truncation():
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    # At temperature .5 the shares are .658, .237, .105: the first alone reaches .6, which it does not at 1.
    assert behaviour_log_probs(logits, temperature=0.5, top_p=0.6).exp().tolist() == pytest.approx([1, 0, 0])
    assert behaviour_log_probs(logits, top_p=0.6).exp().tolist() == pytest.approx([0.625, 0.375, 0])


@given(
    seed=st.integers(0, 10_000), top_p=st.floats(0.05, 1.0), top_k=st.integers(-1, 12), temperature=st.floats(0.2, 3)
)
@settings(max_examples=60, deadline=None)
def test_probabilities_sum_to_one_on_the_support(seed, top_p, top_k, temperature):
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(seed))
    p = behaviour_log_probs(logits, temperature, top_p, top_k).exp()
    torch.testing.assert_close(p.sum(-1), torch.ones(3))
    if top_k > 0:
        assert (p > 0).sum(-1).max() <= max(top_k, 1)


def test_scoring_gives_the_sampled_tokens_their_behaviour_log_prob_and_keeps_others_finite():
    hidden, weight, _, _ = problem(8)
    logits = (hidden @ weight.T).detach()
    behaviour = behaviour_log_probs(logits, 0.5, 0.9, 4)
    drawn = behaviour.exp().multinomial(1, generator=torch.Generator().manual_seed(0)).squeeze(-1)
    scored, _ = token_log_probs(hidden, weight, drawn, temperature=0.5, top_p=0.9, top_k=4)
    torch.testing.assert_close(scored.detach(), behaviour.gather(-1, drawn[:, None]).squeeze(-1))
    outside = behaviour.argmin(-1)
    assert torch.isinf(behaviour.gather(-1, outside[:, None])).all()
    assert torch.isfinite(token_log_probs(hidden, weight, outside, temperature=0.5, top_p=0.9, top_k=4)[0]).all()


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -2}, {"top_k": 1.5}])
def test_numbers_outside_of_their_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SamplingDistribution(**bad)
