"""The dual of keeping a policy's entropy above a bound, as the online decision transformer does."""

from __future__ import annotations

from torch import Tensor

__all__ = ["entropy_dual"]


def entropy_dual(alpha: Tensor, entropy: Tensor, target_entropy: float | Tensor) -> Tensor:
    r"""What moves the weight of the entropy: down where the policy has more entropy than wanted, up where less.

    .. math:: \lambda (H - \beta)

    Args:
        alpha: lambda, at least 0, a scalar; the only argument that gets a gradient.
        entropy: H, any shape.
        target_entropy: beta, in nats.

    Returns:
        The shape of ``entropy``.

    Zheng et al., 2022, Online Decision Transformer, eq. 5, arXiv 2202.05607.

    >>> import torch
    >>> entropy_dual(torch.tensor(2.0), torch.tensor([1.5]), 1.0)
    tensor([1.])
    """
    return alpha * (entropy.detach() - target_entropy)
