"""The distribution that tokens are drawn from: temperature, top-k and top-p, and its log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["SamplingDistribution", "behaviour_log_probs"]


@dataclass(frozen=True, kw_only=True)
class SamplingDistribution:
    """How a token's distribution is made from logits: temperature first, then top-k, then top-p.

    One object describes both sides of an importance ratio: the policy that samples and the loss that scores.

    Raises:
        ValueError: a number outside of its range, with the range.

    >>> SamplingDistribution(top_k=-1) == SamplingDistribution(top_k=0) == SamplingDistribution()
    True
    """

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the largest logit (greedy)."""
    top_p: float = 1.0
    """Only the most probable tokens count whose probabilities sum to this share, in (0, 1]; 1 is off."""
    top_k: int = 0
    """Only the k largest logits count; 0 and -1 are off."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.temperature == float("inf"):
            raise ValueError(f"temperature is a finite number >= 0 (0: greedy), got {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is in (0, 1], 1 being off, got {self.top_p!r}")
        if self.top_k < -1 or int(self.top_k) != self.top_k:
            raise ValueError(f"top_k is a whole number >= 1, or 0 or -1 for off, got {self.top_k!r}")
        object.__setattr__(self, "top_k", max(int(self.top_k), 0))

    @property
    def greedy(self) -> bool:
        """Whether it always takes the largest logit."""
        return self.temperature == 0

    @property
    def truncated(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_p < 1 or self.top_k > 0

    def support(self, logits: Tensor, targets: Tensor | None = None) -> Tensor | None:
        """Which tokens can be drawn.

        Args:
            logits: [*N, V], divided by the temperature already.
            targets: int64 [*N]: tokens that count whatever the truncation says. A token that was drawn once stays
                finite in the loss when an update moved it below the cut.

        Returns:
            bool [*N, V], or None where nothing is cut off. Equal logits at the top-k cut are all kept.
        """
        if not self.truncated:
            return None
        kept = torch.ones_like(logits, dtype=torch.bool)
        if 0 < self.top_k < logits.shape[-1]:
            smallest = logits.topk(self.top_k, dim=-1).values[..., -1:]
            kept = logits >= smallest
        if self.top_p < 1:
            cut = logits.masked_fill(~kept, -torch.inf)
            ordered, index = cut.sort(dim=-1)
            # From the least probable upwards, the most probable token always stays: as the engines do it.
            dropped = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - self.top_p
            dropped[..., -1] = False
            kept = kept & ~dropped.scatter(-1, index, dropped)
        return kept if targets is None else kept.scatter(-1, targets[..., None], True)


def behaviour_log_probs(logits: Tensor, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    r"""Log-probabilities of the distribution that is actually sampled from.

    .. math:: \log \mu(a) = z_a / T - \log \sum_{b \in S} \exp(z_b / T)

    for a in S, the tokens that top-k, then top-p leave, and minus infinity for others.

    Args:
        logits: [*N, V].
        temperature: T >= 0; 0 puts everything on the largest logit.
        top_p: in (0, 1].
        top_k: 0 and -1 are off.

    Returns:
        [*N, V], float32 or wider.

    Holtzman et al., 2020, The Curious Case of Neural Text Degeneration, section 3.1, arXiv 1904.09751 (top-p).

    >>> behaviour_log_probs(torch.tensor([1.0, 1.0, 0.0]), top_k=2).exp()
    tensor([0.5000, 0.5000, 0.0000])
    >>> behaviour_log_probs(torch.tensor([1.0, 2.0]), temperature=0)
    tensor([-inf, 0.])
    """
    how = SamplingDistribution(temperature=temperature, top_p=top_p, top_k=top_k)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if how.greedy:
        largest = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter(-1, largest, 0.0)
    tempered = logits / how.temperature
    support = how.support(tempered)
    if support is not None:
        tempered = tempered.masked_fill(~support, -torch.inf)
    return tempered.log_softmax(dim=-1)
