"""``GRPOLoss`` on a TensorDict, with given log-probabilities or through a ``TransformersWrapper``."""

from __future__ import annotations

from collections.abc import Callable

from _batch import CLIP_HIGH, CLIP_LOW, VOCABULARY, current_log_probs, make_batch
from tensordict import TensorDict
from torch import Tensor

from rl_llm import GRPOLoss


def build(model: bool, whole: bool = False) -> Callable[[], object]:
    """Forward, with its logs, and backward."""
    batch = make_batch(whole)
    data = TensorDict(
        {
            "tokens": {"full": batch.tokens},
            "masks": {"all_attention_mask": batch.real, "all_assistant_mask": batch.answer},
            "log_probs": {"full": batch.sampled},
            "advantage": batch.advantage,
        },
        batch_size=[len(batch.tokens)],
    )
    if not model:
        leaf = current_log_probs(batch)
        data["current_log_probs"] = TensorDict({"full": leaf}, batch_size=data.batch_size)
        loss = GRPOLoss(clip_epsilon=(CLIP_LOW, CLIP_HIGH))

        def given() -> Tensor:
            leaf.grad = None
            value = loss(data).total_loss
            value.backward()
            return value

        return given

    from rl_llm import TransformersWrapper, char_tokenizer, tiny_llama

    llama = tiny_llama(VOCABULARY)
    policy = TransformersWrapper(llama, tokenizer=char_tokenizer(), input_mode="tokens")
    through = GRPOLoss(policy, clip_epsilon=(CLIP_LOW, CLIP_HIGH))

    def scored() -> Tensor:
        llama.zero_grad()
        value = through(data).total_loss
        value.backward()
        return value

    return scored
