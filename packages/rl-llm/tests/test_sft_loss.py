"""SFTLoss against sums written out, with and without a reference policy, from tokens and from chats."""

import math

import pytest
import torch
from tensordict import TensorClass, TensorDict, lazy_stack
from torch import nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.testing import LossKit
from rl_llm.losses import SFTLoss

VOCABULARY = 7


class TinyModel(nn.Module):
    in_keys = (("tokens", "full"),)
    out_keys = (("log_probs", "full"),)

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)

    def log_probs(self, batch, with_entropy):
        tokens = batch["tokens", "full"]
        scores = self.table(torch.nn.functional.pad(tokens[:, :-1], (1, 0))).log_softmax(-1)
        return scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), None


def make_batch(garbage=math.nan):
    generator = torch.Generator().manual_seed(3)
    mask = (torch.arange(8) >= 2) & (torch.arange(8) < torch.tensor([[3], [5], [8], [4]]))
    ref = torch.where(mask, torch.randn(4, 8, generator=generator) - 2, garbage)
    return TensorDict(
        {
            "tokens": {"full": torch.randint(VOCABULARY, (4, 8), generator=generator)},
            "masks": {"all_assistant_mask": mask, "all_attention_mask": torch.ones(4, 8, dtype=torch.bool)},
            "ref_log_probs": {"full": ref},
        },
        [4],
    )


def make_loss(**options):
    torch.manual_seed(0)
    return SFTLoss(TinyModel(), **options)


class TestSFTKeepsItsPromises(LossKit):
    gradients = {"loss_sft": {"actor_network"}, "loss_kl_to_ref": {"actor_network"}}
    network_outputs = {"actor_log_prob", "entropy", "tokens"}

    def make_loss(self, **options):
        return make_loss(kl_to_ref_coeff=0.1, **options)

    def make_batch(self):
        return make_batch(garbage=7.0)


class TestMinorSFTKeepsItsPromises(TestSFTKeepsItsPromises):
    gradients = {"loss_sft": {"actor_network"}}

    def make_loss(self, **options):
        return make_loss(loss_function="minor_sft", **options)


@pytest.mark.parametrize("kind", ["sft", "minor_sft"])
@pytest.mark.parametrize("normalize", [True, False])
def test_values_and_gradients_equal_sums_written_out(kind, normalize):
    loss, batch = make_loss(loss_function=kind, normalize_by_seq_length=normalize, beta=0.3), make_batch()
    log_probs, _ = loss.actor_network.log_probs(batch, False)
    rows = []
    for b in range(4):
        places = batch["masks", "all_assistant_mask"][b].nonzero().flatten().tolist()
        ref = batch["ref_log_probs", "full"]
        terms = [log_probs[b, t] - (ref[b, t] if kind == "minor_sft" else 0.0) for t in places]
        total = sum(terms) / (len(terms) if normalize else 1)
        rows.append(-total if kind == "sft" else (1 + (-0.3 * total).exp()).log())
    expected = sum(rows) / 4
    found = loss(batch)
    torch.testing.assert_close(found["loss_sft"], expected)
    ours = torch.autograd.grad(found.total_loss, list(loss.parameters()))
    theirs = torch.autograd.grad(expected, list(loss.parameters()))
    torch.testing.assert_close(ours, theirs)
    assert found["answer_length"].item() == pytest.approx((1 + 3 + 6 + 2) / 4)


def test_the_divergence_to_the_reference_is_a_mean_over_response_tokens():
    loss, batch = make_loss(kl_to_ref_coeff=0.5), make_batch()
    mask = batch["masks", "all_assistant_mask"]
    d = (batch["ref_log_probs", "full"] - loss.actor_network.log_probs(batch, False)[0])[mask]
    result = loss(batch)
    torch.testing.assert_close(result["kl_to_ref"], (d.expm1() - d).mean().detach())
    d_rows = (d.expm1() - d).split(mask.sum(-1).tolist())
    torch.testing.assert_close(result["loss_kl_to_ref"], 0.5 * torch.stack([row.mean() for row in d_rows]).mean())


def test_answers_without_tokens_do_not_count():
    batch = make_batch()
    expected = make_loss()(batch[:3])
    batch["masks", "all_assistant_mask"][3] = False
    found = make_loss()(batch)
    torch.testing.assert_close(found.detach().to_dict(), expected.detach().to_dict())
    batch["masks", "all_assistant_mask"][:] = False
    assert make_loss()(batch).total_loss.item() == 0


def test_ragged_rows_give_what_padded_rows_give():
    batch = make_batch()
    lengths = [3, 5, 8, 4]
    rows = [row.apply(lambda value, n=n: value[:n]) for row, n in zip(batch.unbind(0), lengths, strict=True)]
    loss = make_loss(kl_to_ref_coeff=0.1)
    torch.testing.assert_close(loss(lazy_stack(rows)).detach().to_dict(), loss(batch).detach().to_dict())


def test_the_reference_may_stand_under_next():
    batch = make_batch()
    expected = make_loss(kl_to_ref_coeff=0.1)(batch)
    moved = batch.exclude("ref_log_probs").set("next", TensorDict({"ref_log_probs": batch["ref_log_probs"]}, [4]))
    torch.testing.assert_close(make_loss(kl_to_ref_coeff=0.1)(moved).detach().to_dict(), expected.detach().to_dict())


def test_a_missing_reference_is_named():
    with pytest.raises(KeyMissingError, match='"ref_log_probs", "full"'):
        make_loss(loss_function="minor_sft")(make_batch().exclude("ref_log_probs"))


class Chats(TensorClass["nocast"]):
    """Stands for a History: renders two fixed chats."""

    ids: torch.Tensor
    mask: torch.Tensor

    def apply_chat_template(self, **options):
        ASKED.append(options)
        rows = []
        for n, length in enumerate([5, 8]):
            row = {
                "input_ids": self.ids[n, :length],
                "attention_mask": torch.ones(length, dtype=torch.int64),
                "assistant_masks": self.mask[n, :length].long(),
            }
            rows.append(TensorDict(row, []))
        return lazy_stack(rows)


ASKED = []


def test_chats_are_rendered_with_the_tokenizer_where_there_are_no_tokens():
    batch = make_batch()[:2]
    chats = Chats(ids=batch["tokens", "full"], mask=batch["masks", "all_assistant_mask"], batch_size=[2])
    history = TensorDict({"full": chats}, [2])
    loss = make_loss(tokenizer="a tokenizer", tokenizer_kwargs={"chat_template_name": "qwen"})
    found = loss(TensorDict({"history": history}, [2]))
    torch.testing.assert_close(found["loss_sft"], make_loss()(batch)["loss_sft"])
    assert ASKED[-1]["tokenizer"] == "a tokenizer" and ASKED[-1]["chat_template_name"] == "qwen"
    assert ASKED[-1]["return_assistant_tokens_mask"] and not ASKED[-1]["add_generation_prompt"]
    with pytest.raises(SpecError, match=r'"history", "full"'):
        loss(TensorDict({}, [2]))


def test_options_that_are_not_admitted_are_refused():
    with pytest.raises(SpecError, match="minor_sft"):
        SFTLoss(loss_function="dpo")
    with pytest.raises(SpecError, match="generic"):
        SFTLoss(masking_strategy="all")
