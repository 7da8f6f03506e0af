"""Deep Q-learning: the squared temporal-difference error of the values of taken actions."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import ValueEstimator
from rl_core.losses.keys import quoted
from rl_core.losses.reduction import masked_mean
from rl_objectives.estimators.gae import GAE
from rl_objectives.estimators.td import TD0Estimator
from rl_objectives.functional.distance import check_distance, distance_loss
from rl_objectives.functional.q_learning import greedy_value, one_step_target, taken_value
from rl_objectives.losses.q_values import QLoss, mask_rows

__all__ = ["DQNLoss"]


class DQNLoss(QLoss):
    r"""Q-learning with a target network.

    .. math:: L = d\left(Q(s, a), \; r + \gamma (1 - m) \max_{a'} Q'(s', a')\right)

    With ``double_dqn`` the next action is the online network's best, evaluated by the target network.

    Returns ``loss`` and the detached logs ``td_error`` (mean absolute error), ``pred_value`` and ``target_value``.
    Each row's ``|Q - y|`` is written into the batch under ``td_error`` as its priority.

    The batch holds the network's inputs, now and under "next", ``action`` and ``("next", ["reward", "done",
    "terminated"])``. If present, it is also read for: ``gamma`` [*B, 1], the discount of each row as n-step data has it
    (or ``steps_to_next_obs``); ``("next", "action_mask")``; ``priority_weight``; ``("collector", "mask")``.

    Args:
        value_network: a module with ``in_keys`` that writes ``action_value`` [*B, n], e.g. a ``QValueActor``.
        loss_function: "l2", "l1" or "smooth_l1".
        **options: ``delay_value``, ``double_dqn``, ``gamma``, ``action_space``, ``reduction``,
            ``use_prioritized_weights``, ``priority_type``: see :class:`QLoss`.

    Raises:
        SpecError: an option is not admitted.

    Mnih et al., 2013, Playing Atari with Deep Reinforcement Learning, eq. 2, arXiv 1312.5602; van Hasselt et al., 2015,
    Deep Reinforcement Learning with Double Q-learning, eq. 4, arXiv 1509.06461.

    >>> from tensordict import TensorDict
    >>> from tensordict.nn import TensorDictModule
    >>> network = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["action_value"])
    >>> loss = DQNLoss(network, gamma=0.9, double_dqn=True)
    >>> ends = {name: torch.zeros(4, 1, dtype=torch.bool) for name in ("done", "terminated")}
    >>> step = {"observation": torch.randn(4, 3), "reward": torch.ones(4, 1), **ends}
    >>> action = torch.tensor([0, 1, 1, 0])
    >>> batch = TensorDict({"observation": torch.randn(4, 3), "action": action, "next": step}, batch_size=[4])
    >>> loss(batch)["loss"].backward()
    >>> batch["td_error"].shape
    torch.Size([4, 1])
    """

    def __init__(self, value_network: nn.Module, *, loss_function: str = "l2", **options: Any) -> None:
        super().__init__(value_network, **options)
        self.loss_function = check_distance(loss_function)

    def check_estimator(self, estimator: ValueEstimator) -> None:
        """Raise SpecError for estimators of a policy's value: GAE and those that ask for an actor."""
        if isinstance(estimator, GAE) or estimator.needs_actor:
            kind = type(estimator).__name__
            raise SpecError(f"{type(self).__name__} has no state value for {kind}. Use TD0, TD1 or TDLambda.")

    def losses(self, batch: TensorDictBase, values: Tensor, action: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        taken = taken_value(values, action, self.space.name or "")
        loss, logs = self.value_loss(batch, taken, self.weights(batch, taken), mask)
        return {"loss": loss, **logs}

    def value_loss(
        self, batch: TensorDictBase, taken: Tensor, weight: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance of the values of taken actions [*B, 1] to their targets, reduced; and logs."""
        with torch.no_grad():
            target = mask_rows(self.target(batch, taken, mask), mask)
        value = taken.detach()
        error = (value - target).abs_()
        self.report(batch, error, mask)
        logs = {
            "td_error": masked_mean(error, mask),
            "pred_value": masked_mean(value, mask),
            "target_value": masked_mean(target, mask),
        }
        if weight is None and mask is None and self.reduction != "none":
            return distance_loss(taken, target, self.loss_function, reduction=self.reduction), logs
        return self.reduce_rows(distance_loss(taken, target, self.loss_function), weight, mask), logs

    def target(self, batch: TensorDictBase, taken: Tensor, mask: Tensor | None) -> Tensor:
        """What the values of taken actions are moved to, [*B, 1]; called without gradient."""
        step = self.read_step(batch, taken)
        next_value = self.action_values(self.target_name(), batch, "next")
        judge = self.action_values("value_network", batch, "next") if self.double_dqn else None
        allowed = self.next_mask(batch, next_value, step, mask)
        best = greedy_value(next_value, chosen_by=judge, action_mask=allowed, groups=self.space.groups)
        if allowed is not None:
            best = best.masked_fill(best.isneginf(), 0)  # where nothing is allowed, nothing counts either
        estimator = self.value_estimator
        if type(estimator) is TD0Estimator and not estimator.average_rewards:
            return one_step_target(step.reward, best, step.terminated, step.discount)
        if batch.get(self._paths["discount"], None) is not None and not isinstance(estimator, TD0Estimator):
            raise SpecError(
                f"{type(self).__name__}: the rows are n-step transitions, each with its discount under "
                f"{quoted(self._paths['discount'])}; {type(estimator).__name__} would chain their rewards twice. "
                "Use TD0."
            )
        return estimator.value_estimate(batch, next_value=best)
