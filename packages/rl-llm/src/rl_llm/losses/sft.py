"""Supervised fine-tuning on the tokens of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.keys import quoted
from rl_core.losses.reduction import masked_mean, reduce
from rl_llm.functional.aggregation import masked_token_mean
from rl_llm.functional.kl import kl_tokens
from rl_llm.losses.grpo_keys import AnswerKeys
from rl_llm.losses.output import LLMLossOutput, SFTLossOutput
from rl_llm.losses.padding import dense_batch, row_lengths
from rl_llm.losses.token_loss import TokenLoss

__all__ = ["SFTKeys", "SFTLoss"]

_LOSSES = ("sft", "minor_sft")


@dataclass(frozen=True)
class SFTKeys(AnswerKeys):
    """The entries of :class:`~rl_llm.SFTLoss`."""

    history: Key = ("history", "full")
    """Read where the batch has no tokens and the loss has a tokenizer: the chats."""


@runtime_checkable
class RendersChats(Protocol):
    """A batch of chats that can be turned into tokens."""

    def apply_chat_template(self, **options: Any) -> Any:
        """A TensorDict [B] (or a lazy stack) with input_ids, attention_mask and assistant_masks."""
        ...


class SFTLoss(TokenLoss):
    r"""The negative log-likelihood of answers.

    ::

        sft         -mean over t of log pi(o_t)
        minor_sft   -log sigmoid(beta * (mean over t of log pi(o_t) - log pi_ref(o_t)))

    Returns ``loss_sft`` and, where asked for, ``loss_kl_to_ref``, with the detached logs ``kl_to_ref``,
    ``answer_length`` and ``token_loss``, the mean of -log pi over all tokens. ``loss(batch).total_loss`` is to be
    minimised. Answers without tokens do not count.

    Args:
        actor_network: as for :class:`~rl_llm.GRPOLoss`.
        tokenizer: turns chats (``history``) into tokens where the batch has none, with the masks that its chat template
            gives.
        tokenizer_kwargs: for ``History.apply_chat_template``, e.g. ``chat_template_name``.
        reduction: "mean", "sum" or "none", over answers.
        normalize_by_seq_length: means over the tokens of an answer; False: sums.
        kl_to_ref_coeff: weight of the k3 estimate of the KL to the reference, averaged over response tokens; None: no
            such term.
        loss_function: "sft" or "minor_sft", which needs the reference's log-probabilities.
        beta: of "minor_sft". The paper multiplies the loss by 2 / beta, so that its gradient is that of "sft" where
            the policy is the reference; here, as in TorchRL, it is beta / 2 of that.
        masking_strategy: which tokens are trained, as for :class:`~rl_llm.GRPOLoss`.
        device: where to move the loss.

    Raises:
        SpecError: an option is not admitted.

    minor_sft: Xie et al., 2024, Minor SFT Loss for LLM Fine-Tune, arXiv 2408.10642.
    """

    default_keys: ClassVar[Any] = SFTKeys()
    output_type: ClassVar[type[LLMLossOutput]] = SFTLossOutput

    def __init__(
        self,
        actor_network: nn.Module | None = None,
        tokenizer: Any = None,
        tokenizer_kwargs: Mapping[str, Any] | None = None,
        *,
        reduction: str = "mean",
        normalize_by_seq_length: bool = True,
        kl_to_ref_coeff: float | None = None,
        loss_function: str = "sft",
        beta: float = 0.1,
        masking_strategy: str = "rlhf",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(actor_network, masking_strategy=masking_strategy, reduction=reduction, device=None)
        if loss_function not in _LOSSES:
            raise SpecError(f"loss_function is one of {', '.join(map(repr, _LOSSES))}; got {loss_function!r}")
        self.tokenizer, self.tokenizer_kwargs = tokenizer, dict(tokenizer_kwargs or {})
        self.normalize_by_seq_length = normalize_by_seq_length
        self.loss_function, self.beta = loss_function, beta
        self.has_kl = kl_to_ref_coeff is not None
        if kl_to_ref_coeff is not None:
            self.add_scalar("kl_to_ref_coeff", kl_to_ref_coeff)
        if device is not None:
            self.to(device)

    def default_in_keys(self) -> list[Key]:
        needs_reference = self.has_kl or self.loss_function == "minor_sft"
        return [*self.token_in_keys(), *([self.path("ref_log_prob")] if needs_reference else [])]

    def default_out_keys(self) -> list[Key]:
        return ["loss_sft", *(["loss_kl_to_ref", "kl_to_ref"] if self.has_kl else []), "token_loss", "answer_length"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        batch = self._tokenized(batch)
        prompt_length = row_lengths(batch, self._paths["prompt"])
        batch = dense_batch(batch)
        mask = self.answer_mask(batch, prompt_length)
        answered = mask.any(-1)
        log_prob, _ = self.current_log_prob(batch, mask.shape)
        kept = torch.where(mask, log_prob, 0.0)
        if self.loss_function == "minor_sft":
            ref = self.stored_log_prob(batch, "ref_log_prob", mask.shape)
            advance = self._per_answer(torch.where(mask, log_prob - ref, 0.0), mask)
            rows = -F.logsigmoid(self.beta * advance)
        else:
            rows = -self._per_answer(kept, mask)
        result = {"loss_sft": reduce(rows, self.reduction, answered)}
        if self.has_kl:
            ref = self.stored_log_prob(batch, "ref_log_prob", mask.shape)
            kl = kl_tokens(log_prob, ref, mask)
            result["loss_kl_to_ref"] = reduce(
                self.kl_to_ref_coeff * _mean_per_answer(kl, mask), self.reduction, answered
            )
            result["kl_to_ref"] = masked_token_mean(kl.detach(), mask)
        result["token_loss"] = masked_token_mean(-kept.detach(), mask)
        result["answer_length"] = masked_mean(mask.sum(-1).to(kept.dtype), answered)
        return result

    def _per_answer(self, values: Tensor, mask: Tensor) -> Tensor:
        """Token values, 0 outside of the mask, as one per answer [*B]."""
        return _mean_per_answer(values, mask) if self.normalize_by_seq_length else values.sum(-1)

    def _tokenized(self, batch: TensorDictBase) -> TensorDictBase:
        """The batch with tokens and masks, from its chats where it has none."""
        if self.tokenizer is None or self._paths[self.mask_name] in batch.keys(include_nested=True):
            return batch
        key = self._paths["history"]
        chats = batch.get(key, None)
        if not isinstance(chats, RendersChats):
            got = "nothing" if chats is None else type(chats).__name__
            raise SpecError(
                f"{type(self).__name__} found neither {quoted(self._paths[self.mask_name])} nor chats with "
                f"apply_chat_template under {quoted(key)} (there is {got}). Write tokens and masks, "
                "or keep the History."
            )
        options = {"add_generation_prompt": False, **self.tokenizer_kwargs}
        rendered = chats.apply_chat_template(
            tokenizer=self.tokenizer,
            tokenize=True,
            return_tensors="pt",
            return_dict=True,
            return_assistant_tokens_mask=True,
            **options,
        )
        rendered = dense_batch(rendered)
        batch = batch.copy()
        names = {"tokens": "input_ids", "attention_mask": "attention_mask", "assistant_mask": "assistant_masks"}
        for name, given in names.items():
            value = rendered.get(given)
            batch.set(self._paths[name], value if name == "tokens" else value.bool())
        return batch


def _mean_per_answer(values: Tensor, mask: Tensor) -> Tensor:
    return values.sum(-1) / mask.sum(-1).clamp_min(1)
