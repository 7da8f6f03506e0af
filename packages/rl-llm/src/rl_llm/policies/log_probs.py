"""Log-probabilities and entropies of chosen tokens, a few tokens' vocabulary at a time.

The logits of a long batch with a large vocabulary are the largest tensor of a training step. Here they exist for
``chunk_size`` tokens at a time, in the forward and again in the backward pass, which computes them anew.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_core.errors import PolicyError, SpecError
from rl_llm.policies.sampling import SamplingDistribution

__all__ = ["from_logits", "token_log_probs"]

CHUNK = 512
"""Tokens whose logits exist at once, by default."""


def token_log_probs(
    hidden: Tensor,
    lm_head_weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    with_entropy: bool = False,
    chunk_size: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    r"""Log-probabilities of tokens from the hidden states that predict them, without the logits of all of them.

    .. math:: \log p(a) = z_a / T - \log \sum_b \exp(z_b / T), \quad z = W h + b, \quad H = - \sum_b p_b \log p_b

    Args:
        hidden: [*N, H]: ``hidden[i]`` predicts ``targets[i]``.
        lm_head_weight: [V, H].
        targets: int64 [*N], in [0, V).
        bias: [V].
        temperature: T > 0.
        top_p: in (0, 1]; with top_k the support of the distribution. A target is always in the support.
        top_k: 0 and -1 are off.
        with_entropy: also return the entropy.
        chunk_size: tokens whose logits exist at once: memory is about 4 * chunk_size * V numbers.

    Returns:
        Log-probabilities [*N] and the entropy [*N] (nats) or None; float32, float64 for float64 inputs. Both can be
        differentiated once, with respect to hidden, lm_head_weight and bias.

    Raises:
        SpecError: shapes that do not fit, or a target outside of the vocabulary.
        PolicyError: temperature 0.

    >>> weight = torch.eye(2)
    >>> log_prob, entropy = token_log_probs(torch.zeros(3, 2), weight, torch.tensor([0, 1, 1]), with_entropy=True)
    >>> log_prob, entropy
    (tensor([-0.6931, -0.6931, -0.6931]), tensor([0.6931, 0.6931, 0.6931]))
    """
    how = _distribution(temperature, top_p, top_k, chunk_size)
    if hidden.ndim == 0 or lm_head_weight.ndim != 2 or hidden.shape[-1] != lm_head_weight.shape[1]:
        raise SpecError(
            f"hidden is [*N, H] and lm_head_weight [V, H] with one H; got {list(hidden.shape)} and "
            f"{list(lm_head_weight.shape)}"
        )
    _check_targets(targets, hidden.shape[:-1], lm_head_weight.shape[0])
    flat = hidden.reshape(-1, hidden.shape[-1])
    out = _FromHidden.apply(flat, lm_head_weight, bias, targets.reshape(-1), how, with_entropy, chunk_size)
    return _shaped(out, targets.shape, with_entropy)


def from_logits(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    with_entropy: bool = False,
    chunk_size: int = CHUNK,
) -> tuple[Tensor, Tensor | None]:
    """The same from logits that exist already; besides them and their gradient only chunks are made.

    Args:
        logits: [*N, V]: ``logits[i]`` predicts ``targets[i]``.
        targets: int64 [*N], in [0, V).
        temperature: T > 0.
        top_p: in (0, 1].
        top_k: 0 and -1 are off.
        with_entropy: also return the entropy.
        chunk_size: tokens that are worked on at once.

    Returns:
        As :func:`token_log_probs`.

    >>> from_logits(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))[0]
    tensor([-0.6931])
    """
    how = _distribution(temperature, top_p, top_k, chunk_size)
    if logits.ndim == 0:
        raise SpecError("logits are [*N, V], got a scalar")
    _check_targets(targets, logits.shape[:-1], logits.shape[-1])
    flat = logits.reshape(-1, logits.shape[-1])
    out = _FromLogits.apply(flat, targets.reshape(-1), how, with_entropy, chunk_size)
    return _shaped(out, targets.shape, with_entropy)


def _distribution(temperature: float, top_p: float, top_k: int, chunk_size: int) -> SamplingDistribution:
    how = SamplingDistribution(temperature=temperature, top_p=top_p, top_k=top_k)
    if how.greedy:
        raise PolicyError(
            "a greedy policy (temperature 0) has no density to score tokens with: sample with temperature > 0 for "
            "training, and keep temperature 0 for evaluation"
        )
    if chunk_size < 1:
        raise ValueError(f"chunk_size is a number of tokens >= 1, got {chunk_size}")
    return how


def _check_targets(targets: Tensor, shape: torch.Size, vocabulary: int) -> None:
    if targets.shape != shape:
        raise SpecError(f"targets must have one token for each position {list(shape)}, got {list(targets.shape)}")
    if targets.dtype != torch.int64:
        raise SpecError(f"targets are token ids of dtype torch.int64, got {targets.dtype}")
    if targets.numel() and not (int(targets.min()) >= 0 and int(targets.max()) < vocabulary):
        raise SpecError(
            f"targets hold token ids from {int(targets.min())} to {int(targets.max())}, the vocabulary has "
            f"{vocabulary}: leave padding out before scoring, or take the tokenizer that belongs to the model"
        )


def _shaped(out: tuple[Tensor, Tensor], shape: torch.Size, with_entropy: bool) -> tuple[Tensor, Tensor | None]:
    return out[0].view(shape), out[1].view(shape) if with_entropy else None


class _FromHidden(torch.autograd.Function):
    """(hidden [N, H], weight [V, H], bias [V]) to (log-prob [N], entropy [N])."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        how: SamplingDistribution,
        with_entropy: bool,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        log_prob = hidden.new_zeros(len(targets), dtype=_wide(hidden, weight))
        entropy = torch.zeros_like(log_prob)
        for rows in _chunks(len(targets), chunk_size):
            logits = _head(hidden[rows], weight, bias)
            log_prob[rows], entropy[rows] = _measure(logits, targets[rows], how, with_entropy)
        ctx.save_for_backward(hidden, weight, bias, targets, entropy)
        ctx.settings = how, with_entropy, chunk_size
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropy = ctx.saved_tensors
        how, with_entropy, chunk_size = ctx.settings
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        wide = _wide(hidden, weight)
        for_hidden = torch.zeros_like(hidden) if needs_hidden else None
        # Summed over chunks in float32: bfloat16 would lose small contributions.
        for_weight = torch.zeros_like(weight, dtype=wide) if needs_weight else None
        for_bias = torch.zeros_like(bias, dtype=wide) if needs_bias else None
        for rows in _chunks(len(targets), chunk_size):
            logits = _head(hidden[rows], weight, bias)
            slope = by_entropy[rows] if with_entropy else None
            grad = _gradient(logits, targets[rows], how, by_log_prob[rows], slope, entropy[rows])
            if for_bias is not None:
                for_bias += grad.sum(0)
            grad = grad.to(torch.promote_types(hidden.dtype, weight.dtype))
            if for_hidden is not None:
                for_hidden[rows] = (grad @ weight.to(grad.dtype)).to(hidden.dtype)
            if for_weight is not None:
                for_weight += grad.T @ hidden[rows].to(grad.dtype)
        return (
            for_hidden,
            None if for_weight is None else for_weight.to(weight.dtype),
            None if for_bias is None else for_bias.to(bias.dtype),
            *(None,) * 4,
        )


class _FromLogits(torch.autograd.Function):
    """Logits [N, V] to (log-prob [N], entropy [N])."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, how: SamplingDistribution, with_entropy: bool, chunk_size: int
    ) -> tuple[Tensor, Tensor]:
        log_prob = logits.new_zeros(len(targets), dtype=_wide(logits))
        entropy = torch.zeros_like(log_prob)
        for rows in _chunks(len(targets), chunk_size):
            chunk = logits[rows].to(log_prob.dtype, copy=True)
            log_prob[rows], entropy[rows] = _measure(chunk, targets[rows], how, with_entropy)
        ctx.save_for_backward(logits, targets, entropy)
        ctx.settings = how, with_entropy, chunk_size
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: Tensor, by_entropy: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, entropy = ctx.saved_tensors
        how, with_entropy, chunk_size = ctx.settings
        for_logits = torch.empty_like(logits)
        for rows in _chunks(len(targets), chunk_size):
            chunk = logits[rows].to(entropy.dtype, copy=True)
            slope = by_entropy[rows] if with_entropy else None
            for_logits[rows] = _gradient(chunk, targets[rows], how, by_log_prob[rows], slope, entropy[rows]).to(
                logits.dtype
            )
        return (for_logits, *(None,) * 4)


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _wide(*tensors: Tensor) -> torch.dtype:
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def _head(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The logits of a chunk, in float32 or wider; the product is computed as the model would, outside of autocast."""
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
    return logits.to(_wide(logits))


def _log_softmax_(logits: Tensor, targets: Tensor, how: SamplingDistribution) -> Tensor:
    """Log-probabilities of the distribution in the place of the logits, which belong to us."""
    if how.temperature != 1:
        logits.div_(how.temperature)
    support = how.support(logits, targets)
    if support is not None:
        logits.masked_fill_(~support, -torch.inf)
    return logits.sub_(logits.logsumexp(dim=-1, keepdim=True))


def _measure(
    logits: Tensor, targets: Tensor, how: SamplingDistribution, with_entropy: bool
) -> tuple[Tensor, Tensor | float]:
    log_p = _log_softmax_(logits, targets, how)
    log_prob = log_p.gather(-1, targets[:, None]).squeeze(-1)
    if not with_entropy:
        return log_prob, 0.0
    p = log_p.exp_()
    return log_prob, -torch.xlogy(p, p).sum(-1)


def _gradient(
    logits: Tensor,
    targets: Tensor,
    how: SamplingDistribution,
    by_log_prob: Tensor,
    by_entropy: Tensor | None,
    entropy: Tensor,
) -> Tensor:
    """The gradient with respect to the logits: ``(g (1[j=a] - p_j) - h p_j (log p_j + H)) / T``."""
    p = _log_softmax_(logits, targets, how).exp_()
    if by_entropy is None:
        grad = p.mul_(-by_log_prob[:, None])
    else:
        grad = torch.xlogy(p, p).mul_(-by_entropy[:, None])
        grad.addcmul_(p, (-by_log_prob - by_entropy * entropy)[:, None].expand_as(p))
    grad.scatter_add_(-1, targets[:, None], by_log_prob[:, None])
    return grad.div_(how.temperature) if how.temperature != 1 else grad
