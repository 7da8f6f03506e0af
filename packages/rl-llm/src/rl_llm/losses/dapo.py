"""GRPO with the clip of decoupled clip and dynamic sampling policy optimisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from rl_llm.losses.grpo import GRPOLoss
from rl_llm.losses.output import DAPOLossOutput, LLMLossOutput

__all__ = ["DAPO"]


class DAPO(GRPOLoss):
    r"""GRPO with a clip that is wider above than below, over all tokens alike.

    .. math:: L = -\frac{1}{\sum_i |o_i|} \sum_i \sum_t \min(r_t A_t, \mathrm{clip}(r_t, 1 - 0.2, 1 + 0.28) A_t)

    Unlike TorchRL's, which clips at 0.2 on both sides unless told otherwise: ``clip_epsilon=0.2`` gives that.
    Dynamic sampling is ``MCAdvantage(drop_dead_groups=True)``.

    Args:
        actor_network: see :class:`GRPOLoss`.
        critic_network: see :class:`GRPOLoss`.
        clip_epsilon: see :class:`GRPOLoss`.
        **options: of :class:`GRPOLoss`.

    Yu et al., 2025, DAPO, eq. 8 and 10, arXiv 2503.14476.
    """

    output_type: ClassVar[type[LLMLossOutput]] = DAPOLossOutput

    def __init__(
        self,
        actor_network: nn.Module | None = None,
        critic_network: nn.Module | None = None,
        *,
        clip_epsilon: float | Sequence[float] = (0.2, 0.28),
        **options: Any,
    ) -> None:
        super().__init__(actor_network, critic_network, clip_epsilon=clip_epsilon, **options)
