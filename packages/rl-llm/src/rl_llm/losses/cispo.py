"""GRPO with a clipped importance weight that carries no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from rl_llm.losses.grpo import GRPOLoss
from rl_llm.losses.output import CISPOLossOutput, LLMLossOutput

__all__ = ["CISPOLoss"]


class CISPOLoss(GRPOLoss):
    r"""GRPO whose clipped weight carries no gradient: no token loses its own.

    .. math:: L = -\frac{1}{N} \sum_t \mathrm{sg}(\mathrm{clip}(r_t, 1 - \epsilon, 1 + \epsilon)) A_t \log\pi(o_t)

    Unlike TorchRL's, whose gradient is 0 where the ratio is clipped. The paper bounds the weight from above only:
    ``clip_epsilon=(1.0, high)``.

    Args:
        actor_network: see :class:`GRPOLoss`.
        critic_network: see :class:`GRPOLoss`.
        clip_epsilon: see :class:`GRPOLoss`.
        **options: of :class:`GRPOLoss`, but for ``clip``.

    MiniMax, 2025, MiniMax-M1, eq. 4 and 5, arXiv 2506.13585.
    """

    output_type: ClassVar[type[LLMLossOutput]] = CISPOLossOutput

    def __init__(
        self,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
        *,
        clip_epsilon: float | Sequence[float] = 0.2,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, critic_network, clip_epsilon=clip_epsilon, clip="cispo", **options)
