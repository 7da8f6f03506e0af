"""GRPO and its relatives against a float64 reference written token by token, and the promises around them."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, TensorClass, TensorDict, lazy_stack
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import KeyMissingError, PolicyError, SpecError
from rl_core.testing import LossKit
from rl_core.testing.kit import overrides_check
from rl_llm.advantage import MCAdvantage
from rl_llm.functional import group_advantage
from rl_llm.losses import DAPO, CISPOLoss, GRPOLoss
from rl_llm.losses.grpo_keys import ImportanceCorrection

VOCABULARY = 11


class TinyModel(nn.Module):
    """Scores token t from token t - 1; writes log-probabilities when it is called."""

    in_keys = (("tokens", "full"),)
    out_keys = (("log_probs", "full"),)

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 6, dtype=dtype)
        self.head = nn.Linear(6, VOCABULARY, dtype=dtype)

    def distribution(self, tokens):
        before = torch.nn.functional.pad(tokens[..., :-1], (1, 0))
        return self.head(self.embedding(before)).log_softmax(-1)

    def forward(self, td):
        log_probs = self.distribution(td["tokens", "full"])
        return td.set(("log_probs", "full"), log_probs.gather(-1, td["tokens", "full"].unsqueeze(-1)).squeeze(-1))


class TinyScorer(TinyModel):
    """The same model with a method that scores; calling it would be an error."""

    def log_probs(self, batch, with_entropy):
        log_probs = self.distribution(batch["tokens", "full"])
        chosen = log_probs.gather(-1, batch["tokens", "full"].unsqueeze(-1)).squeeze(-1)
        return chosen, -(log_probs.exp() * log_probs).sum(-1) if with_entropy else None

    def forward(self, td):
        raise AssertionError("a loss scores, it does not generate")


def make_batch(rows=6, length=9, *, dtype=torch.float32, seed=0, garbage=math.nan):
    """Prompts of 1 to 3 tokens, answers of 1 to 6, padding behind; garbage is stored where nothing was sampled."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(1, 4, (rows, 1), generator=generator)
    answer = torch.randint(1, length - 3 + 1, (rows, 1), generator=generator)
    place = torch.arange(length)
    mask = (place >= prompt) & (place < prompt + answer)

    def noise(scale):
        return torch.randn(rows, length, generator=generator, dtype=dtype) * scale

    sampled = torch.where(mask, noise(0.4) - math.log(VOCABULARY), garbage)
    return TensorDict(
        {
            "tokens": {"full": torch.randint(VOCABULARY, (rows, length), generator=generator)},
            "masks": {"all_assistant_mask": mask, "all_attention_mask": place < prompt + answer},
            "log_probs": {"full": sampled},
            "old_log_probs": {"full": sampled + noise(0.2)},
            "ref_log_probs": {"full": sampled + noise(0.3)},
            "advantage": torch.randn(rows, 1, generator=generator, dtype=dtype),
            "group_id": torch.arange(rows) // 3,
        },
        [rows],
    )


def make_loss(kind=GRPOLoss, actor=TinyScorer, dtype=torch.float32, **options):
    torch.manual_seed(4)
    return kind(actor(dtype), **options)


def leaf_batch(**options):
    """A batch that holds its current log-probabilities, in float64."""
    batch = make_batch(dtype=torch.float64, **options)
    current = batch["log_probs", "full"] + 0.5 * torch.randn(
        batch["log_probs", "full"].shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    batch["current_log_probs"] = TensorDict({"full": current.requires_grad_()}, batch.batch_size)
    return batch


# ------------------------------------------------------------------------------------------------ conformance kits
READ_OR_WRITTEN_BY_NETWORKS = {"value", "actor_log_prob", "entropy", "tokens"}


class TestGRPOKeepsItsPromises(LossKit):
    gradients = {
        "loss_objective": {"actor_network"},
        "loss_kl_to_ref": {"actor_network"},
        "loss_kl_to_inference": {"actor_network"},
        "loss_entropy": {"actor_network"},
    }
    network_outputs = READ_OR_WRITTEN_BY_NETWORKS

    def make_loss(self, **options):
        coefficients = {"kl_to_ref_coeff": 0.1, "kl_to_inference_coeff": 0.2, "entropy_coeff": 0.01}
        return make_loss(aggregation="sequence", **coefficients, **options)

    def make_batch(self):
        return make_batch(garbage=7.0)


class TestTokenMeansKeepTheirPromises(TestGRPOKeepsItsPromises):
    def make_loss(self, **options):
        coefficients = {"kl_to_ref_coeff": 0.1, "kl_to_inference_coeff": 0.2, "entropy_coeff": 0.01}
        return make_loss(**coefficients, **options)

    @overrides_check(reason="a sum over rows is divided by the number of tokens, not by that of rows")
    def test_reductions_agree(self):
        losses = {name: self.make_loss(reduction=name) for name in ("mean", "sum", "none")}
        batch = self.make_batch()
        tokens = batch["masks", "all_assistant_mask"].sum()
        mean, total, rows = (self.losses(losses[name], batch) for name in ("mean", "sum", "none"))
        for key, value in mean.items():
            assert rows[key].shape == batch.batch_size
            torch.testing.assert_close(value, total[key] / tokens)
            torch.testing.assert_close(total[key], rows[key].sum())


class TestCISPOKeepsItsPromises(LossKit):
    gradients = {"loss_objective": {"actor_network"}}
    network_outputs = READ_OR_WRITTEN_BY_NETWORKS

    def make_loss(self, **options):
        return make_loss(CISPOLoss, TinyModel, aggregation="sequence", ratio_level="sequence", **options)

    def make_batch(self):
        return make_batch(garbage=7.0)


def make_critic():
    class Critic(nn.Module):
        in_keys = (("tokens", "full"),)
        out_keys = ("state_value",)

        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCABULARY, 1)

        def forward(self, td):
            return td.set("state_value", self.table(td["tokens", "full"]).squeeze(-1))

    torch.manual_seed(5)
    return Critic()


class TestGRPOWithACriticKeepsItsPromises(LossKit):
    gradients = {"loss_objective": {"actor_network"}, "loss_critic": {"critic_network"}}
    network_outputs = READ_OR_WRITTEN_BY_NETWORKS

    def make_loss(self, **options):
        torch.manual_seed(4)
        return GRPOLoss(TinyScorer(), make_critic(), gamma=0.9, aggregation="sequence", **options)

    def make_batch(self):
        batch = make_batch(garbage=7.0)
        batch["value_target"] = torch.randn(6, 1, generator=torch.Generator().manual_seed(1))
        return batch


# ------------------------------------------------------------------------------------- equality with a slow reference
def reference(batch, *, ratio_level, clip, aggregation, advantage, low, high, max_length, weight=None, dual=None):
    """One answer and one token at a time, in float64, from the papers' formulas."""
    current, mask = batch["current_log_probs", "full"], batch["masks", "all_assistant_mask"]
    old = batch["log_probs", "full"] if weight is None else batch["old_log_probs", "full"]
    sums, means, tokens = [], [], 0
    for b in range(mask.shape[0]):
        places = mask[b].nonzero().flatten().tolist()
        logs = [current[b, t] - old[b, t] for t in places]
        if ratio_level == "sequence":
            mean = sum(logs) / len(logs)
            logs = [mean.detach() + current[b, t] - current[b, t].detach() for t in places]
        terms = []
        for t, log in zip(places, logs, strict=True):
            ratio, a = log.exp(), advantage[b]
            if clip == "cispo":
                gain = ratio.detach().clamp(low, high) * a * current[b, t]
            else:
                gain = torch.min(ratio * a, ratio.clamp(low, high) * a)
                if dual is not None and a < 0:
                    gain = torch.max(gain, dual * a)
            terms.append(-gain * (1 if weight is None else weight[b, t]))
        sums.append(sum(terms))
        means.append(sum(terms) / len(terms))
        tokens += len(terms)
    if aggregation == "sequence":
        return sum(means) / len(means)
    return sum(sums) / (tokens if aggregation == "token" else len(sums) * max_length)


def group_advantages(batch, baseline):
    returns = torch.tensor([1.0, 0.0, 0.5, 2.0, 2.0, -1.0], dtype=torch.float64)
    advantage = group_advantage(returns, batch["group_id"], baseline=baseline).advantage
    expected = []
    for k in range(6):
        mates = returns[batch["group_id"] == batch["group_id"][k]]
        others = (mates.sum() - returns[k]) / 2
        spread = ((mates - mates.mean()).square().sum() / 2).sqrt()
        centred = returns[k] - mates.mean()
        expected.append(
            {"std": centred / (spread + 1e-4), "mean": centred, "leave_one_out": returns[k] - others}[baseline]
        )
    torch.testing.assert_close(advantage, torch.stack(expected))
    return advantage


@pytest.mark.parametrize(
    ("ratio_level", "clip", "aggregation", "baseline"),
    list(
        itertools.product(
            ["token", "sequence"],
            ["symmetric", "asymmetric", "dual", "cispo"],
            ["token", "sequence", "dr_grpo"],
            ["std", "mean", "leave_one_out"],
        )
    ),
)
def test_every_combination_equals_the_reference_in_value_and_gradient(ratio_level, clip, aggregation, baseline):
    batch = leaf_batch()
    advantage = group_advantages(batch, baseline)
    batch["advantage"] = advantage.unsqueeze(-1)
    low, high = (0.8, 1.28) if clip == "asymmetric" else (0.8, 1.2)
    dual = 1.5 if clip == "dual" else None
    loss = GRPOLoss(
        clip_epsilon=(0.2, 0.28) if clip == "asymmetric" else 0.2,
        clip="cispo" if clip == "cispo" else "clip",
        dual_clip=dual,
        ratio_level=ratio_level,
        aggregation=aggregation,
        max_completion_length=8,
    )
    loss.clip_epsilon = torch.tensor([1 - low, high - 1], dtype=torch.float64)
    batch = batch.exclude(("old_log_probs", "full"))
    found = loss.double()(batch)["loss_objective"]
    expected = reference(
        batch, ratio_level=ratio_level, clip=clip, aggregation=aggregation, advantage=advantage, low=low, high=high,
        max_length=8, dual=dual,
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    leaf = batch["current_log_probs", "full"]
    (one,), (other,) = torch.autograd.grad(found, leaf), torch.autograd.grad(expected, leaf)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", [
    ImportanceCorrection(mode="truncate", level="token", low=None, high=1.1),
    ImportanceCorrection(mode="mask", level="token", low=0.9, high=1.1),
    ImportanceCorrection(mode="mask", level="sequence", low=0.97, high=1.03),
    ImportanceCorrection(mode="truncate", level="sequence", low=0.97, high=1.03, length_normalized=False),
])  # fmt: skip
def test_engine_weights_multiply_the_loss_and_the_ratio_is_the_trainers_own(options):
    batch = leaf_batch()
    mask = batch["masks", "all_assistant_mask"]
    log = torch.where(mask, batch["old_log_probs", "full"] - batch["log_probs", "full"], 0.0)
    if options.level == "sequence":
        log = log.sum(-1, keepdim=True) / (mask.sum(-1, keepdim=True) if options.length_normalized else 1)
    raw = log.exp().expand(mask.shape)
    lowest, highest = options.low or 0.0, options.high
    weight = raw.clamp(lowest, highest)
    if options.mode == "mask":
        weight = torch.where((raw < lowest) | (raw > highest), 0.0, raw)
    assert (weight[mask] != raw[mask]).any(), "the case must cut something"
    loss = GRPOLoss(importance_correction=options).double()
    loss.clip_epsilon = torch.tensor(0.2, dtype=torch.float64)
    result = loss(batch)
    expected = reference(
        batch, ratio_level="token", clip="symmetric", aggregation="token", low=0.8, high=1.2, max_length=8,
        advantage=batch["advantage"].squeeze(-1), weight=weight,
    )  # fmt: skip
    torch.testing.assert_close(result["loss_objective"], expected, rtol=1e-6, atol=1e-8)
    assert result["importance_cut"].item() == pytest.approx((weight != raw)[mask].double().mean().item())
    assert result["importance_mean"].item() == pytest.approx(raw[mask].mean().item())


def test_without_correction_the_old_log_probabilities_are_not_read():
    batch = leaf_batch()
    off = GRPOLoss(importance_correction=None)
    result = off(batch)
    assert not any(key.startswith("importance") for key in result.keys())  # noqa: SIM118 (no dict)
    engine_only = GRPOLoss()(batch.exclude(("old_log_probs", "full")))
    torch.testing.assert_close(result["loss_objective"], engine_only["loss_objective"])
    assert (engine_only["importance_mean"], engine_only["importance_ess"], engine_only["importance_cut"]) == (1, 1, 0)


# ------------------------------------------------------------------------------------------ denominators and splits
def cut_answers(padding=0):
    """Four answers of 2, 4, 6 and 8 tokens, the last one cut; every token's loss is 1."""
    lengths = torch.tensor([[2], [4], [6], [8]])
    mask = torch.arange(8 + padding) < lengths
    log_prob = torch.zeros(mask.shape)
    return TensorDict(
        {
            "current_log_probs": {"full": log_prob.clone().requires_grad_()},
            "log_probs": {"full": log_prob},
            "masks": {"all_assistant_mask": mask},
            "advantage": -torch.ones(4, 1),
            "cut_answer": torch.tensor([[False], [False], [False], [True]]),
        },
        [4],
    )


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "dr_grpo"])
def test_cut_answers_leave_numerator_and_denominator_alike(aggregation, padding):
    loss = GRPOLoss(aggregation=aggregation, max_completion_length=4, ignore_cut_answers=True)
    batch = cut_answers(padding)
    result = loss(batch)
    assert result["loss_objective"].item() == pytest.approx(1.0)  # 12 / 12, mean(1, 1, 1), 12 / (3 * 4)
    assert result["answer_length"].item() == 5 and result["cut_answers"].item() == 0.25
    total = sum(loss.count_items(part) for part in batch.split(1))
    for size in (1, 2, 3):
        parts = [loss(part, num_items=total)["loss_objective"] for part in batch.split(size)]
        assert sum(parts).item() == pytest.approx(1.0)
    assert GRPOLoss()(batch)["loss_objective"].item() == pytest.approx(1.0)


def test_a_batch_of_cut_answers_has_a_loss_of_zero_and_a_finite_gradient():
    batch = cut_answers()
    batch["cut_answer"] = torch.ones(4, 1, dtype=torch.bool)
    for aggregation in ("token", "sequence", "dr_grpo"):
        loss = GRPOLoss(
            aggregation=aggregation, max_completion_length=8, ignore_cut_answers=True, kl_to_inference_coeff=1.0
        )
        result = loss(batch)
        assert result.total_loss.item() == 0.0
        assert all(value.isfinite().all() for value in result.values())
        (gradient,) = torch.autograd.grad(result.total_loss, batch["current_log_probs", "full"])
        assert (gradient == 0).all()
        assert result["answer_length"].item() == 5 and result["cut_answers"].item() == 1.0


@pytest.mark.parametrize("kind", [GRPOLoss, CISPOLoss, DAPO])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "dr_grpo"])
def test_one_pass_over_sixteen_rows_equals_four_over_four(kind, aggregation):
    def build():
        return make_loss(
            kind, aggregation=aggregation, max_completion_length=6, kl_to_ref_coeff=0.1, entropy_coeff=0.01
        )

    batch = make_batch(16, 12)
    whole, split = build(), build()
    whole(batch).backward()
    # Micro-batches are trimmed to their own longest row, as a loader would.
    parts = [part[:] for part in batch.split(4)]
    trimmed = []
    for part in parts:
        longest = int(part["masks", "all_attention_mask"].sum(-1).max())
        rows = {key: part[key][:, :longest] for key in part.keys(True, True) if part[key].shape[-1] == 12}
        trimmed.append(part.clone().update(TensorDict(rows, [4])))
    assert len({part["tokens", "full"].shape for part in trimmed}) > 1, "the case must be ragged"
    total = sum(split.count_items(part) for part in trimmed)
    for part in trimmed:
        split(part, num_items=total).backward()
    for one, other in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_means_of_micro_batches_are_not_the_mean_of_the_whole():
    batch = leaf_batch(rows=16, length=12)
    loss = GRPOLoss()
    naive = sum(loss(part)["loss_objective"] for part in batch.split(4)) / 4
    assert not torch.isclose(naive, loss(batch)["loss_objective"])


# -------------------------------------------------------------------------------------------------------- on policy
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_a_fresh_batch_has_ratio_one_and_ess_one_at_every_response_token(ratio_level):
    loss, batch = make_loss(ratio_level=ratio_level), make_batch()
    mask = batch["masks", "all_assistant_mask"]
    scored, _ = loss.actor_network.log_probs(batch, False)
    batch["log_probs", "full"] = torch.where(mask, scored.detach(), math.nan)
    result = loss(batch.exclude("old_log_probs"))
    assert result["mean_ratio"].item() == 1 and result["max_ratio"].item() == 1
    assert result["ESS"].item() == pytest.approx(1.0)
    assert result["clip_fraction"].item() == 0 and result["kl_approx"].item() == 0
    tokens = mask.sum()
    expected = -(batch["advantage"] * mask).sum() / tokens
    torch.testing.assert_close(result["loss_objective"].detach(), expected)


def test_logs_are_means_over_response_tokens():
    batch = leaf_batch().exclude("old_log_probs")
    mask = batch["masks", "all_assistant_mask"]
    log_ratio = (batch["current_log_probs", "full"] - batch["log_probs", "full"])[mask].detach()
    ratio = log_ratio.exp()
    result = GRPOLoss()(batch)
    expected = {
        "clip_fraction": ((ratio < 0.8) | (ratio > 1.2)).double().mean(),
        "kl_approx": -log_ratio.mean(),
        "ESS": ratio.sum() ** 2 / (len(ratio) * ratio.square().sum()),
        "mean_ratio": ratio.mean(),
        "max_ratio": ratio.max(),
        "entropy": -batch["current_log_probs", "full"][mask].mean(),
        "answer_length": mask.sum(-1).double().mean(),
    }
    for key, value in expected.items():
        torch.testing.assert_close(result[key].double(), value.detach(), rtol=1e-6, atol=1e-7)


# -------------------------------------------------------------------------------------------------- defects of peers
def test_cispo_keeps_the_gradient_of_clipped_tokens():
    batch = leaf_batch().exclude("old_log_probs")
    leaf, mask = batch["current_log_probs", "full"], batch["masks", "all_assistant_mask"]
    ratio = (leaf - batch["log_probs", "full"]).detach().exp()
    clipped = mask & ((ratio < 0.8) | (ratio > 1.2))
    assert clipped.any()
    (gradient,) = torch.autograd.grad(CISPOLoss()(batch).total_loss, leaf)
    expected = -(ratio.clamp(0.8, 1.2) * batch["advantage"]) / mask.sum()
    torch.testing.assert_close(gradient[clipped], expected[clipped], rtol=1e-6, atol=1e-8)


def test_the_total_is_the_sum_of_losses_however_many_entries_there_are():
    batch = make_batch()
    few, many = make_loss(), make_loss(kl_to_ref_coeff=0.0, kl_to_inference_coeff=0.0, entropy_coeff=0.0,
                                       entropy_bonus=True)  # fmt: skip
    one, other = few(batch), many(batch)
    assert len(other.keys()) > len(one.keys())
    one.backward()
    other.total_loss.backward()
    for a, b in zip(few.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    terms = make_loss(kl_to_ref_coeff=0.5, entropy_coeff=0.1)(batch)
    expected = terms["loss_objective"] + terms["loss_kl_to_ref"] + terms["loss_entropy"]
    torch.testing.assert_close(terms.total_loss, expected)
    torch.testing.assert_close(terms.loss_kl_to_ref, terms["loss_kl_to_ref"])


def test_entries_are_attributes_and_copies_keep_the_total():
    output = GRPOLoss(kl_to_inference_coeff=1.0)(leaf_batch()).detach()
    for other in (copy.deepcopy(output), pickle.loads(pickle.dumps(output)), output.clone()):
        assert torch.equal(other.total_loss, output["loss_objective"] + output["loss_kl_to_inference"])
    assert torch.equal(output.ESS, output["ESS"])
    with pytest.raises(AttributeError, match="loss_critic"):
        _ = output.loss_critic


def test_dapo_clips_wider_above_unless_told_otherwise():
    torch.testing.assert_close(DAPO().clip_epsilon, torch.tensor([0.2, 0.28]))
    torch.testing.assert_close(DAPO(clip_epsilon=0.2).clip_epsilon, torch.tensor(0.2))
    batch = leaf_batch()
    pair = GRPOLoss(clip_epsilon=(0.2, 0.28))(batch)
    torch.testing.assert_close(DAPO()(batch)["loss_objective"], pair["loss_objective"])
    assert not torch.isclose(DAPO()(batch)["loss_objective"], GRPOLoss()(batch)["loss_objective"])


def test_no_entropy_is_optimised_unless_it_is_asked_for():
    assert "loss_entropy" not in make_loss()(make_batch())
    asked = make_loss(entropy_coeff=0.5)
    result = asked(make_batch())
    torch.testing.assert_close(result["loss_entropy"].detach(), -0.5 * result["entropy"])


@pytest.mark.parametrize("baseline", ["std", "mean", "leave_one_out"])
def test_groups_of_one_and_of_equal_rewards_train_nothing_and_are_no_nan(baseline):
    for size, rewards in ((1, [1.0, 0.0, 3.0, 2.0]), (4, [0.3] * 4)):
        batch = cut_answers()
        step = {"reward": torch.tensor(rewards).unsqueeze(-1), "done": torch.ones(4, 1, dtype=torch.bool)}
        batch["next"] = TensorDict(step, [4])
        batch["group_id"] = torch.arange(4) if size == 1 else torch.zeros(4, dtype=torch.int64)
        with_advantage = MCAdvantage(size, baseline=baseline)(batch.exclude("advantage"))
        result = GRPOLoss()(with_advantage)
        assert result.total_loss.item() == 0
        (gradient,) = torch.autograd.grad(result.total_loss, batch["current_log_probs", "full"])
        assert (gradient == 0).all()


def test_an_answer_without_tokens_counts_nowhere():
    batch = leaf_batch()
    with_empty = batch.clone()
    with_empty["masks", "all_assistant_mask"][2] = False
    rows = torch.tensor([0, 1, 3, 4, 5])
    for aggregation in ("token", "sequence"):
        loss = GRPOLoss(aggregation=aggregation)
        torch.testing.assert_close(loss(with_empty).detach().to_dict(), loss(batch[rows]).detach().to_dict())


# --------------------------------------------------------------------------------------------------------- what else
def test_the_actor_scores_by_its_method_or_by_its_call():
    batch = make_batch()
    one, other = make_loss(actor=TinyScorer)(batch), make_loss(actor=TinyModel)(batch)
    torch.testing.assert_close(one.detach().to_dict(), other.detach().to_dict())


def test_stored_log_probabilities_do_not_pass_for_new_ones():
    class Silent(TinyModel):
        def forward(self, td):
            return td

    with pytest.raises(KeyMissingError, match=r'"log_probs", "full".*generate=False'):
        make_loss(actor=Silent)(make_batch())


def test_an_entropy_that_the_actor_does_not_give_is_an_error():
    with pytest.raises(PolicyError, match="entropy_bonus"):
        make_loss(actor=TinyModel, entropy_coeff=0.1)(make_batch())


def test_a_stored_log_probability_that_is_missing_at_a_response_token_is_named():
    batch = make_batch().exclude("old_log_probs")
    row, place = batch["masks", "all_assistant_mask"].nonzero()[3].tolist()
    for value in (math.nan, -math.inf):
        batch["log_probs", "full"][row, place] = value
        with pytest.raises(SpecError, match=rf'"log_probs", "full".*\[{row}, {place}\]'):
            make_loss()(batch)


def test_tensors_of_two_lengths_are_refused_by_name():
    batch = make_batch()
    batch["log_probs"] = TensorDict({"full": torch.zeros(6, 8)}, [6])
    with pytest.raises(SpecError, match=r'"log_probs", "full".*\[6, 8\].*\[6, 9\]'):
        make_loss()(batch)
    with pytest.raises(SpecError, match=r'"advantage" has \[6, 4\]'):
        make_loss()(make_batch().set("advantage", torch.zeros(6, 4)))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 1, 1), (6, 9), (6, 9, 1)])
def test_an_advantage_per_answer_may_have_any_of_the_usual_shapes(shape):
    batch = make_batch()
    expected = make_loss()(batch)["loss_objective"]
    advantage = batch["advantage"]
    wide = advantage.expand(6, 9) if 9 in shape else advantage
    torch.testing.assert_close(make_loss()(batch.set("advantage", wide.reshape(shape)))["loss_objective"], expected)


def test_left_padding_gives_what_right_padding_gives():
    batch = leaf_batch()
    rolled = batch.clone()
    lengths = batch["masks", "all_attention_mask"].sum(-1)
    for key in batch.keys(True, True):
        if batch[key].shape[-1] == 9:
            moved = [row.roll(9 - int(n)) for row, n in zip(batch[key], lengths, strict=True)]
            rolled[key] = torch.stack(moved)
    torch.testing.assert_close(GRPOLoss()(rolled).detach().to_dict(), GRPOLoss()(batch).detach().to_dict())


def ragged_rows(batch):
    """The rows of a batch without their padding."""
    lengths = batch["masks", "all_attention_mask"].sum(-1).tolist()
    rows = []
    for row, n in zip(batch.unbind(0), lengths, strict=True):
        rows.append(row.apply(lambda value, n=n: value[:n] if value.shape == (9,) else value))
    return rows


def test_ragged_rows_give_what_padded_rows_give():
    loss, batch = make_loss(kl_to_ref_coeff=0.1), make_batch()
    lazy = lazy_stack(ragged_rows(batch))
    assert isinstance(lazy, LazyStackedTensorDict)
    expected = loss(batch).detach().to_dict()
    torch.testing.assert_close(loss(lazy).detach().to_dict(), expected)
    assert loss.count_items(lazy) == loss.count_items(batch)
    mixed = lazy_stack([row.select("advantage", "group_id") for row in lazy.unbind(0)]).contiguous()
    for name in ("tokens", "masks", "log_probs", "old_log_probs", "ref_log_probs"):
        mixed[name] = lazy[name]
    assert not isinstance(mixed, LazyStackedTensorDict)
    torch.testing.assert_close(loss(mixed).detach().to_dict(), expected)


@pytest.mark.parametrize("strategy", ["rlhf", "sft", "generic"])
def test_turns_of_dialogs_with_different_prompts_are_rows_like_others(strategy):
    """[B, T] rows, as several turns of chats give them: prompts and answers differ within and between dialogs."""
    flat = make_batch(rows=6, garbage=0.0)
    prompts = [row["tokens", "full"][: 1 + n % 3] for n, row in enumerate(flat.unbind(0))]
    rows = ragged_rows(flat)
    for row, prompt in zip(rows, prompts, strict=True):
        row["tokens", "prompt"] = prompt
    loss = make_loss(masking_strategy=strategy)
    expected = loss(lazy_stack(rows)).detach().to_dict()
    dialogs = lazy_stack([lazy_stack(rows[:3]), lazy_stack(rows[3:])])
    assert dialogs.batch_size == (2, 3)
    torch.testing.assert_close(loss(dialogs).detach().to_dict(), expected)


def test_a_scorer_is_told_by_what_it_scores_not_by_the_prompts_it_would_generate_from():
    actor = TinyScorer()
    actor.in_keys = (("text", "prompt"),)
    assert ("tokens", "full") in GRPOLoss(actor).in_keys
    assert ("text", "prompt") not in GRPOLoss(actor).in_keys


class Container(TensorClass["nocast"]):
    full: torch.Tensor | None = None
    all_assistant_mask: torch.Tensor | None = None
    all_attention_mask: torch.Tensor | None = None
    padded: bool | None = None


@pytest.mark.parametrize("padded", [False, True])
def test_containers_of_rows_give_what_plain_entries_give(padded):
    loss, batch = make_loss(), make_batch().exclude("old_log_probs", "ref_log_probs")
    held = batch.select("advantage")
    for name in ("tokens", "masks", "log_probs"):
        rows = [row[name].to_dict() for row in (batch.unbind(0) if padded else ragged_rows(batch))]
        stack = torch.stack if padded else lazy_stack
        held[name] = stack([Container(**row, padded=padded, batch_size=[]) for row in rows])
    torch.testing.assert_close(loss(held).detach().to_dict(), loss(batch).detach().to_dict())


def test_jagged_tensors_give_what_padded_rows_give():
    loss, batch = make_loss(), make_batch()
    rows, jagged = ragged_rows(batch), batch.clone()
    for key in (("tokens", "full"), ("masks", "all_assistant_mask"), ("masks", "all_attention_mask"),
                ("log_probs", "full"), ("old_log_probs", "full")):  # fmt: skip
        jagged[key] = torch.nested.nested_tensor([row[key] for row in rows], layout=torch.jagged)
    torch.testing.assert_close(loss(jagged).detach().to_dict(), loss(batch).detach().to_dict())


def test_chats_of_different_lengths_do_not_stand_in_the_way_of_padding():
    rows = ragged_rows(make_batch())
    for n, row in enumerate(rows):
        row["query"] = f"question {n}"
        row["history"] = TensorDict({"role": NonTensorData("user", [n + 1])}, [n + 1])
    torch.testing.assert_close(
        make_loss()(lazy_stack(rows)).detach().to_dict(), make_loss()(make_batch()).detach().to_dict()
    )


@pytest.mark.parametrize("ragged", [True, False])
def test_sft_masking_trains_the_last_turn_and_rlhf_all_turns(ragged):
    full = torch.tensor([[1, 2, 3, 4, 5, 6, 0], [1, 2, 3, 4, 5, 6, 7]])
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 0], [0, 1, 0, 0, 0, 1, 1]]).bool()
    last = torch.tensor([[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1]]).bool()
    current = torch.randn(2, 7)
    batch = TensorDict(
        {
            "tokens": {"full": full},
            "masks": {"all_assistant_mask": mask, "all_attention_mask": full > 0},
            "log_probs": {"full": torch.zeros(2, 7)},
            "current_log_probs": {"full": current},
            "advantage": torch.ones(2, 1),
        },
        [2],
    )
    prompts = [torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 4, 5])]
    if ragged:
        rows = list(batch.unbind(0))
        for row, prompt in zip(rows, prompts, strict=True):
            row["tokens", "prompt"] = prompt
        batch = lazy_stack(rows)
    else:
        batch["tokens", "prompt"] = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    for strategy, expected in (("sft", last), ("rlhf", mask), ("generic", full > 0)):
        result = GRPOLoss(masking_strategy=strategy)(batch)
        assert result["entropy"].item() == pytest.approx(-current[expected].mean().item())
    without = batch.exclude(("tokens", "prompt"))
    assert GRPOLoss()(without)["entropy"].item() == pytest.approx(-current[mask].mean().item())


def test_tokens_far_from_the_engine_are_left_out_of_both_sums():
    batch = leaf_batch().exclude("old_log_probs")
    mask = batch["masks", "all_assistant_mask"]
    log_ratio = (batch["current_log_probs", "full"] - batch["log_probs", "full"]).detach()
    near = mask & (log_ratio.square() / 2 <= 0.02)
    assert 0 < near.sum() < mask.sum()
    expected = batch.clone()
    expected["masks", "all_assistant_mask"] = near
    one = GRPOLoss(kl_mask_threshold=0.02)(batch)["loss_objective"]
    torch.testing.assert_close(one, GRPOLoss()(expected)["loss_objective"])


def test_half_precision_log_probabilities_are_compared_in_full_precision():
    batch = leaf_batch()
    for key in (("current_log_probs", "full"), ("log_probs", "full"), ("old_log_probs", "full")):
        batch[key] = batch[key].detach().to(torch.bfloat16)
    batch["advantage"] = batch["advantage"].float()
    wide = batch.apply(lambda value: value.float() if value.dtype == torch.bfloat16 else value)
    torch.testing.assert_close(GRPOLoss()(batch)["loss_objective"], GRPOLoss()(wide)["loss_objective"])


# --------------------------------------------------------------------------------------------------------- a critic
def test_the_readme_call_works_and_the_advantage_is_the_return_over_the_value():
    """Two dialogs of two turns; the loss computes returns, advantages and the critic's loss."""
    batch = make_batch(4).exclude("advantage", "old_log_probs")
    done = torch.tensor([[False], [True], [False], [True]])
    batch["next"] = TensorDict({"reward": torch.tensor([[0.0], [1.0], [2.0], [4.0]]), "done": done}, [4])
    torch.manual_seed(4)
    critic = TensorDictModule(nn.Linear(3, 1), in_keys=["state"], out_keys=["state_value"])
    batch["state"] = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    loss_fn = GRPOLoss(TinyScorer(), critic, gamma=0.99)
    loss = loss_fn(batch)
    loss.backward()
    returns = torch.tensor([[0.99], [1.0], [2 + 0.99 * 4], [4.0]])
    value = critic.module(batch["state"]).detach()
    weight = batch["masks", "all_assistant_mask"]
    expected = ((value - returns).square() * weight).sum() / weight.sum()
    torch.testing.assert_close(loss["loss_critic"].detach(), expected)
    given = GRPOLoss(loss_fn.actor_network)(batch.clone().set("advantage", returns - value))
    torch.testing.assert_close(loss["loss_objective"], given["loss_objective"])
    assert all(parameter.grad is not None for parameter in loss_fn.parameters())


def test_returns_need_whole_dialogs():
    batch = make_batch(2).exclude("advantage")
    step = {"reward": torch.ones(2, 1), "done": torch.zeros(2, 1, dtype=torch.bool)}
    batch["next"] = TensorDict(step, [2])
    with pytest.raises(SpecError, match="whole dialogs"):
        GRPOLoss(TinyScorer(), make_critic())(batch)


def test_without_an_advantage_or_a_critic_the_missing_entry_is_named():
    with pytest.raises(KeyMissingError, match="MCAdvantage"):
        make_loss()(make_batch().exclude("advantage"))


def test_the_critics_change_is_limited_by_clip_value():
    batch = make_batch()
    batch["value_target"], batch["state_value"] = torch.full((6, 1), 5.0), torch.zeros(6, 9)
    critic = make_critic()
    mask, value = batch["masks", "all_assistant_mask"], critic.table.weight[batch["tokens", "full"]].squeeze(-1)
    kept = value.clamp(-0.1, 0.1)
    expected = torch.maximum((value - 5).square(), (kept - 5).square())[mask].mean()
    found = GRPOLoss(TinyScorer(), critic, clip_value=0.1)(batch)["loss_critic"]
    torch.testing.assert_close(found, expected)


# ---------------------------------------------------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"aggregation": "mean"}, "prompt_mean"),
        ({"aggregation": "dr_grpo"}, "max_completion_length"),
        ({"ratio_level": "word"}, "sequence"),
        ({"clip": "soft"}, "cispo"),
        ({"dual_clip": 0.5}, "above 1"),
        ({"dual_clip": 3.0, "clip": "cispo"}, "cispo"),
        ({"kl_estimator": "k4"}, "k3"),
        ({"masking_strategy": "all"}, "generic"),
        ({"gamma": 0.99}, "critic_network"),
        ({"samples_mc_entropy": 4}, "samples_mc_entropy"),
        ({"reduction": "median"}, "reduction"),
    ],
)
def test_an_option_that_is_not_admitted_is_refused_with_the_choices(options, word):
    with pytest.raises(SpecError, match=word):
        GRPOLoss(**options)


def test_a_correction_checks_its_own_options():
    with pytest.raises(SpecError, match="importance_correction=None"):
        ImportanceCorrection(mode="off")
    with pytest.raises(SpecError, match="above"):
        ImportanceCorrection(low=2.0, high=1.0)


def test_aliases_of_aggregations_are_the_same():
    batch = leaf_batch()
    for one, other in (("token_mean", "token"), ("prompt_mean", "sequence")):
        a, b = GRPOLoss(aggregation=one)(batch), GRPOLoss(aggregation=other)(batch)
        assert a["loss_objective"].shape == () and torch.equal(a["loss_objective"], b["loss_objective"])
    tokens = GRPOLoss(aggregation="none")(batch)["loss_objective"]
    mask = batch["masks", "all_assistant_mask"]
    assert tokens.shape == mask.shape and (tokens[~mask] == 0).all()
    torch.testing.assert_close(tokens.sum() / mask.sum(), GRPOLoss()(batch)["loss_objective"])


def test_coefficients_may_be_assigned_later():
    loss, batch = make_loss(kl_to_ref_coeff=1.0), make_batch()
    before = loss(batch)["loss_kl_to_ref"].item()
    loss.kl_to_ref_coeff = 0.25
    assert loss(batch)["loss_kl_to_ref"].item() == pytest.approx(before / 4)


def test_a_batch_with_two_row_dimensions_is_its_rows():
    batch = leaf_batch()
    shaped = batch.reshape(2, 3)
    torch.testing.assert_close(GRPOLoss()(shaped).detach().to_dict(), GRPOLoss()(batch).detach().to_dict())
