"""CrossQ: soft actor-critic without target networks, by critics that normalise both steps of a transition together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.evaluation_mode import evaluation_mode
from rl_core.keys import Key
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.functional.soft_value import soft_value
from rl_objectives.losses.critic_ensemble import CriticEnsemble
from rl_objectives.losses.sac import SACLoss
from rl_objectives.losses.temperature import sample_with_log_prob

__all__ = ["CrossQLoss"]


class CrossQLoss(SACLoss):
    r"""Soft actor-critic whose critics see (s, a) and (s', a') in one batch, and stand for their own targets.

    .. math:: [Q_i(s, a), \; Q_i(s', a')] = Q_i([s, s'], [a, a'])

    Batch-normalised critics (``BatchRenorm1d``) thus normalise both by the same moments, which makes target networks
    needless. The values of (s', a') pass no gradient. For the actor's loss the critics are in evaluation mode. A
    policy with such layers draws a' in evaluation mode and a~ in its own; call ``.eval()`` on it before it acts. The
    losses are those of :class:`SACLoss`; ``log_prob`` (mean) is logged beside what that one returns.

    Args:
        actor_network: see :class:`SACLoss`; where it has normalisation layers, in training mode.
        qvalue_network: likewise.
        **options: of :class:`SACLoss`, save those that delay a network.

    Bhatt et al., 2024, CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and
    Simplicity, section 3 and algorithm 1, arXiv 1902.05605.
    """

    def __init__(
        self, actor_network: nn.Module, qvalue_network: nn.Module | Sequence[nn.Module], **options: Any
    ) -> None:
        delayed = sorted(name for name in options if name.startswith("delay_"))
        if delayed:
            raise TypeError(f"{type(self).__name__} has no target networks: it takes no {', '.join(delayed)}")
        super().__init__(actor_network, qvalue_network, delay_qvalue=False, delay_actor=False, **options)

    def default_out_keys(self) -> list[Key]:
        return [*super().default_out_keys(), "log_prob"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        losses = super().compute(batch)
        return {**losses, "log_prob": -losses["entropy"]}

    def _actor(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        critics = self.network(self.critic_name)
        assert isinstance(critics, CriticEnsemble)
        with critics.evaluating():
            return super()._actor(batch, mask)

    def _qvalue(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad(), evaluation_mode(self.network("actor_network")):
            next_action, log_prob = sample_with_log_prob(self.distribution(batch, "next"), type(self).__name__)
        values, next_values = self._joint_values(batch, next_action)
        with torch.no_grad():
            best = smallest_value(next_values)
            next_value = soft_value(best, self.as_value(log_prob, best), self.alpha)
            target = self.td_target(batch, next_value)
        rows, error = self.critic_distance(values, target)
        self.report(batch, error, mask)
        return self.weighted(batch, rows, mask), self.qvalue_logs(error, next_value, target, mask)

    def _joint_values(self, batch: TensorDictBase, next_action: Tensor) -> tuple[Tensor, Tensor]:
        """The values of stored and of next actions, each [N, *B, 1], by one call on twice the rows."""
        critics = self.network(self.critic_name)
        assert isinstance(critics, CriticEnsemble)
        self.refuse_sequences(critics, "its critics see both steps of each row in one batch")
        action = self.read(batch, "action")
        joined = []
        for critic in critics.critics():
            now = self.critic_inputs(critic, batch, action, None)
            then = self.critic_inputs(critic, batch, next_action, "next")
            joined.append([torch.cat(pair) for pair in zip(now, then, strict=True)])
        size = batch.batch_size
        doubled = torch.Size([2 * size[0], *size[1:]])
        values = self.call_critics(critics, joined, doubled)
        first, second = values.split(size[0], 1)
        return first, second.detach()
