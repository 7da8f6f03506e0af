"""How far a predictor is from a fixed random network: the loss of random network distillation, and its bonus."""

from __future__ import annotations

from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["distillation_error"]


def distillation_error(prediction: Tensor, target: Tensor) -> Tensor:
    r"""The mean squared error over the features of an embedding.

    .. math:: \frac{1}{E} \| \hat f(o) - f(o) \|^2

    Args:
        prediction: of the trained network, [*B, E].
        target: of the fixed network, same shape; no gradient flows into it.

    Returns:
        [*B].

    Raises:
        SpecError: the shapes differ.

    Burda et al., 2018, Exploration by Random Network Distillation, section 2.2, arXiv 1810.12894.

    >>> import torch
    >>> distillation_error(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2))
    tensor([5.])
    """
    if prediction.shape != target.shape:
        raise SpecError(
            f"the predictor's output {list(prediction.shape)} and the target's {list(target.shape)} must have one shape"
        )
    return (prediction - target.detach()).square().mean(-1)
