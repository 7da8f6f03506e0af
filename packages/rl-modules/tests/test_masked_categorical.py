"""Masked categorical distributions (case C29): full numbering, no masked action, no NaN."""

from __future__ import annotations

import pytest
import torch

from rl_modules import MaskedCategorical, MaskedOneHotCategorical

DENSE = torch.tensor([True, False, True, False])
SPARSE = torch.tensor([0, 2])
HUGE = torch.tensor([1e4, 2e4, 0.0, float("-inf")])


def both(logits, kind=MaskedCategorical):
    return kind(logits, mask=DENSE), kind(logits, indices=SPARSE)


@pytest.mark.parametrize("logits", [torch.tensor([0.0, 9.0, 1.0, 5.0]), HUGE])
def test_mode_is_an_allowed_action_in_full_numbering(logits):
    dense, sparse = both(logits)
    expected = 2 if logits[2] > logits[0] else 0
    assert dense.mode.item() == sparse.mode.item() == expected


def test_a_masked_action_has_log_prob_minus_infinity():
    for dist in both(torch.tensor([0.0, 9.0, 0.0, 5.0])):
        log_prob = torch.stack([dist.log_prob(torch.tensor(action)) for action in range(4)])
        half, never = -0.6931472, float("-inf")
        torch.testing.assert_close(log_prob, torch.tensor([half, never, half, never]))


@pytest.mark.parametrize("kind", [MaskedCategorical, MaskedOneHotCategorical])
@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0, 4.0], [1e4, 2e4, 0.0, -1e4], [1.0, 1.0, float("-inf"), 1.0]])
def test_entropy_and_its_gradient_are_finite(kind, values):
    for options in ({"mask": DENSE}, {"indices": SPARSE}):
        logits = torch.tensor(values, requires_grad=True)
        dist = kind(logits, **options)
        entropy = dist.entropy()
        entropy.backward()
        assert entropy.isfinite()
        assert logits.grad.isfinite().all()
        assert logits.grad[[1, 3]].tolist() == [0.0, 0.0]


def test_entropy_of_two_equal_allowed_actions_is_log_two():
    for dist in both(torch.zeros(4)):
        torch.testing.assert_close(dist.entropy(), torch.tensor(2.0).log())


def test_a_thousand_draws_are_never_masked():
    torch.manual_seed(0)
    for dist in both(torch.tensor([0.0, 9.0, 1.0, 5.0])):
        assert set(dist.sample((1000,)).tolist()) == {0, 2}


def test_the_one_hot_variant_has_all_columns():
    for dist in both(torch.tensor([0.0, 9.0, 1.0, 5.0]), MaskedOneHotCategorical):
        assert dist.mode.tolist() == [0, 0, 1, 0]
        assert dist.sample((1000,)).sum(0)[[1, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("kind", [MaskedCategorical, MaskedOneHotCategorical])
def test_an_all_false_row_raises_naming_the_row(kind):
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    with pytest.raises(ValueError, match=r"allows no category in row 2 of batch \[3\]"):
        kind(torch.zeros(3, 2), mask=mask)


def test_an_all_padding_row_raises_naming_the_row():
    indices = torch.tensor([[0, 1], [-1, -1]])
    with pytest.raises(ValueError, match="row 1"):
        MaskedCategorical(torch.zeros(2, 3), indices=indices, padding_value=-1)


def test_allowed_logits_that_are_all_minus_infinity_raise():
    with pytest.raises(ValueError, match="whose logit is -inf"):
        MaskedCategorical(torch.tensor([0.0, float("-inf")]), mask=torch.tensor([False, True]))


def test_padding_gives_rows_of_different_length():
    indices = torch.tensor([[0, 2], [1, -1]])
    dist = MaskedCategorical(torch.zeros(2, 3), indices=indices, padding_value=-1)
    assert dist.mask.tolist() == [[True, False, True], [False, True, False]]


def test_probs_are_masked_and_renormalised():
    dist = MaskedCategorical(probs=torch.tensor([0.2, 0.5, 0.3]), mask=torch.tensor([True, False, True]))
    torch.testing.assert_close(dist.probs, torch.tensor([0.4, 0.0, 0.6]))


def test_mask_and_indices_together_raise():
    with pytest.raises(ValueError, match="exactly one of mask and indices"):
        MaskedCategorical(torch.zeros(4), mask=DENSE, indices=SPARSE)
