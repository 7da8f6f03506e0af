"""VDNMixer: the sum of agents' values."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_marl.mixers.base import Mixer

__all__ = ["VDNMixer"]


class VDNMixer(Mixer):
    """The sum of the values of the agents that act.

    Args:
        n_agents: agents of the group.
        device: accepted for symmetry with other mixers; there are no parameters.

    Sunehag et al., 2017, Value-Decomposition Networks For Cooperative Multi-Agent Learning, eq. 3, arXiv 1706.05296.

    >>> mixer, values = VDNMixer(3), torch.tensor([[[1.0], [2.0], [4.0]]])
    >>> mixer(values), mixer(values, mask=torch.tensor([[True, False, True]]))
    (tensor([[7.]]), tensor([[5.]]))
    """

    def __init__(self, n_agents: int, device: torch.device | str | None = None) -> None:
        super().__init__(n_agents)

    def mix(self, values: Tensor, state: Tensor | None) -> Tensor:
        return values.sum(-1, keepdim=True)

    def extra_repr(self) -> str:
        return f"n_agents={self.n_agents}"
