"""The clipped loss written by hand in torch: every token of a row is scored by one call of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _batch import CLIP_HIGH, CLIP_LOW, VOCABULARY, Batch, current_log_probs, make_batch
from torch import Tensor


def build(model: bool, whole: bool = False, logs: bool = False) -> Callable[[], object]:
    """Forward and backward; ``logs``: with what is usually plotted beside the loss."""
    batch = make_batch(whole)
    if not model:
        leaf = current_log_probs(batch)

        def given() -> Tensor:
            leaf.grad = None
            value = loss(leaf, batch, logs)
            value.backward()
            return value

        return given

    from rl_llm.testing.tiny import tiny_llama

    llama = tiny_llama(VOCABULARY)
    inputs = batch.tokens[:, :-1]
    attention = batch.real[:, :-1].long()
    targets = batch.tokens[:, 1:, None]

    def scored() -> Tensor:
        llama.zero_grad()
        logits = llama(input_ids=inputs, attention_mask=attention, use_cache=False).logits
        log_prob = logits.log_softmax(-1).gather(-1, targets).squeeze(-1)
        value = loss(torch.nn.functional.pad(log_prob, (1, 0)), batch, logs)
        value.backward()
        return value

    return scored


def loss(log_prob: Tensor, batch: Batch, logs: bool) -> Tensor:
    """The mean over the tokens of answers of -min(r A, clip(r) A)."""
    mask, advantage = batch.answer, batch.advantage
    log_ratio = log_prob - batch.sampled
    ratio = log_ratio.exp()
    gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)
    count = mask.sum()
    if logs:
        _logs(log_prob, log_ratio, mask, count)
    return -(gain * mask).sum() / count


@torch.no_grad()
def _logs(log_prob: Tensor, log_ratio: Tensor, mask: Tensor, count: Tensor) -> dict[str, Any]:
    ratio = log_ratio.exp()
    clipped = (ratio < 1 - CLIP_LOW) | (ratio > 1 + CLIP_HIGH)
    kept = ratio * mask
    return {
        "clip_fraction": (clipped & mask).sum() / count,
        "kl_approx": -(log_ratio * mask).sum() / count,
        "ESS": kept.sum() ** 2 / (count * (kept**2).sum()),
        "mean_ratio": kept.sum() / count,
        "max_ratio": kept.max(),
        "entropy": -(log_prob * mask).sum() / count,
        "answer_length": mask.sum(-1).float().mean(),
    }
