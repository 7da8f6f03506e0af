"""What world models are trained with, on tensors: divergences between latents, free bits, weights of imagined steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_core.errors import LossError, SpecError

__all__ = [
    "categorical_kl",
    "check_unimix",
    "gaussian_kl",
    "imagination_weights",
    "mixed_log_probs",
    "separate_kl",
]


def gaussian_kl(mean: Tensor, std: Tensor, prior_mean: Tensor, prior_std: Tensor) -> Tensor:
    r"""``KL(N(mean, std) || N(prior_mean, prior_std))`` of each component.

    .. math:: \log\frac{\sigma_p}{\sigma} + \frac{\sigma^2 + (\mu - \mu_p)^2}{2 \sigma_p^2} - \frac12

    Args:
        mean: [*B, S], of the posterior in the loss of a world model.
        std: [*B, S], positive.
        prior_mean: [*B, S].
        prior_std: [*B, S], positive.

    Returns:
        [*B, S].

    Raises:
        LossError: the shapes differ.

    >>> gaussian_kl(torch.ones(1), torch.ones(1), torch.zeros(1), torch.ones(1))
    tensor([0.5000])
    """
    if not mean.shape == std.shape == prior_mean.shape == prior_std.shape:
        shapes = [list(tensor.shape) for tensor in (mean, std, prior_mean, prior_std)]
        raise LossError(f"posterior and prior must have one shape [*B, S]; means and scales have {shapes}")
    ratio = std / prior_std
    distance = (mean - prior_mean) / prior_std
    return 0.5 * (ratio.square() + distance.square() - 1) - ratio.log()


def categorical_kl(logits: Tensor, prior_logits: Tensor) -> Tensor:
    """``KL(Cat(logits) || Cat(prior_logits))``, summed over the variables of a latent.

    Args:
        logits: [*B, K, C]: K variables of C classes.
        prior_logits: [*B, K, C].

    Returns:
        [*B].

    Raises:
        LossError: the shapes differ, or there are fewer than two dimensions.
    """
    if logits.shape != prior_logits.shape or logits.ndim < 2:
        raise LossError(
            f"posterior {list(logits.shape)} and prior {list(prior_logits.shape)} must have one shape [*B, K, C]"
        )
    log_probs = logits.log_softmax(-1)
    return (log_probs.exp() * (log_probs - prior_logits.log_softmax(-1))).sum((-2, -1))


def separate_kl(logits: Tensor, prior_logits: Tensor) -> tuple[Tensor, Tensor]:
    r"""The divergence twice: once for the prior alone, once for the posterior alone.

    .. math:: L_{dyn} = KL(sg(q) || p), \qquad L_{rep} = KL(q || sg(p))

    Args:
        logits: [*B, K, C], of the posterior q.
        prior_logits: [*B, K, C], of the prior p.

    Returns:
        The dynamics and the representation loss, both [*B].

    Hafner et al., 2023, Mastering Diverse Domains through World Models, eq. 5, arXiv 2301.04104.
    """
    return categorical_kl(logits.detach(), prior_logits), categorical_kl(logits, prior_logits.detach())


def mixed_log_probs(logits: Tensor, unimix: float) -> Tensor:
    """Log-probabilities of a mixture with the uniform distribution, so that none is ever far below ``unimix / C``.

    Args:
        logits: [*B, C].
        unimix: the uniform share, in [0, 1].

    Returns:
        [*B, C]; with share 0 the logits themselves.

    Hafner et al., 2023, page 5, arXiv 2301.04104.

    >>> mixed_log_probs(torch.tensor([100.0, 0.0]), 0.02).exp()
    tensor([0.9900, 0.0100])
    """
    if not unimix:
        return logits
    floor = math.log(unimix / logits.shape[-1])
    kept = logits.log_softmax(-1) + (math.log1p(-unimix) if unimix < 1 else -math.inf)
    return torch.logaddexp(kept, torch.full_like(kept, floor))


def check_unimix(unimix: float) -> float:
    """The share itself.

    Raises:
        SpecError: it is outside [0, 1].
    """
    if not 0 <= unimix <= 1:
        raise SpecError(f"unimix is a share in [0, 1]; got {unimix}")
    return float(unimix)


def imagination_weights(discount: Tensor, *, time_dim: int = -2) -> Tensor:
    r"""How much each imagined step counts: the product of the discounts before it, 1 for the first.

    .. math:: w_t = \prod_{k < t} \gamma c_k

    Args:
        discount: [*B, T, 1]: discount of each step, times the probability that the episode goes on after it.
        time_dim: index of T.

    Returns:
        [*B, T, 1], without a gradient.

    Hafner et al., 2020, Dream to Control, section 3 and appendix A, arXiv 1912.01603.

    >>> imagination_weights(torch.tensor([[0.5], [0.5], [0.0], [0.5]])).squeeze(-1)
    tensor([1.0000, 0.5000, 0.2500, 0.0000])
    """
    discount = discount.detach()
    steps = discount.shape[time_dim]
    first = torch.ones_like(discount.narrow(time_dim, 0, 1))
    return torch.cat([first, discount.narrow(time_dim, 0, steps - 1)], time_dim).cumprod(time_dim)
