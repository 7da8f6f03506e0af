"""What variational autoencoders minimise: the divergence of a posterior from the prior."""

from __future__ import annotations

from torch import Tensor

__all__ = ["kl_from_standard_normal"]


def kl_from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    r"""The divergence of independent normals from the standard normal.

    .. math:: \frac{1}{2} \sum_j (\mu_j^2 + \sigma_j^2 - 1 - \log \sigma_j^2)

    Args:
        mean: [*B, Z].
        log_variance: log sigma^2, [*B, Z].

    Returns:
        [*B], in nats.

    Kingma and Welling, 2013, Auto-Encoding Variational Bayes, appendix B, arXiv 1312.6114.

    >>> import torch
    >>> kl_from_standard_normal(torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2))
    tensor([0.5000])
    """
    return 0.5 * (mean.square() + log_variance.expm1() - log_variance).sum(-1)
