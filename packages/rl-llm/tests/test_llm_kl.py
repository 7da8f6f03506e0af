"""Divergence estimators over response tokens: independent of prompts and padding, and right on average."""

import math

import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import SpecError
from rl_llm.functional import kl_estimate, kl_tokens
from rl_llm.losses import GRPOLoss, SFTLoss

KINDS = ["k1", "k2", "k3"]


@pytest.mark.parametrize(
    ("kind", "formula"),
    [("k1", lambda d: -d), ("k2", lambda d: d**2 / 2), ("k3", lambda d: math.exp(d) - 1 - d)],
)
def test_each_estimator_has_its_formula(kind, formula):
    log_prob, ref = torch.tensor([[-1.0, -2.0, 5.0]]), torch.tensor([[-1.5, -1.0, math.nan]])
    found = kl_tokens(log_prob, ref, torch.tensor([[True, True, False]]), kind)
    torch.testing.assert_close(found, torch.tensor([[formula(-0.5), formula(1.0), 0.0]]))


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_unbiased_estimators_average_to_the_divergence(kind):
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expected = (p * (p / q).log()).sum()
    tokens = kl_tokens(p.log(), q.log(), torch.ones(3, dtype=torch.bool), kind)
    torch.testing.assert_close((p * tokens).sum(), expected)


def test_the_gradient_of_k2_is_that_of_the_divergence_and_that_of_k1_is_none():
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)

    def gradient(kind):
        log_p = logits.log_softmax(0)
        tokens = kl_tokens(log_p, q.log(), torch.ones(3, dtype=torch.bool), kind)
        return torch.autograd.grad((log_p.exp().detach() * tokens).sum(), logits)[0]

    log_p = logits.log_softmax(0)
    (expected,) = torch.autograd.grad((log_p.exp() * (log_p - q.log())).sum(), logits)
    torch.testing.assert_close(gradient("k2"), expected)
    torch.testing.assert_close(gradient("k1"), torch.zeros_like(expected), atol=1e-12, rtol=0)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(SpecError, match="k3"):
        kl_tokens(torch.zeros(1), torch.zeros(1), torch.ones(1, dtype=torch.bool), "abs")


def answers(prompt, left, right, *, garbage):
    """Two answers of 3 and 2 tokens behind a prompt, between paddings that hold garbage."""
    current = [torch.tensor([-1.0, -0.5, -2.0]), torch.tensor([-0.1, -3.0])]
    ref = [torch.tensor([-1.2, -0.9, -1.5]), torch.tensor([-0.4, -2.5])]
    sample = [torch.tensor([-1.1, -0.4, -1.9]), torch.tensor([-0.2, -2.0])]
    width = left + prompt + 3 + right

    def dense(rows):
        out = torch.full((2, width), garbage)
        for line, row in zip(out, rows, strict=True):
            line[left + prompt : left + prompt + len(row)] = row
        return out

    mask = torch.zeros(2, width, dtype=torch.bool)
    mask[0, left + prompt : left + prompt + 3] = True
    mask[1, left + prompt : left + prompt + 2] = True
    return TensorDict(
        {
            "current_log_probs": {"full": dense(current).requires_grad_()},
            "log_probs": {"full": dense(sample)},
            "ref_log_probs": {"full": dense(ref)},
            "masks": {"all_assistant_mask": mask},
            "advantage": torch.ones(2, 1),
        },
        [2],
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prompt", "left", "right"), [(2, 0, 0), (120, 0, 0), (2, 7, 0), (2, 0, 9)])
def test_neither_prompt_nor_padding_dilutes_the_divergence(kind, prompt, left, right):
    d = torch.tensor([0.2, 0.4, -0.5, 0.3, -0.5])
    expected = {"k1": d.mean(), "k2": (d.square() / 2).mean(), "k3": ((-d).exp() - 1 + d).mean()}[kind]
    loss = GRPOLoss(kl_to_ref_coeff=0.1, kl_to_inference_coeff=1.0, kl_estimator=kind)
    batch = answers(prompt, left, right, garbage=float("nan"))
    result = loss(batch)
    torch.testing.assert_close(result["kl_to_ref"], expected)
    torch.testing.assert_close(result["loss_kl_to_ref"].detach(), 0.1 * expected)
    plain = loss(answers(0, 0, 0, garbage=0.0))
    torch.testing.assert_close(result.detach().to_dict(), plain.detach().to_dict())
    (gradient,) = torch.autograd.grad(result.total_loss, batch["current_log_probs", "full"])
    assert gradient.isfinite().all() and (gradient[~batch["masks", "all_assistant_mask"]] == 0).all()


def test_the_divergence_of_sft_is_not_diluted_either():
    loss = SFTLoss(kl_to_ref_coeff=0.1)
    short, long = loss(answers(2, 0, 0, garbage=0.0)), loss(answers(60, 5, 5, garbage=float("nan")))
    torch.testing.assert_close(short.detach().to_dict(), long.detach().to_dict())
    assert short["kl_to_ref"] > 0


def test_an_estimate_is_a_mean_over_the_mask():
    log_prob, ref = torch.tensor([[-1.0, -1.0, 9.0]]), torch.tensor([[-2.0, -1.0, 0.0]])
    assert kl_estimate(log_prob, ref, torch.tensor([[True, True, False]]), "k1").item() == pytest.approx(0.5)
