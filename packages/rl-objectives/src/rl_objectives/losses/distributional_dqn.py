"""Categorical DQN (C51): the cross-entropy of a value distribution to the projected distribution of its target."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.losses.keys import quoted
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.distributional import (
    categorical_cross_entropy,
    categorical_projection,
    check_support,
    expected_value,
    pick_action,
)
from rl_objectives.functional.q_learning import action_index, one_step_target
from rl_objectives.losses.q_values import QLoss, mask_rows

__all__ = ["DistributionalDQNLoss"]

_TOLERANCE = 1e-2


@runtime_checkable
class HasSupport(Protocol):
    """A module that knows the atoms of its value distributions, such as ``DistributionalQValueModule``."""

    support: Tensor


class DistributionalDQNLoss(QLoss):
    r"""Q-learning of value distributions on fixed atoms.

    .. math:: L = -\sum_i m_i \log p_i(s, a), \qquad m = \Phi(r + \gamma (1 - m) z, \; p'(s', a^*))

    where the projection onto the atoms is :func:`categorical_projection`, and ``a*`` has the largest expected value.

    Returns ``loss`` and the detached logs ``td_error`` (mean cross-entropy), ``pred_value`` and ``target_value``
    (means of the two distributions). Each row's cross-entropy is written under ``td_error`` as its priority. The batch
    is read as by :class:`DQNLoss`.

    Args:
        value_network: a module with ``in_keys`` that writes ``action_value`` [*B, K, n]: log-probabilities of K atoms
            for each of n actions, e.g. a ``DistributionalQValueActor``.
        support: the K atoms, equally spaced and increasing; those of the network where None.
        double_dqn: choose next actions by the online network (as Rainbow does) instead of the target (as C51 does).
        **options: ``delay_value``, ``gamma``, ``action_space``, ``reduction``, ``use_prioritized_weights``,
            ``priority_type``: see :class:`QLoss`.

    Raises:
        SpecError: an option is not admitted, or the support is unknown.

    Bellemare et al., 2017, A Distributional Perspective on Reinforcement Learning, algorithm 1, arXiv 1707.06887;
    Hessel et al., 2017, Rainbow, section 3, arXiv 1710.02298.
    """

    value_dims: ClassVar[int] = 2
    support: Tensor

    def __init__(
        self, value_network: nn.Module, *, support: Tensor | None = None, double_dqn: bool = True, **options: Any
    ) -> None:
        # Without a target network both choices are one.
        super().__init__(value_network, double_dqn=double_dqn and options.get("delay_value", True), **options)
        if support is None:
            support = _support_of(value_network, type(self).__name__)
        self.register_buffer("support", check_support(support).detach().clone(), persistent=False)

    def losses(self, batch: TensorDictBase, values: Tensor, action: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        log_probs = pick_action(values, action_index(values, action, self.space.name or ""))
        target = mask_rows(self.target(batch, log_probs, mask), mask)
        entropy = categorical_cross_entropy(target, log_probs)
        error = entropy.detach()
        self.report(batch, error, mask)
        pred_value = (log_probs.detach().exp() * self.support).sum(-1)
        return {
            "loss": self.reduce_rows(entropy, self.weights(batch, entropy), mask),
            "td_error": masked_mean(error, mask),
            "pred_value": masked_mean(pred_value, mask),
            "target_value": masked_mean((target * self.support).sum(-1), mask),
        }

    @torch.no_grad()
    def target(self, batch: TensorDictBase, log_probs: Tensor, mask: Tensor | None) -> Tensor:
        """The probabilities that those of taken actions are moved to, [*B, K]."""
        step = self.read_step(batch, log_probs[..., :1])
        following = self.action_values(self.target_name(), batch, "next")
        judge = self.action_values("value_network", batch, "next") if self.double_dqn else following
        best = self.best_next(batch, expected_value(judge, self.support), step, mask)
        probs = pick_action(following, best).exp()
        # After a termination all mass lies on the reward, whatever the network says of that state.
        probs = probs.masked_fill(step.terminated, 1.0 / probs.shape[-1])
        atoms = one_step_target(step.reward, self.support.expand_as(probs), step.terminated, step.discount)
        return categorical_projection(probs, atoms, self.support)

    def check_once(self, values: Tensor, action: Tensor) -> None:
        super().check_once(values, action)
        if values.shape[-2] != self.support.shape[0]:
            raise SpecError(
                f"{type(self).__name__}: {quoted(self.path('action_value'))} {list(values.shape)} must be [*B, K, n] "
                f"for the {self.support.shape[0]} atoms of the support"
            )
        if torch.compiler.is_compiling():
            return
        if bool((values.detach().logsumexp(-2).abs() > _TOLERANCE).any()):
            self._checked = False
            raise SpecError(
                f"{type(self).__name__}: {quoted(self.path('action_value'))} must be log-probabilities over the atoms, "
                "dimension -2. End the network with log_softmax(-2), or use DistributionalQValueActor."
            )


def _support_of(network: nn.Module, owner: str) -> Tensor:
    for module in network.modules():
        if isinstance(module, HasSupport):
            return module.support
    raise SpecError(
        f"{owner}: no part of {type(network).__name__} says what the atoms are. Give support=torch.linspace(v_min, "
        "v_max, K), or use DistributionalQValueActor(..., support=...)."
    )
