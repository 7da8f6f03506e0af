"""Noise for the training of diffusion models, per row."""

from __future__ import annotations

from torch import Tensor

__all__ = ["noised"]


def noised(clean: Tensor, noise: Tensor, alpha_bar: Tensor) -> Tensor:
    r"""What a clean action becomes after some steps of noise.

    .. math:: \sqrt{\bar\alpha} \, x + \sqrt{1 - \bar\alpha} \, \epsilon

    Args:
        clean: x, [*B, ...].
        noise: epsilon, same shape.
        alpha_bar: the share of the variance that is left, [*B], in [0, 1].

    Returns:
        Same shape.

    Ho et al., 2020, Denoising Diffusion Probabilistic Models, eq. 4, arXiv 2006.11239.

    >>> import torch
    >>> noised(torch.tensor([[1.0]]), torch.tensor([[2.0]]), torch.tensor([0.36])).squeeze().item()
    2.2
    """
    share = alpha_bar.reshape(alpha_bar.shape + (1,) * (clean.ndim - alpha_bar.ndim))
    return share.sqrt() * clean + (1 - share).sqrt() * noise
