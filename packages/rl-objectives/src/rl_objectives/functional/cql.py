"""Conservative Q-learning over continuous actions: the soft maximum of Q, estimated from sampled actions."""

from __future__ import annotations

from torch import Tensor

from rl_core.errors import SpecError

__all__ = ["conservative_gap", "soft_maximum"]


def soft_maximum(action_value: Tensor, log_density: Tensor, temperature: float | Tensor = 1.0, dim: int = -1) -> Tensor:
    r"""The soft maximum of Q over actions drawn from a known density, up to a constant.

    .. math:: T \log \sum_i \exp(Q(s, a_i) / T - \log p(a_i))

    which is ``T log int exp(Q / T) da + T log n``, estimated by importance sampling: each action is divided by the
    density that it was drawn from, so that draws of different densities may stand side by side.

    Args:
        action_value: Q of n actions, the actions along ``dim``.
        log_density: log p of each, same shape.
        temperature: T, above 0.
        dim: where the actions lie.

    Returns:
        The shape less ``dim``.

    Raises:
        SpecError: the shapes differ.

    Kumar et al., 2020, Conservative Q-Learning for Offline Reinforcement Learning, eq. 4 and appendix F, arXiv
    2006.04779.

    >>> import torch
    >>> soft_maximum(torch.zeros(4), torch.zeros(4)).exp()  # four actions of equal value and density 1
    tensor(4.)
    """
    if action_value.shape != log_density.shape:
        raise SpecError(
            f"action values {list(action_value.shape)} and log-densities {list(log_density.shape)} must have one shape"
        )
    return temperature * (action_value / temperature - log_density).logsumexp(dim)


def conservative_gap(maximum: Tensor, stored_value: Tensor, weight: float | Tensor = 1.0) -> Tensor:
    """How far Q's soft maximum lies above Q of the dataset's action, times a weight.

    Args:
        maximum: see :func:`soft_maximum`, any shape.
        stored_value: Q of the stored action, same shape.
        weight: alpha of the paper's eq. 4, at least 0.

    Returns:
        Same shape.

    Raises:
        SpecError: the shapes differ.

    >>> import torch
    >>> conservative_gap(torch.tensor(3.0), torch.tensor(1.0), 5.0)
    tensor(10.)
    """
    if maximum.shape != stored_value.shape:
        raise SpecError(
            f"the soft maximum {list(maximum.shape)} and the stored action's value {list(stored_value.shape)} must "
            "have one shape"
        )
    return weight * (maximum - stored_value)
