"""TD3 with behavioural cloning, for offline data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key
from rl_core.losses.reduction import masked_mean, masked_rows
from rl_objectives.functional.td3 import cloning_weight
from rl_objectives.losses.td3 import TD3Loss
from rl_objectives.shapes import check_same_shape

__all__ = ["TD3BCLoss"]


class TD3BCLoss(TD3Loss):
    r"""TD3 whose actor stays near the actions of the data.

    .. math:: L_\pi = -\lambda Q_1(s, \mu(s)) + \mathrm{mean}_i (\mu(s) - a)_i^2, \qquad
        \lambda = \frac{\alpha}{\mathrm{mean} |Q_1(s, \mu(s))|}

    Returns what :class:`TD3Loss` returns, and the logs ``bc_loss`` and ``lmbd``.

    Args:
        actor_network: see :class:`TD3Loss`.
        qvalue_network: likewise.
        alpha: weight of the values beside the cloning, at least 0; may be assigned later (schedules).
        **options: of :class:`TD3Loss`.

    Fujimoto and Gu, 2021, A Minimalist Approach to Offline Reinforcement Learning, eq. 3 to 5, arXiv 2106.06860. As in
    the authors' program lambda is made of the values of the actor's own actions.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        alpha: float = 2.5,
        **options: Any,
    ) -> None:
        super().__init__(actor_network, qvalue_network, **options)
        self.add_scalar("alpha", alpha)

    def default_out_keys(self) -> list[Key]:
        return [*super().default_out_keys(), "bc_loss", "lmbd"]

    def _actor(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        action, stored, key = self.deterministic_action(batch), self.read(batch, "action"), self.path("action")
        check_same_shape(type(self).__name__, (key, action), (key, stored))
        value = self.critic_values(batch, action, hold_out=True, first=1)[0]
        weight = cloning_weight(masked_rows(value, mask), self.alpha)
        cloning = (action - stored).square().mean(-1)
        logs = {
            "state_action_value_actor": masked_mean(value.detach(), mask),
            "bc_loss": masked_mean(cloning.detach(), mask),
            "lmbd": weight,
        }
        return self.weighted(batch, cloning - weight * value.squeeze(-1), mask), logs
