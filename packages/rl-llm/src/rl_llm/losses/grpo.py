"""Group relative policy optimisation over the tokens of answers, and its relatives as options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.networks import call_on_tensors, read_inputs
from rl_llm.functional.aggregation import aggregate, check_aggregation, count_items
from rl_llm.functional.grpo import LOG_RATIO_LIMIT, cispo_gain, clipped_ratio, sequence_log_ratio, token_log_ratio
from rl_llm.functional.importance import ImportanceWeights, importance_weights
from rl_llm.functional.kl import KL_ESTIMATORS, kl_tokens
from rl_llm.losses.critic import turn_returns, value_distance
from rl_llm.losses.grpo_keys import GRPOKeys, ImportanceCorrection
from rl_llm.losses.grpo_logs import answer_logs, importance_logs, ratio_logs
from rl_llm.losses.layout import check_finite, per_answer_or_token
from rl_llm.losses.output import GRPOLossOutput, LLMLossOutput
from rl_llm.losses.padding import dense_batch, row_lengths
from rl_llm.losses.token_loss import TokenLoss

__all__ = ["GRPOLoss"]

_SUSPICIOUS = math.exp(LOG_RATIO_LIMIT - 0.1)
"""A ratio at the limit: is a stored log-probability infinite?"""
_RATIO_LEVELS = ("token", "sequence")
_CLIPS = ("clip", "cispo")


class TokenMasks(NamedTuple):
    """Which tokens count.

    Attributes:
        answer: bool [*B, L], tokens of answers.
        active: bool [*B, L], those of them that are trained.
        rows: bool [*B], answers that are trained; None: all.
    """

    answer: Tensor
    active: Tensor
    rows: Tensor | None


class GRPOLoss(TokenLoss):
    r"""The clipped policy gradient over tokens of answers, with group advantages and without a critic (or with one).

    .. math:: L = -\frac{1}{N} \sum_t w_t \min(r_t A_t, \mathrm{clip}(r_t, 1 - \epsilon, 1 + \epsilon) A_t)
              + \beta \, \mathrm{KL}(\pi || \pi_{ref}) - c_e H, \qquad r_t = \pi(o_t) / \pi_{old}(o_t)

    ``loss(batch).total_loss`` is to be minimised: the sum of ``loss_objective`` and, where asked for, ``loss_critic``,
    ``loss_kl_to_ref``, ``loss_kl_to_inference`` and ``loss_entropy``. Beside them stand detached logs, means over the
    tokens that are trained: ``clip_fraction``, ``kl_approx``, ``ESS`` (1 on policy), ``mean_ratio``, ``max_ratio``,
    ``entropy`` (without an entropy from the actor the estimate -log pi), ``kl_to_ref``, ``kl_to_inference``,
    ``importance_mean``, ``importance_ess``, ``importance_cut``, and over all answers ``answer_length`` and
    ``cut_answers`` (the share that was ignored).

    ============  ======================================================================================
    GRPO          ``aggregation="sequence"``; DeepSeekMath, arXiv 2402.03300
    Dr. GRPO      ``aggregation="dr_grpo"``, ``MCAdvantage(baseline="mean")``; arXiv 2503.20783
    DAPO          ``clip_epsilon=(0.2, 0.28)``, ``aggregation="token"``, see :class:`~rl_llm.DAPO`; arXiv 2503.14476
    GSPO          ``ratio_level="sequence"``, ``aggregation="sequence"``, a small clip (3e-4, 4e-4); arXiv 2507.18071
    CISPO         ``clip="cispo"``, see :class:`~rl_llm.CISPOLoss`; arXiv 2506.13585
    ============  ======================================================================================

    With gradient accumulation, or on several ranks, tokens are counted over all parts, and the parts' gradients are
    added up (not averaged)::

        total = sum(loss.count_items(part) for part in parts)
        for part in parts:
            loss(part, num_items=total).backward()

    Unlike TorchRL: no entropy bonus by default; ``loss_critic``, KL terms and logs are means over response tokens;
    ``aggregation="prompt_mean"`` gives a scalar; a pad token never counts.

    Args:
        actor_network: a module with ``in_keys`` that has ``log_probs(batch, with_entropy)`` (see
            ``losses.scoring.TokenScorer``), or that writes ("log_probs", "full") when it is called. None: the batch has
            ("current_log_probs", "full"), with its gradient.
        critic_network: a module with ``in_keys`` that writes "state_value", [*B, 1] or [*B, L]; adds ``loss_critic``,
            the squared distance to "value_target". Where that is missing it is the discounted return of the turns
            (from next.reward and next.done; rows are then whole dialogs, turn after turn), and where the advantage
            is missing it is the target minus the value.
        clip_epsilon: how far the ratio may move from 1; a pair (low, high) clips to [1 - low, 1 + high]. May be
            assigned later.
        ratio_level: "token", or "sequence": the mean of the log-ratios of an answer's tokens.
        clip: "clip": the surrogate; "cispo": a clipped weight without gradient times A log pi.
        dual_clip: c > 1 bounds the gain from below by c A where A < 0; None: no bound. Not with "cispo".
        aggregation: "token" ("token_mean"), "sequence" ("prompt_mean"), "dr_grpo" or "none", see
            ``functional.aggregate``.
        max_completion_length: the constant length of "dr_grpo".
        importance_correction: weights pi_old / mu of trainer over engine, where the batch has ("old_log_probs",
            "full"); the ratio is then taken against these. Where it has not, the ratio is taken against the engine's,
            every weight is 1, and so the logs say. None: off, old log-probabilities are not read.
        ignore_cut_answers: answers whose "cut_answer" is True count in neither numerator nor denominator.
        kl_to_ref_coeff: weight of the KL to the reference policy; None: no such term.
        kl_to_inference_coeff: weight of the KL to the policy that sampled; None: no such term.
        kl_estimator: "k1", "k2" or "k3", see ``functional.kl_tokens``.
        kl_mask_threshold: tokens with (log pi - log mu)^2 / 2 above it are left out; None: none.
        entropy_bonus: whether to add ``loss_entropy``; None: if entropy_coeff is not 0. The actor must give an entropy.
        samples_mc_entropy: 1; the entropy is the actor's own, not sampled.
        entropy_coeff: weight of the entropy, may be assigned later.
        masking_strategy: which tokens are trained. "rlhf": those the policy generated (all_assistant_mask); "sft":
            those of them after the prompt, if the batch has ("tokens", "prompt"), so that earlier turns are not
            trained again (where prompts are padded, their length is not known: the last run of generated tokens);
            "generic": all tokens.
        gamma: discount of returns per turn, with a critic_network; None: 1.
        critic_coeff: weight of the critic's loss, may be assigned later.
        clip_value: largest change of the critic's value since collection; None: unlimited.
        reduction: None or "mean"; "sum": not divided by the number of tokens or answers; "none": per answer, [*B].
        device: where to move the loss.

    Raises:
        SpecError: an option is not admitted.
    """

    default_keys: ClassVar[Any] = GRPOKeys()
    output_type: ClassVar[type[LLMLossOutput]] = GRPOLossOutput
    hidden_names: ClassVar[tuple[str, ...]] = ("sample_log_prob",)

    def __init__(
        self,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
        *,
        clip_epsilon: float | Sequence[float] = 0.2,
        ratio_level: str = "token",
        clip: str = "clip",
        dual_clip: float | None = None,
        aggregation: str = "token_mean",
        max_completion_length: int | None = None,
        importance_correction: ImportanceCorrection | None = ImportanceCorrection(),  # noqa: B008 (frozen)
        ignore_cut_answers: bool = False,
        kl_to_ref_coeff: float | None = None,
        kl_to_inference_coeff: float | None = None,
        kl_estimator: str = "k3",
        kl_mask_threshold: float | None = None,
        entropy_bonus: bool | None = None,
        samples_mc_entropy: int = 1,
        entropy_coeff: float = 0.0,
        masking_strategy: str = "sft",
        gamma: float | None = None,
        critic_coeff: float = 1.0,
        clip_value: float | None = None,
        reduction: str | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            actor_network,
            masking_strategy=masking_strategy,
            reduction="mean" if reduction is None else reduction,
            device=None,
        )
        _check_choice("ratio_level", ratio_level, _RATIO_LEVELS)
        _check_choice("clip", clip, _CLIPS)
        _check_choice("kl_estimator", kl_estimator, KL_ESTIMATORS)
        _check_numbers(dual_clip, clip, samples_mc_entropy, gamma, critic_network)
        self.ratio_level, self.clip, self.dual_clip = ratio_level, clip, dual_clip
        self.aggregation = check_aggregation(aggregation, max_completion_length)
        self.max_completion_length = max_completion_length
        self.importance_correction = importance_correction
        self.ignore_cut_answers = ignore_cut_answers
        self.kl_estimator, self.kl_mask_threshold = kl_estimator, kl_mask_threshold
        self.entropy_bonus = entropy_coeff != 0 if entropy_bonus is None else entropy_bonus
        self.gamma = 1.0 if gamma is None else gamma
        self.has_critic = critic_network is not None
        if critic_network is not None:
            self.add_network("critic_network", critic_network)
        self.add_scalar("clip_epsilon", clip_epsilon)
        self.add_scalar("entropy_coeff", entropy_coeff)
        self.add_scalar("critic_coeff", critic_coeff)
        optional = {
            "kl_to_ref_coeff": kl_to_ref_coeff,
            "kl_to_inference_coeff": kl_to_inference_coeff,
            "clip_value": clip_value,
        }
        for name, value in optional.items():
            self.add_scalar(name, value) if value is not None else setattr(self, name, None)
        if device is not None:
            self.to(device)

    # ---- for users

    def forward(
        self, tensordict: TensorDictBase | None = None, *, num_items: Tensor | float | None = None, **tensors: Tensor
    ) -> Any:
        """The losses of a batch.

        Args:
            tensordict: the batch [*B], dense or ragged.
            num_items: what the sums are divided by, counted over all micro-batches and ranks (:meth:`count_items`);
                None: counted in this batch.
            **tensors: instead of a batch, one tensor per key, named by joining the key with "_".

        Returns:
            A :class:`~rl_llm.losses.output.GRPOLossOutput`; called with keywords, a tuple in the order of out_keys.
        """
        if num_items is None:
            return super().forward(tensordict, **tensors)
        if tensordict is None:
            rows = next(iter(tensors.values())).shape[0]
            return super().forward(None, **tensors, num_items=torch.as_tensor(num_items).expand(rows))
        number = torch.as_tensor(num_items, device=tensordict.device).expand(tensordict.batch_size)
        return super().forward(tensordict.copy().set(self._paths["num_items"], number), **tensors)

    def count_items(self, batch: TensorDictBase) -> Tensor:
        """How many tokens (or answers, as the aggregation counts) of a batch are trained, a scalar."""
        masks = self._masks(dense_batch(batch), row_lengths(batch, self._paths["prompt"]))
        return count_items(masks.active, self.aggregation, masks.rows)

    def default_in_keys(self) -> list[Key]:
        names = ["sample_log_prob", "advantage"]
        names += ["cut_answer"] if self.ignore_cut_answers else []
        names += ["ref_log_prob"] if self.kl_to_ref_coeff is not None else []
        names += ["value_target"] if self.has_critic else []
        keys = [*self.token_in_keys(), *(self.path(name) for name in names)]
        critic = self._modules.get("critic_network")
        keys += [as_key(key) for key in critic.in_keys] if critic is not None else []  # type: ignore[union-attr]
        return list(dict.fromkeys(keys))

    def default_out_keys(self) -> list[Key]:
        keys = ["loss_objective"]
        keys += ["loss_critic"] if self.has_critic else []
        for name in ("kl_to_ref", "kl_to_inference"):
            keys += [f"loss_{name}", name] if getattr(self, f"{name}_coeff") is not None else []
        keys += ["loss_entropy"] if self.entropy_bonus else []
        keys += ["entropy", "clip_fraction", "kl_approx", "ESS", "mean_ratio", "max_ratio"]
        if self.importance_correction is not None:
            keys += ["importance_mean", "importance_ess", "importance_cut"]
        return [*keys, "answer_length", "cut_answers"]

    # ---- the parts, in the order of compute

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        prompt_length = row_lengths(batch, self._paths["prompt"])
        batch = dense_batch(batch)
        masks = self._masks(batch, prompt_length)
        log_prob, entropy = self.current_log_prob(batch, masks.active.shape, with_entropy=self.entropy_bonus)
        engine = self.stored_log_prob(batch, "sample_log_prob", masks.active.shape)
        old, weights = self._correction(batch, engine, masks)
        if self.kl_mask_threshold is not None:
            moved = token_log_ratio(log_prob.detach(), engine, masks.active).square() / 2
            masks = masks._replace(active=masks.active & (moved <= self.kl_mask_threshold))
        active = masks.active
        count = active.sum().clamp_min(1)
        advantage, distance = self._advantage(batch, active.shape)
        objective, logs = self._objective(token_log_ratio(log_prob, old, active), log_prob, advantage, active, count)
        if not bool(logs["max_ratio"] < _SUSPICIOUS):  # a NaN is not smaller either
            check_finite(engine, active, type(self).__name__, self._paths["sample_log_prob"])
            check_finite(old, active, type(self).__name__, self._paths["old_log_prob"])
        if weights is not None:
            objective = objective * weights.weight
        divergences = self._divergences(batch, log_prob, engine, active)
        losses = {"loss_objective": objective}
        if distance is not None:
            losses["loss_critic"] = torch.where(active, self.critic_coeff * distance, 0.0)
        losses.update({f"loss_{name}": getattr(self, f"{name}_coeff") * kl for name, kl in divergences.items()})
        if self.entropy_bonus:
            assert entropy is not None, "score_tokens asks for it"
            losses["loss_entropy"] = torch.where(active, -self.entropy_coeff * entropy, 0.0)
        result = self._aggregate(losses, masks, count, batch)
        result.update({name: kl.detach().sum() / count for name, kl in divergences.items()})
        seen = -log_prob.detach() if entropy is None else entropy.detach()
        result["entropy"] = torch.where(active, seen, 0.0).sum() / count
        result.update(logs)
        if self.importance_correction is not None:
            result.update(importance_logs(weights, objective))
        result.update(answer_logs(masks.answer, masks.rows if self.ignore_cut_answers else None, objective))
        return result

    def _masks(self, batch: TensorDictBase, prompt_length: Tensor | None) -> TokenMasks:
        """Which tokens count; ``prompt_length`` [*B] where prompts were ragged."""
        answer, rows = self.answer_mask(batch, prompt_length), self.valid_rows(batch)
        if not self.ignore_cut_answers:
            return TokenMasks(answer, answer, rows)
        whole = ~self.read(batch, "cut_answer").reshape(answer.shape[:-1]).bool()
        return TokenMasks(answer, answer & whole.unsqueeze(-1), whole if rows is None else rows & whole)

    def _correction(
        self, batch: TensorDictBase, engine: Tensor, masks: TokenMasks
    ) -> tuple[Tensor, ImportanceWeights | None]:
        """What the ratio is taken against, and the weights against the engine."""
        options = self.importance_correction
        if options is None:
            return engine, None
        if batch.get(self._paths["old_log_prob"], None) is None:
            return engine, None
        old = self.stored_log_prob(batch, "old_log_prob", engine.shape)
        weights = importance_weights(
            old,
            engine,
            masks.active,
            mode=options.mode,
            level=options.level,
            low=options.low,
            high=options.high,
            length_normalized=options.length_normalized,
        )
        return old, weights

    def _advantage(self, batch: TensorDictBase, shape: torch.Size) -> tuple[Tensor, Tensor | None]:
        """The advantage, [*B, 1] or [*B, L], and the critic's loss of the same kind."""
        owner = type(self).__name__
        advantage = batch.get(self._paths["advantage"], None)
        distance: Tensor | None = None
        if self.has_critic:
            critic, key = self._modules["critic_network"], self._paths["value"]
            assert critic is not None
            inputs = read_inputs(critic, batch, owner)
            value = per_answer_or_token(call_on_tensors(critic, inputs, key, batch.batch_size), shape, owner, key)
            target = self._value_target(batch, shape)
            old = None
            if self.clip_value is not None:
                old = per_answer_or_token(self.read(batch, "value").detach(), shape, owner, key)
            distance = value_distance(value, target, old, self.clip_value)
            advantage = target - value.detach() if advantage is None else advantage
        if advantage is None:
            raise self.missing(batch, "advantage")
        return per_answer_or_token(advantage.detach(), shape, owner, self._paths["advantage"]), distance

    def _value_target(self, batch: TensorDictBase, shape: torch.Size) -> Tensor:
        target = batch.get(self._paths["value_target"], None)
        if target is not None:
            return per_answer_or_token(target.detach(), shape, type(self).__name__, self._paths["value_target"])
        if batch.get(self._paths["reward"], None) is None:
            raise self.missing(batch, "value_target")
        reward, done = self.read(batch, "reward"), self.read(batch, "done")
        return turn_returns(reward, done, shape[:-1], self.gamma, type(self).__name__)

    def _objective(
        self, log_ratio: Tensor, log_prob: Tensor, advantage: Tensor, active: Tensor, count: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What is minimised at each token, 0 where it does not count, and logs about the ratios."""
        epsilon = self._buffers["clip_epsilon"]
        assert epsilon is not None
        below, above = (epsilon, epsilon) if epsilon.ndim == 0 else epsilon.unbind()
        low, high = 1 - below, 1 + above
        ratio = (sequence_log_ratio(log_ratio, active) if self.ratio_level == "sequence" else log_ratio).exp()
        # Not the gain but the advantage is masked and negated: it has no gradient, so the backward pass is shorter.
        cost = torch.where(active, -advantage, 0.0)
        if self.clip == "cispo":
            objective = cispo_gain(ratio, torch.where(active, log_prob, 0.0), cost, low, high)
        else:
            objective = clipped_ratio(ratio, advantage, low, high, self.dual_clip) * cost
        return objective, ratio_logs(ratio, log_ratio, active, count, low, high)

    def _divergences(
        self, batch: TensorDictBase, log_prob: Tensor, engine: Tensor, active: Tensor
    ) -> dict[str, Tensor]:
        """The KL terms that were asked for, per token."""
        found = {}
        if self.kl_to_ref_coeff is not None:
            ref = self.stored_log_prob(batch, "ref_log_prob", active.shape)
            found["kl_to_ref"] = kl_tokens(log_prob, ref, active, self.kl_estimator)
        if self.kl_to_inference_coeff is not None:
            found["kl_to_inference"] = kl_tokens(log_prob, engine, active, self.kl_estimator)
        return found

    def _aggregate(
        self, losses: dict[str, Tensor], masks: TokenMasks, count: Tensor, batch: TensorDictBase
    ) -> dict[str, Tensor]:
        """Each loss as the aggregation wants it; all are divided by the same number."""
        number = batch.get(self._paths["num_items"], None)
        if number is not None:
            items = number.flatten()[0]
        elif self.aggregation == "token":
            items = count
        else:
            items = count_items(masks.active, self.aggregation, masks.rows).clamp_min(1)
        return {
            name: aggregate(
                values,
                masks.active,
                self.aggregation,
                reduction=self.reduction,
                num_items=items,
                max_length=self.max_completion_length,
                masked=True,
            )
            for name, values in losses.items()
        }


def _check_choice(option: str, given: str, choices: Sequence[str]) -> None:
    if given not in choices:
        raise SpecError(f"{option} is one of {', '.join(map(repr, choices))}; got {given!r}")


def _check_numbers(
    dual_clip: float | None, clip: str, samples: int, gamma: float | None, critic: nn.Module | None
) -> None:
    if dual_clip is not None and (dual_clip <= 1 or clip == "cispo"):
        raise SpecError(f"dual_clip is a number above 1, for clip='clip'; got {dual_clip} with clip={clip!r}")
    if samples != 1:
        raise SpecError(f"samples_mc_entropy must be 1: the entropy is the actor's own, none is drawn; got {samples}")
    if gamma is not None and critic is None:
        raise SpecError(
            f"gamma={gamma} discounts the returns that a critic is compared with: give a critic_network. Without one, "
            "MCAdvantage(trajectory_return=...) says how the rewards of a dialog are added up."
        )
