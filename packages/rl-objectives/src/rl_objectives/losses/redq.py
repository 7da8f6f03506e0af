"""Randomised ensembled double Q-learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.ensembles import smallest_of_subset
from rl_objectives.losses.sac import SACLoss

__all__ = ["REDQLoss"]


class REDQLoss(SACLoss):
    r"""Soft actor-critic with many critics, for many updates per step of the environment.

    .. math::
        L_Q = \frac{1}{N} \sum_i d(Q_i(s, a), \;
            r + \gamma (1 - m) [\min_{j \in M} Q'_j(s', a') - \alpha \log \pi(a'|s')])

        L_\pi = \alpha \log \pi(\tilde a|s) - \frac{1}{N} \sum_i Q_i(s, \tilde a)

    with M a random subset of the critics, drawn at each call. Returns what :class:`SACLoss` returns, and the logs
    ``state_action_value_actor``, ``action_log_prob_actor``, ``next.state_value``, ``target_value`` (means).

    Args:
        actor_network: see :class:`SACLoss`.
        qvalue_network: likewise.
        num_qvalue_nets: N.
        sub_sample_len: size of M.
        min_alpha: see :class:`TemperatureLoss`.
        max_alpha: likewise.
        **options: of :class:`SACLoss`.

    Raises:
        SpecError: sub_sample_len is not in 1 .. N.

    Chen et al., 2021, Randomized Ensembled Double Q-Learning: Learning Fast Without a Model, algorithm 1,
    arXiv 2101.05982. The critics' losses are averaged here, where :class:`SACLoss` adds them up.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 10,
        sub_sample_len: int = 2,
        min_alpha: float | None = 0.1,
        max_alpha: float | None = 10.0,
        **options: Any,
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets=num_qvalue_nets,
            min_alpha=min_alpha,
            max_alpha=max_alpha,
            **options,
        )
        count: int = self.qvalue_network.num_copies
        if not 1 <= sub_sample_len <= count:
            raise SpecError(
                f"REDQLoss: sub_sample_len lies in 1 .. {count}, the number of critics; got {sub_sample_len}"
            )
        self.sub_sample_len = sub_sample_len

    def default_out_keys(self) -> list[Key]:
        logs = ["state_action_value_actor", "action_log_prob_actor", "next.state_value", "target_value"]
        return [*super().default_out_keys(), *logs]

    def policy_value(self, values: Tensor) -> Tensor:
        return values.mean(0)

    def pessimistic_value(self, values: Tensor) -> Tensor:
        return smallest_of_subset(values, self.sub_sample_len)

    def critic_distance(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        distance, error = super().critic_distance(values, target)
        return distance / values.shape[0], error

    def actor_logs(self, value: Tensor, log_prob: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        logs = super().actor_logs(value, log_prob, mask)
        logs["state_action_value_actor"] = masked_mean(value, mask)
        logs["action_log_prob_actor"] = masked_mean(log_prob, mask)
        return logs

    def qvalue_logs(self, error: Tensor, next_value: Tensor, target: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        logs = super().qvalue_logs(error, next_value, target, mask)
        logs["next.state_value"] = masked_mean(next_value, mask)
        logs["target_value"] = masked_mean(target, mask)
        return logs
