"""Twin delayed deterministic policy gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key
from rl_core.losses.keys import quoted
from rl_core.losses.reduction import masked_mean
from rl_core.specs import Bounded, Composite, TensorSpec
from rl_objectives.functional.ensembles import smallest_value
from rl_objectives.functional.td3 import smoothed_action
from rl_objectives.losses.off_policy import OffPolicyLoss, deterministic

__all__ = ["TD3Loss"]

Bounds = tuple[float, float] | tuple[Tensor, Tensor]


class TD3Loss(OffPolicyLoss):
    r"""A deterministic actor, twin critics, and noise on the target's action.

    .. math::
        L_Q = \sum_i d(Q_i(s, a), \; r + \gamma (1 - m) \min_j Q'_j(s', a')), \qquad L_\pi = -Q_1(s, \mu(s))

        a' = \mathrm{clip}(\mu'(s') + \mathrm{clip}(\epsilon, -c, c), low, high), \qquad \epsilon \sim N(0, \sigma)

    The third part of the algorithm, to step the actor and the targets at every second update only, is the script's.
    Returns ``loss_actor`` and ``loss_qvalue`` (add them up) and the detached logs ``pred_value``,
    ``state_action_value_actor``, ``next_state_value``, ``target_value`` and ``td_error``.

    Args:
        actor_network: a module that reads observations and writes the action.
        qvalue_network: a module that reads observations and the action and writes "state_action_value"; or a list of
            different ones.
        action_spec: a Bounded spec of the action, or a Composite that holds it; its bounds are those of a'.
        bounds: ``(low, high)`` instead, numbers or tensors. Exactly one of the two is given.
        num_qvalue_nets: copies of a single qvalue_network, each drawn for itself.
        policy_noise: sigma, in the action's unit; may be assigned later (schedules).
        noise_clip: c, likewise.
        loss_function: see :class:`OffPolicyLoss`.
        delay_actor: take the next action from a target actor, moved by SoftUpdate.
        delay_qvalue: evaluate it by target critics.
        **options: of :class:`OffPolicyLoss`: gamma, separate_losses, reduction, use_prioritized_weights, priority_type.

    Raises:
        SpecError: an option is not admitted.

    Fujimoto et al., 2018, Addressing Function Approximation Error in Actor-Critic Methods, algorithm 1,
    arXiv 1802.09477.
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        action_spec: TensorSpec | None = None,
        bounds: Bounds | None = None,
        num_qvalue_nets: int = 2,
        policy_noise: float = 0.2,
        noise_clip: float = 0.5,
        loss_function: str = "smooth_l1",
        delay_actor: bool = True,
        delay_qvalue: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(loss_function=loss_function, **options)
        if policy_noise < 0 or noise_clip < 0:
            raise SpecError(f"policy_noise and noise_clip are at least 0; got {policy_noise} and {noise_clip}")
        self.add_scalar("policy_noise", policy_noise)
        self.add_scalar("noise_clip", noise_clip)
        low, high = self._bounds(action_spec, bounds)
        self.action_low: Tensor
        self.action_high: Tensor
        self.register_buffer("action_low", low)
        self.register_buffer("action_high", high)
        self.add_actor_and_critics(
            actor_network, qvalue_network, num_qvalue_nets, delay_actor=delay_actor, delay_critics=delay_qvalue
        )

    def default_out_keys(self) -> list[Key]:
        logs = ["pred_value", "state_action_value_actor", "next_state_value", "target_value", "td_error"]
        return ["loss_actor", "loss_qvalue", *logs]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask = self.valid_rows(batch)
        actor, actor_logs = self._actor(batch, mask)
        qvalue, qvalue_logs = self._qvalue(batch, mask)
        return {"loss_actor": actor, "loss_qvalue": qvalue, **actor_logs, **qvalue_logs}

    def actor_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The actor's loss of a batch, and logs."""
        with deterministic(), self.along_time(batch):
            return self._actor(batch, self.valid_rows(batch))

    def qvalue_loss(self, batch: TensorDictBase) -> tuple[Tensor, dict[str, Tensor]]:
        """The critics' loss of a batch, and logs; the priorities are written into the batch."""
        with deterministic(), self.along_time(batch):
            return self._qvalue(batch, self.valid_rows(batch))

    value_loss = qvalue_loss
    """Another name."""

    # ---- the parts

    def _actor(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        value = self.critic_values(batch, self.deterministic_action(batch), hold_out=True, first=1)[0]
        logs = {"state_action_value_actor": masked_mean(value.detach(), mask)}
        return self.weighted(batch, -value.squeeze(-1), mask), logs

    def _qvalue(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            next_action = self._smoothed(self.deterministic_action(batch, "next", target=True))
            next_value = smallest_value(self.critic_values(batch, next_action, "next", target=True))
            target = self.td_target(batch, next_value)
        values = self.critic_values(batch, self.read(batch, "action"))
        rows, error = self.critic_distance(values, target)
        self.report(batch, error, mask)
        logs = {
            "pred_value": masked_mean(values.detach() if mask is None else values.detach().movedim(0, -1), mask),
            "next_state_value": masked_mean(next_value, mask),
            "target_value": masked_mean(target, mask),
            "td_error": masked_mean(error, mask),
        }
        return self.weighted(batch, rows, mask), logs

    def _smoothed(self, action: Tensor) -> Tensor:
        low, high = self.action_low, self.action_high
        if low.ndim and action.shape[-low.ndim :] != low.shape:
            raise LossError(
                f"{type(self).__name__}: the actor's {quoted(self.path('action'))} is {list(action.shape)}, but the "
                f"bounds of an action are {list(low.shape)}"
            )
        noise = torch.randn_like(action)
        if low.ndim or not action.is_cpu or torch.compiler.is_compiling():
            return smoothed_action(action, noise * self.policy_noise, self.noise_clip, low, high)
        # On a CPU, where reading a number costs less than computing with a tensor of one.
        return smoothed_action(action, noise * self.policy_noise, self.noise_clip.item(), low.item(), high.item())

    def _bounds(self, action_spec: TensorSpec | None, bounds: Bounds | None) -> tuple[Tensor, Tensor]:
        owner = type(self).__name__
        if (action_spec is None) == (bounds is None):
            raise SpecError(
                f"{owner} needs the action's bounds, once: action_spec=env.action_spec, or bounds=(low, high)"
            )
        if bounds is not None:
            low, high = (torch.as_tensor(bound, dtype=torch.get_default_dtype()) for bound in bounds)
        else:
            spec, dims = action_spec, 0
            if isinstance(spec, Composite):
                dims = len(spec.shape)
                spec = spec.get(self.path("action"), None)
            if not isinstance(spec, Bounded):
                raise SpecError(f"{owner} needs a Bounded action_spec, or a Composite with one; got {action_spec!r}")
            low, high = (_of_one_row(bound, dims) for bound in (spec.low, spec.high))
        if not bool((low < high).all()):
            raise SpecError(f"{owner}: the action's lower bounds must lie below the upper ones; got {low} and {high}")
        shape = torch.broadcast_shapes(low.shape, high.shape)
        return low.expand(shape).clone(), high.expand(shape).clone()


def _of_one_row(bound: Tensor, batch_dims: int) -> Tensor:
    """The bound of one action: a scalar where all components agree, else without the dimensions of the batch."""
    if bool((bound == bound.flatten()[0]).all()):
        return bound.flatten()[0].clone()
    return bound[(0,) * batch_dims].clone()
