"""Conservative Q-learning for discrete actions: DQN on recorded data, with unseen actions held down."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key, as_path
from rl_objectives.functional.q_learning import check_action_mask, conservative_penalty, taken_value
from rl_objectives.losses.dqn import DQNLoss
from rl_objectives.losses.q_values import mask_rows

__all__ = ["DiscreteCQLLoss"]


class DiscreteCQLLoss(DQNLoss):
    r"""Q-learning with the penalty of CQL(H).

    .. math:: L = d(Q(s, a), y) + w \left( \log \sum_{a'} \exp Q(s, a') - Q(s, a) \right)

    with the target y of :class:`DQNLoss`. Returns ``loss_qvalue`` and ``loss_cql`` (add them up), and the logs of
    :class:`DQNLoss`. Where the batch has an action mask at the root, the sum is over allowed actions.

    Args:
        value_network: see :class:`DQNLoss`.
        min_q_weight: the weight w of the penalty, may be assigned later (schedules).
        **options: of :class:`DQNLoss`.

    Raises:
        SpecError: an option is not admitted.

    Kumar et al., 2020, Conservative Q-Learning for Offline Reinforcement Learning, eq. 4, arXiv 2006.04779.
    """

    def __init__(self, value_network: nn.Module, *, min_q_weight: float = 1.0, **options: Any) -> None:
        super().__init__(value_network, **options)
        self.add_scalar("min_q_weight", min_q_weight)

    def default_out_keys(self) -> list[Key]:
        return ["loss_qvalue", "loss_cql", "td_error", "pred_value", "target_value"]

    def losses(self, batch: TensorDictBase, values: Tensor, action: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        taken = taken_value(values, action, self.space.name or "")
        weight = self.weights(batch, taken)
        loss, logs = self.value_loss(batch, taken, weight, mask)
        penalty = conservative_penalty(values, taken, self._mask_now(batch, values, mask), self.space.groups)
        return {
            "loss_qvalue": loss,
            "loss_cql": self.reduce_rows(self.min_q_weight * penalty, weight, mask),
            **logs,
        }

    def _mask_now(self, batch: TensorDictBase, values: Tensor, mask: Tensor | None) -> Tensor | None:
        """Which actions were allowed, bool [*B, n], or None."""
        path = as_path(self._paths["action_mask"])
        allowed = batch.get(path[1:] if path[0] == "next" else path, None)
        if allowed is None:
            return None
        needed = mask_rows(values.new_ones(values.shape[:-1]).bool(), mask)
        return check_action_mask(allowed, values, needed, self.space.groups)
