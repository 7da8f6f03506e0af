"""Ordinal, multi-choice and Bernoulli distributions against enumeration; gradients of one-hot samples; masks (C29)."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict

from rl_core import ExplorationType, OneHot, set_exploration_type
from rl_core.specs import Categorical as CategoricalSpec
from rl_modules import (
    EGreedyModule,
    IndependentBernoulli,
    MaskedCategorical,
    MaskedOneHotCategorical,
    MultiCategorical,
    MultiOneHotCategorical,
    OneHotCategorical,
    OneHotOrdinal,
    Ordinal,
    ProbabilisticActor,
    ReparamGradientStrategy,
    SafeModule,
)


# ---------------------------------------------------------------- ordinal
def test_ordinal_probabilities_are_those_of_the_papers_equation():
    scores = torch.tensor([0.3, -1.2, 2.0, 0.5], dtype=torch.float64)
    s = scores.sigmoid()
    logits = torch.stack(
        [sum([*s[: i + 1].log(), *(1 - s[i + 1 :]).log()]) for i in range(4)]  # arXiv 1901.10500, section 4.2
    )
    torch.testing.assert_close(Ordinal(scores).probs, logits.softmax(-1))
    torch.testing.assert_close(OneHotOrdinal(scores).log_prob(torch.eye(4)), logits.log_softmax(-1))


def test_ordinal_scores_of_any_size_give_numbers():
    dist = Ordinal(torch.tensor([[1e4, 1e4, -1e4], [-1e4, -1e4, -1e4]]))
    assert dist.mode.tolist() == [1, 0] and dist.entropy().isfinite().all()


# ---------------------------------------------------------------- several choices
@pytest.mark.parametrize("nvec", [[3, 2], [2, 2], [4]], ids=str)
def test_probabilities_of_all_actions_sum_to_one_and_give_the_entropy(nvec):
    torch.manual_seed(0)
    logits = torch.randn(sum(nvec), dtype=torch.float64)
    dist, hot = MultiCategorical(logits, nvec), MultiOneHotCategorical(logits, nvec)
    actions = torch.tensor(list(itertools.product(*(range(n) for n in nvec))))
    log_prob = torch.stack([dist.log_prob(action) for action in actions])
    by_hand = sum(part.log_softmax(-1)[actions[:, i]] for i, part in enumerate(logits.split(nvec)))
    torch.testing.assert_close(log_prob, by_hand)
    torch.testing.assert_close(log_prob.exp().sum(), torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(dist.entropy(), -(log_prob.exp() * log_prob).sum())
    assert torch.equal(dist.mode, actions[log_prob.argmax()])
    rows = torch.cat([F.one_hot(actions[:, i], n) for i, n in enumerate(nvec)], -1)
    torch.testing.assert_close(torch.stack([hot.log_prob(row.bool()) for row in rows]), log_prob)


def test_draws_of_several_choices_follow_their_probabilities():
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 1.0])
    drawn, log_prob = MultiCategorical(logits, [3, 2]).sample_and_log_prob((20_000,))
    assert drawn.shape == (20_000, 2) and log_prob.shape == (20_000,)
    for i, part in enumerate(logits.split([3, 2])):
        share = torch.bincount(drawn[:, i], minlength=len(part)) / len(drawn)
        assert (share - part.softmax(-1)).abs().max() < 0.02
    torch.testing.assert_close(MultiCategorical(logits, [3, 2]).log_prob(drawn), log_prob)


def test_masks_of_several_choices():
    mask = torch.tensor([True, False, True, False, True])
    dist = MultiCategorical(torch.zeros(5).requires_grad_(), [3, 2], mask)
    drawn = dist.draw((500,))
    assert set(drawn[:, 0].tolist()) == {0, 2} and set(drawn[:, 1].tolist()) == {1}
    torch.testing.assert_close(dist.entropy().exp(), torch.tensor(2.0))
    with pytest.raises(ValueError, match="allows no category"):
        MultiCategorical(torch.zeros(5), [3, 2], torch.tensor([True, True, True, False, False]))


def test_an_action_may_have_a_shape_of_its_own():
    dist = MultiCategorical(torch.zeros(2, 8), [2, 2, 2, 2], event_shape=(2, 2))
    assert dist.mode.shape == (2, 2, 2) and dist.log_prob(dist.mode).shape == (2,)
    assert dist.expand((3, 2)).mode.shape == (3, 2, 2, 2)
    with pytest.raises(ValueError, match="5 logits"):
        MultiCategorical(torch.zeros(4), [3, 2])


def test_switches_are_independent():
    logits = torch.tensor([2.0, -1.0, 0.3], dtype=torch.float64)
    dist = IndependentBernoulli(logits)
    actions = torch.tensor(list(itertools.product([0, 1], repeat=3)))
    log_prob = torch.stack([dist.log_prob(action) for action in actions])
    p = logits.sigmoid()
    torch.testing.assert_close(log_prob.exp(), torch.where(actions.bool(), p, 1 - p).prod(-1))
    torch.testing.assert_close(dist.entropy(), -(log_prob.exp() * log_prob).sum())
    assert torch.equal(dist.mode, actions[log_prob.argmax()])
    torch.manual_seed(0)
    assert (dist.sample((20_000,)).double().mean(0) - p).abs().max() < 0.02


# ---------------------------------------------------------------- gradients of one-hot samples
@pytest.mark.parametrize("method", ReparamGradientStrategy)
def test_a_one_hot_sample_is_a_row_with_a_gradient(method):
    logits = torch.randn(6, 4, requires_grad=True)
    dist = OneHotCategorical(logits, grad_method=method)
    value, log_prob = dist.rsample_and_log_prob((3,))
    assert dist.has_rsample and set(value.unique().tolist()) == {0.0, 1.0} and (value.sum(-1) == 1).all()
    torch.testing.assert_close(log_prob, dist.log_prob(value))
    assert (torch.autograd.grad((value * torch.randn_like(value)).sum(), logits)[0] != 0).all()


def test_passing_straight_through_gives_the_gradient_of_the_probabilities():
    logits = torch.randn(4, requires_grad=True)
    weight = torch.randn(4)
    (found,) = torch.autograd.grad((OneHotCategorical(logits).rsample() * weight).sum(), logits)
    torch.testing.assert_close(found, torch.autograd.grad((logits.softmax(-1) * weight).sum(), logits)[0])


def test_relaxed_samples_follow_the_probabilities():
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, -1.0])
    drawn = OneHotCategorical(logits, grad_method=ReparamGradientStrategy.RelaxedOneHot).rsample((20_000,))
    assert (drawn.mean(0) - logits.softmax(-1)).abs().max() < 0.015


def test_a_policy_with_a_gradient_method_passes_gradients_and_without_one_acts_with_integers():
    def policy(**kwargs):
        module = SafeModule(torch.nn.Linear(3, 4), ["observation"], ["logits"])
        return ProbabilisticActor(module, ["logits"], distribution_class=OneHotCategorical, **kwargs)

    td = TensorDict({"observation": torch.zeros(2, 3)}, [2])
    with set_exploration_type(ExplorationType.RANDOM):
        assert policy()(td)["action"].dtype == torch.int64
        kwargs = {"grad_method": ReparamGradientStrategy.PassThrough}
        assert policy(distribution_kwargs=kwargs, return_log_prob=True)(td)["action"].requires_grad


def test_masked_rows_pass_no_gradient_to_forbidden_categories():
    logits = torch.zeros(4, requires_grad=True)
    mask = torch.tensor([True, False, True, False])
    for method in ReparamGradientStrategy:
        value = MaskedOneHotCategorical(logits, mask=mask, grad_method=method).rsample((50,))
        (gradient,) = torch.autograd.grad((value * torch.randn(4)).sum(), logits)
        assert not value[:, ~mask].any() and gradient.isfinite().all() and not gradient[~mask].any()


# ---------------------------------------------------------------- C29: masks
MASKED = {
    "dense": {"mask": torch.tensor([True, False, True, False])},
    "sparse": {"indices": torch.tensor([0, 2])},
}


@pytest.mark.parametrize("form", MASKED.values(), ids=MASKED)
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_modes_and_probabilities_number_all_actions(form, scale):
    logits = (torch.tensor([[0.1, 0.9, 0.5, 2.0], [0.7, 0.9, 0.5, 2.0]]) * scale).requires_grad_()
    dist, hot = MaskedCategorical(logits, **form), MaskedOneHotCategorical(logits, **form)
    assert dist.mode.tolist() == [2, 0]
    assert hot.mode.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]
    forbidden = dist.log_prob(torch.tensor([1, 3]))
    assert torch.equal(forbidden, torch.full((2,), float("-inf")))
    entropy = dist.entropy()
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert entropy.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("form", MASKED.values(), ids=MASKED)
def test_infinite_logits_of_forbidden_actions_do_no_harm(form):
    logits = torch.tensor([1.0, float("-inf"), 2.0, float("-inf")])
    dist = MaskedCategorical(logits, **form)
    assert dist.entropy().isfinite() and set(dist.draw((200,)).tolist()) == {0, 2}


def test_the_row_without_an_allowed_action_is_named():
    mask = torch.tensor([[True, False], [False, False], [True, True]])
    for kind in (MaskedCategorical, MaskedOneHotCategorical):
        with pytest.raises(ValueError, match="row 1"):
            kind(torch.zeros(3, 2), mask=mask)


@pytest.mark.parametrize("spec", [CategoricalSpec(4), OneHot(4, dtype=torch.int64)], ids=["numbers", "one_hot"])
def test_a_thousand_random_actions_are_all_allowed(spec):
    module = EGreedyModule(spec, eps_init=1.0, eps_end=1.0, action_mask_key="action_mask")
    mask = torch.tensor([True, False, True, False]).expand(1000, 4)
    td = TensorDict({"action": spec.zero((1000,)), "action_mask": mask}, [1000])
    with set_exploration_type(ExplorationType.RANDOM):
        action = module(td)["action"]
    chosen = action if action.ndim == 1 else action.argmax(-1)
    assert set(chosen.tolist()) == {0, 2}
