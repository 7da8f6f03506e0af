"""Soft actor-critic for discrete actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key
from rl_core.losses.keys import quoted
from rl_core.losses.reduction import masked_mean
from rl_core.specs import TensorSpec
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.functional.q_learning import taken_value
from rl_objectives.functional.soft_value import expected_soft_value
from rl_objectives.losses.greedy import action_space_of
from rl_objectives.losses.off_policy import OffPolicyKeys, deterministic
from rl_objectives.losses.temperature import TemperatureLoss, check_stochastic

__all__ = ["DiscreteSACKeys", "DiscreteSACLoss"]


@dataclass(frozen=True)
class DiscreteSACKeys(OffPolicyKeys):
    """The entries of :class:`DiscreteSACLoss`."""

    action_value: Key = "action_value"
    """[*B, n]: what the critics write."""


class DiscreteSACLoss(TemperatureLoss):
    r"""Soft actor-critic whose expectations over n discrete actions are exact.

    .. math::
        V(s) = \sum_a \pi(a|s) [\min_i Q_i(s, a) - \alpha \log \pi(a|s)]

        L_Q = \sum_i d(Q_i(s, a), \; r + \gamma (1 - m) V'(s')), \qquad L_\pi = -V(s), \qquad
        L_\alpha = -\log\alpha \left(\sum_a \pi(a|s) \log \pi(a|s) + H\right)

    with V' made of the target critics. Actions of probability 0 (masked ones) count for nothing. Returns
    ``loss_actor``, ``loss_qvalue``, ``loss_alpha`` (add them up) and the detached logs ``alpha``, ``entropy``,
    ``td_error`` (mean of the largest absolute error).

    Args:
        actor_network: a stochastic policy whose distribution has ``probs``, such as OneHotCategorical or Categorical.
        qvalue_network: a module that reads observations and writes "action_value"; or a list of different ones.
        action_space: how actions are stored: "one_hot", "categorical" or a spec; None: as the shape of the first batch
            tells.
        num_actions: n; None: as many as there are values.
        num_qvalue_nets: copies of a single qvalue_network, each drawn for itself.
        loss_function: see :class:`OffPolicyLoss`.
        alpha_init: see :class:`TemperatureLoss`.
        min_alpha: likewise.
        max_alpha: likewise.
        fixed_alpha: likewise.
        target_entropy_weight: w, the share of the largest entropy that "auto" asks for.
        target_entropy: the wanted entropy in nats, or "auto": ``w log(n)``.
        delay_qvalue: evaluate next states by target critics, moved by SoftUpdate.
        skip_done_states: accepted for compatibility: whatever the value after a termination is, it does not count.
        **options: of :class:`OffPolicyLoss`: gamma, separate_losses, reduction, use_prioritized_weights, priority_type.

    Raises:
        SpecError: an option is not admitted.

    Christodoulou, 2019, Soft Actor-Critic for Discrete Action Settings, eq. 10 to 12, arXiv 1910.07207.
    """

    default_keys: ClassVar[Any] = DiscreteSACKeys()
    value_key: ClassVar[str] = "action_value"

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        action_space: str | TensorSpec | None = None,
        num_actions: int | None = None,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy_weight: float = 0.98,
        target_entropy: float | Tensor | str = "auto",
        delay_qvalue: bool = True,
        skip_done_states: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            alpha_init=alpha_init,
            min_alpha=min_alpha,
            max_alpha=max_alpha,
            fixed_alpha=fixed_alpha,
            target_entropy=target_entropy,
            loss_function=loss_function,
            **options,
        )
        owner = type(self).__name__
        check_stochastic(actor_network, owner)
        self.add_actor_and_critics(
            actor_network, qvalue_network, num_qvalue_nets, delay_actor=False, delay_critics=delay_qvalue
        )
        self.action_space = action_space_of(action_space, self.network(self.critic_name), owner).name
        if self.action_space == "mult_one_hot":
            raise SpecError(f"{owner} needs 'one_hot' or 'categorical' actions; got 'mult_one_hot'")
        self.num_actions = num_actions
        self._action_size = num_actions
        self.target_entropy_weight = target_entropy_weight

    def default_out_keys(self) -> list[Key]:
        return ["loss_actor", "loss_qvalue", "loss_alpha", "alpha", "entropy", "td_error"]

    def wanted_entropy(self) -> Tensor | float:
        """The target of the entropy: as given, or the weight times that of the uniform policy."""
        if "target_entropy" in self._buffers or self._action_size is None:
            return super().wanted_entropy()
        return self.target_entropy_weight * math.log(self._action_size)

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        self.keep_alpha_in_bounds()
        mask = self.valid_rows(batch)
        actor, actor_logs = self._actor(batch, mask)
        log_prob = actor_logs.pop("log_prob")
        qvalue, qvalue_logs = self._qvalue(batch, mask)
        return {
            "loss_actor": actor,
            "loss_qvalue": qvalue,
            "loss_alpha": self.weighted(batch, self.alpha_rows(log_prob), mask),
            "alpha": self.alpha,
            **actor_logs,
            **qvalue_logs,
        }

    # ---- for scripts that update one part at a time

    def actor_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss of a batch, and logs; among them ``log_prob``, the mean over actions, for ``alpha_loss``."""
        self.keep_alpha_in_bounds()
        with deterministic(), self.along_time(batch):
            return self._actor(batch, self.valid_rows(batch))

    def qvalue_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critics' loss of a batch, and logs; the priorities are written into the batch."""
        self.keep_alpha_in_bounds()
        with deterministic(), self.along_time(batch):
            return self._qvalue(batch, self.valid_rows(batch))

    # ---- the parts

    def _actor(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        probs = self._probs(batch, None)
        with torch.no_grad():
            value = smallest_value(self.critic_values(batch, None))
        self._check_actions(value, probs)
        rows = -expected_soft_value(value, probs, self.alpha).squeeze(-1)
        with torch.no_grad():
            log_prob = (probs * probs.clamp_min(1e-8).log()).sum(-1)
        return self.weighted(batch, rows, mask), {"entropy": -masked_mean(log_prob, mask), "log_prob": log_prob}

    def _qvalue(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            probs = self._probs(batch, "next")
            value = smallest_value(self.critic_values(batch, None, "next", target=True))
            self._check_actions(value, probs)
            target = self.td_target(batch, expected_soft_value(value, probs, self.alpha))
        values = self.critic_values(batch, None)
        action = self.read(batch, "action")
        space = self.action_space or ("one_hot" if action.shape == values.shape[1:] else "categorical")
        chosen = taken_value(values, action.expand(values.shape[0], *action.shape), space)
        rows, error = self.critic_distance(chosen, target)
        self.report(batch, error, mask)
        return self.weighted(batch, rows, mask), {"td_error": masked_mean(error, mask)}

    def _probs(self, batch: TensorDictBase, under: Key | None) -> Tensor:
        """The policy's probabilities of all actions, [*B, n]."""
        distribution = self.distribution(batch, under)
        probs = getattr(distribution, "probs", None)
        if not isinstance(probs, Tensor):
            raise SpecError(
                f"{type(self).__name__} needs a policy over discrete actions, whose distribution has probs; got "
                f"{type(distribution).__name__}"
            )
        self._action_size = probs.shape[-1]
        return probs

    def _check_actions(self, value: Tensor, probs: Tensor) -> None:
        if value.shape == probs.shape and self.num_actions in (None, probs.shape[-1]):
            return
        raise LossError(
            f"{type(self).__name__}: the critics' {quoted(self.path('action_value'))} {list(value.shape)} and the "
            f"policy's probabilities {list(probs.shape)} must be one number for each of "
            f"{'n' if self.num_actions is None else self.num_actions} actions"
        )
