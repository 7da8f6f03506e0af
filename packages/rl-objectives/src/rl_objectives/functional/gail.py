"""A discriminator between an expert's steps and the policy's: its loss, and a penalty on its slope."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["discriminator_loss", "slope_penalty"]


def discriminator_loss(expert: Tensor, collected: Tensor, *, from_logits: bool = False) -> Tensor:
    r"""The cross-entropy of telling an expert's step from one of the policy.

    .. math:: -\log D(s_E, a_E) - \log(1 - D(s, a))

    D is the probability that a step is the expert's: the complement of the paper's D.

    Args:
        expert: what the discriminator says of the expert's steps, any shape: D, or its logit.
        collected: what it says of the policy's, same shape.
        from_logits: whether these are logits.

    Returns:
        Same shape.

    Raises:
        SpecError: the shapes differ, or a probability lies outside of [0, 1].

    Ho and Ermon, 2016, Generative Adversarial Imitation Learning, eq. 16 and algorithm 1, arXiv 1606.03476.

    >>> discriminator_loss(torch.tensor(0.5), torch.tensor(0.5)).exp()
    tensor(4.)
    """
    if expert.shape != collected.shape:
        raise SpecError(
            f"the discriminator's outputs for the expert {list(expert.shape)} and for the policy "
            f"{list(collected.shape)} must have one shape"
        )
    if from_logits:
        return F.softplus(-expert) + F.softplus(collected)
    both = torch.stack([expert, 1 - collected])
    if not torch.compiler.is_compiling() and bool(((both < 0) | (both > 1)).any()):
        raise SpecError(
            "a discriminator's output is a probability in [0, 1]; got values outside. End the network with "
            "nn.Sigmoid(), or say from_logits=True."
        )
    # Bounded at -100 as in torch's binary cross-entropy: a certain mistake costs much, not infinitely much.
    log_probability = both.log().clamp_min(-100)
    return -(log_probability[0] + log_probability[1])


def slope_penalty(gradients: list[Tensor], rows: int) -> Tensor:
    r"""How far the norm of a discriminator's gradient is from 1.

    .. math:: (\| \nabla_{s, a} D \|_2 - 1)^2

    Args:
        gradients: of each input, [*B, ...].
        rows: number of dimensions of the batch.

    Returns:
        [*B].

    Gulrajani et al., 2017, Improved Training of Wasserstein GANs, eq. 3, arXiv 1704.00028.

    >>> slope_penalty([torch.tensor([[3.0, 0.0]]), torch.tensor([[4.0]])], 1)
    tensor([16.])
    """
    squares = [gradient.square().flatten(rows).sum(-1) for gradient in gradients]
    total = torch.stack(squares).sum(0)
    # The root's slope at 0 is infinite: a flat discriminator would have NaN gradients.
    return (total.clamp_min(torch.finfo(total.dtype).tiny).sqrt() - 1).square()
