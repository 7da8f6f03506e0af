"""Categorical distributions whose neighbouring categories are alike, for discretised continuous actions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rl_modules.distributions.categorical import Categorical
from rl_modules.distributions.one_hot import OneHotCategorical

__all__ = ["OneHotOrdinal", "Ordinal", "ordinal_logits"]


class Ordinal(Categorical):
    r"""Categorical distribution over ordered categories.

    .. math:: logit_i = \sum_{j \le i} \log \sigma(s_j) + \sum_{j > i} \log (1 - \sigma(s_j))

    (Tang, Agrawal 2020, "Discretizing Continuous Action Space for On-Policy Optimization", arXiv 1901.10500, section
    4.2.)

    Args:
        scores: ``[*B, n]``.

    >>> import torch
    >>> Ordinal(torch.tensor([9.0, 9.0, -9.0, -9.0])).mode
    tensor(1)
    """

    def __init__(self, scores: Tensor) -> None:
        super().__init__(logits=ordinal_logits(scores))


class OneHotOrdinal(OneHotCategorical):
    """One-hot rows over ordered categories; see :class:`Ordinal`.

    Args:
        scores: ``[*B, n]``.

    >>> import torch
    >>> OneHotOrdinal(torch.tensor([9.0, 9.0, -9.0, -9.0])).mode
    tensor([0, 1, 0, 0])
    """

    def __init__(self, scores: Tensor) -> None:
        super().__init__(logits=ordinal_logits(scores))


def ordinal_logits(scores: Tensor) -> Tensor:
    """Logits ``[*B, n]`` of ordered categories.

    >>> import torch
    >>> ordinal_logits(torch.zeros(2)).exp()
    tensor([0.2500, 0.2500])
    """
    yes, no = F.logsigmoid(scores), F.logsigmoid(-scores)
    below = no.cumsum(-1)
    return yes.cumsum(-1) + (below[..., -1:] - below)
