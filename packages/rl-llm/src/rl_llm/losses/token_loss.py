"""What losses over the tokens of answers share: reading log-probabilities and masks, and a result with total_loss."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key, as_key, join
from rl_core.losses.module import LossModule
from rl_llm.losses.layout import exact_float, per_token
from rl_llm.losses.masking import after_prompt, check_strategy, last_run
from rl_llm.losses.output import LLMLossOutput
from rl_llm.losses.scoring import TokenScorer, score_tokens

__all__ = ["TokenLoss"]


class TokenLoss(LossModule):
    """A loss over the tokens of answers. Its key map has the token entries of ``losses.grpo_keys.AnswerKeys``.

    Args:
        actor_network: what scores the tokens; None: the batch has the current log-probabilities.
        masking_strategy: "sft", "rlhf" or "generic", see :meth:`answer_mask`.
        reduction: "mean", "sum" or "none".
        device: where to move the loss; None: it stays.
    """

    output_type: ClassVar[type[LLMLossOutput]] = LLMLossOutput

    def __init__(
        self,
        actor_network: nn.Module | None,
        *,
        masking_strategy: str,
        reduction: str,
        device: torch.device | str | None,
    ) -> None:
        super().__init__(reduction=reduction)
        self.masking_strategy = check_strategy(masking_strategy)
        if actor_network is not None:
            self.add_network("actor_network", actor_network)
        if device is not None:
            self.to(device)

    def forward(self, tensordict: TensorDictBase | None = None, **tensors: Tensor) -> Any:
        """The losses of a batch.

        Args:
            tensordict: the batch [*B], dense or ragged.
            **tensors: instead of a batch, one tensor per key, named by joining the key with "_".

        Returns:
            An :class:`LLMLossOutput`; called with keywords, a tuple in the order of out_keys.
        """
        if tensordict is None or tensors:
            return super().forward(tensordict, **tensors)
        return self.output_type(self._losses(tensordict), batch_size=[])

    def token_in_keys(self) -> list[Key]:
        """The entries that every such loss reads: a mask, the current log-probabilities or the actor's inputs."""
        keys = [self._paths[self.mask_name]]
        actor = self._modules.get("actor_network")
        if actor is None:
            return [*keys, self._paths["current_log_prob"]]
        if isinstance(actor, TokenScorer):  # its in_keys may be those of generating
            return [*keys, self._paths["tokens"], self._paths["attention_mask"]]
        return [*keys, *(as_key(key) for key in actor.in_keys)]  # type: ignore[union-attr]

    @property
    def mask_name(self) -> str:
        """The name of the mask that says which tokens are trained, before prompts and rows are looked at."""
        return "attention_mask" if self.masking_strategy == "generic" else "assistant_mask"

    def answer_mask(self, batch: TensorDictBase, prompt_length: Tensor | None) -> Tensor:
        """The tokens of answers, in valid rows, as the masking strategy has them.

        Args:
            batch: dense.
            prompt_length: int64 [*B] where prompts were ragged before; None: they are dense, so that their padding
                cannot be told from tokens, or there are none.

        Returns:
            bool [*B, L].
        """
        answer = self.read(batch, self.mask_name).bool()
        if self.masking_strategy == "sft":
            if prompt_length is not None:
                answer = answer & after_prompt(self.read(batch, "attention_mask").bool(), prompt_length)
            elif batch.get(self._paths["prompt"], None) is not None:
                answer = last_run(answer)
        rows = self.valid_rows(batch)
        return answer if rows is None else answer & rows.unsqueeze(-1)

    def current_log_prob(
        self, batch: TensorDictBase, shape: torch.Size, *, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities under the policy as it is now, [*B, L], and its entropy where that is given."""
        owner, like = type(self).__name__, self._paths[self.mask_name]
        actor = self._modules.get("actor_network")
        if actor is None:
            key, log_prob = self._paths["current_log_prob"], self.read(batch, "current_log_prob")
            entropy = batch.get(self._paths["entropy"], None)
            if entropy is None and with_entropy:
                raise self.missing(batch, "entropy")
        else:
            key = self._paths["actor_log_prob"]
            log_prob, entropy = score_tokens(
                actor,
                batch,
                out_key=key,
                entropy_key=self._paths["entropy"],
                with_entropy=with_entropy,
                owner=owner,
                hidden=[key, *(self._paths[name] for name in self.hidden_names)],
            )
        log_prob = per_token(exact_float(log_prob), shape, owner, key, like)
        if entropy is not None:
            entropy = per_token(exact_float(entropy), shape, owner, self._paths["entropy"], like)
        return log_prob, entropy

    hidden_names: ClassVar[tuple[str, ...]] = ()
    """Names of stored log-probabilities, which the actor does not see."""

    def stored_log_prob(self, batch: TensorDictBase, name: str, shape: torch.Size) -> Tensor:
        """Stored log-probabilities [*B, L], without a gradient; looked for under "next" too."""
        values = batch.get(self._paths[name], None)
        if values is None:
            values = batch.get(join("next", self._paths[name]), None)
        if values is None:
            raise self.missing(batch, name)
        owner, like = type(self).__name__, self._paths[self.mask_name]
        return per_token(exact_float(values.detach()), shape, owner, self._paths[name], like)
