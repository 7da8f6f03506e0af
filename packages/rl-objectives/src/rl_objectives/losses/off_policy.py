"""What the off-policy actor-critic losses share: their entries, critics that are held out, targets and priorities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.estimators import ValueEstimator
from rl_core.exploration import ExplorationType, set_exploration_type
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import missing_key, quoted
from rl_core.losses.networks import distribution_on_tensors, read_inputs
from rl_core.policy_state import reads_sequences
from rl_objectives.estimators.gae import GAE
from rl_objectives.estimators.td import TD0Estimator
from rl_objectives.estimators.trajectories import raised_discount
from rl_objectives.functional.distance import check_distance, distance_loss
from rl_objectives.functional.q_learning import one_step_target
from rl_objectives.gradients import call_detached, hold_out_net
from rl_objectives.losses.critic_ensemble import CriticEnsemble
from rl_objectives.losses.following import (
    FollowingDistribution,
    check_action_apart,
    check_states_apart,
    with_following_action,
)
from rl_objectives.losses.replay import ReplayKeys, ReplayLoss

__all__ = ["OffPolicyKeys", "OffPolicyLoss", "deterministic"]


@dataclass(frozen=True)
class OffPolicyKeys(ReplayKeys):
    """The entries of the off-policy actor-critic losses."""

    state_action_value: Key = "state_action_value"
    """[*B, 1]: what the critics write."""


class OffPolicyLoss(ReplayLoss):
    """Base of the off-policy actor-critic losses.

    Each row's priority is written into the batch under ``tensor_keys.priority``; nothing else is. Rows outside of the
    batch's mask do not count. Importance weights, where the batch has them, multiply the rows' losses before the
    reduction (``mean(w l)``). The actor's loss moves no critic, and the critics' loss no actor, unless both share
    weights, which ``separate_losses`` keeps out of the critics' loss.

    Args:
        loss_function: distance of values from targets: "smooth_l1", "l2" or "l1".
        gamma: discount per step; the same as ``loss.make_value_estimator(gamma=gamma)``.
        separate_losses: keep the critics' loss from moving weights that the actor shares.
        reduction: "mean", "sum" or "none" (per row).
        use_prioritized_weights: True: the batch must have importance weights; False: they are ignored; "auto": used if
            present.
        priority_type: "abs": priorities are absolute errors; "squared": their squares.

    Raises:
        SpecError: an option is not admitted.
    """

    default_keys: ClassVar[Any] = OffPolicyKeys()
    critic_name: ClassVar[str] = "qvalue_network"
    value_key: ClassVar[str] = "state_action_value"
    """The name of the entry that critics write."""

    def __init__(
        self,
        *,
        loss_function: str,
        gamma: float | None = None,
        separate_losses: bool = False,
        reduction: str = "mean",
        use_prioritized_weights: bool | str = "auto",
        priority_type: str = "abs",
    ) -> None:
        super().__init__(
            reduction=reduction, use_prioritized_weights=use_prioritized_weights, priority_type=priority_type
        )
        self.loss_function = check_distance(loss_function)
        self.separate_losses = separate_losses
        self._shared: list[str] = []
        if gamma is not None:
            self.make_value_estimator(gamma=gamma)

    def add_actor_and_critics(
        self,
        actor: nn.Module,
        critics: nn.Module | Sequence[nn.Module],
        count: int,
        *,
        delay_actor: bool,
        delay_critics: bool,
    ) -> None:
        """Register the actor and an ensemble of critics, each with a target if it is delayed."""
        self.add_network("actor_network", actor, delayed=delay_actor)
        check_states_apart(actor, critics if isinstance(critics, Sequence) else [critics], type(self).__name__)
        ensemble = CriticEnsemble(critics, count, type(self).__name__, self.critic_name)
        self.add_network(self.critic_name, ensemble, delayed=delay_critics)
        if self.separate_losses:
            actors = {id(parameter) for parameter in actor.parameters()}
            named = ensemble.named_parameters(remove_duplicate=False)
            self._shared = [name for name, parameter in named if id(parameter) in actors]
        if self.__dict__["_value_estimator"] is None:
            self.make_value_estimator()  # now, since compiled code could not make it at the first call

    # ---- the contract

    def check_estimator(self, estimator: ValueEstimator) -> None:
        """Raise SpecError where this loss cannot use the estimator."""
        if isinstance(estimator, GAE):
            raise SpecError(f"{type(self).__name__} has no state value for GAE. Use TD0, TD1 or TDLambda.")

    def default_in_keys(self) -> list[Key]:
        actor, critics = self._modules["actor_network"], self._modules[self.critic_name]
        inputs = [as_key(key) for network in (actor, critics) for key in network.in_keys]  # type: ignore[union-attr]
        action = self.path("action")
        inputs = list(dict.fromkeys(key for key in inputs if key != action))
        step = [self.path(name) for name in ("action", "reward", "done", "terminated")]
        return [*inputs, *(join("next", key) for key in inputs), *step]

    # ---- parts that subclasses put together

    def network(self, name: str, *, target: bool = False) -> nn.Module:
        """A network by name; its target, if one is wanted and there is one."""
        found = self.target_or_online(name) if target else self._modules[name]
        assert found is not None
        return found

    def deterministic_action(self, batch: TensorDictBase, under: Key | None = None, *, target: bool = False) -> Tensor:
        """The actor's action [*B, A] for the observations at the root or under "next"."""
        actor = self.network("actor_network", target=target)
        return self.output_of(actor, self._paths["action"], batch, under)

    def distribution(self, batch: TensorDictBase, under: Key | None = None, *, target: bool = False) -> Any:
        """The actor's distribution for the observations at the root or under "next"."""
        actor = self.network("actor_network", target=target)
        lived = None if under is None else self.lived(actor, batch)
        if lived is not None:
            sequence, inputs = lived
            return FollowingDistribution(distribution_on_tensors(actor, inputs, sequence.batch_size), sequence)
        return distribution_on_tensors(actor, self.inputs_of(actor, batch, under), batch.batch_size)

    def critic_values(
        self,
        batch: TensorDictBase,
        action: Tensor | None,
        under: Key | None = None,
        *,
        target: bool = False,
        hold_out: bool = False,
        first: int | None = None,
    ) -> Tensor:
        """The values that all critics give to an action, [N, *B, ...].

        Args:
            batch: [*B].
            action: [*B, A], in place of what the batch holds; None for critics that read no action.
            under: where the observations lie: at the root or under "next".
            target: ask the target critics, if there are any.
            hold_out: give the critics no gradient: it flows to the action alone.
            first: ask only so many critics.
        """
        critics = self.network(self.critic_name, target=target)
        assert isinstance(critics, CriticEnsemble)
        if self.carries_state and reads_sequences(critics):
            return self._values_along_time(critics, batch, action, under, hold_out=hold_out, first=first)
        inputs = [self.critic_inputs(critic, batch, action, under) for critic in critics.critics()]
        return self.call_critics(critics, inputs, batch.batch_size, hold_out=hold_out, first=first)

    def _values_along_time(
        self,
        critics: CriticEnsemble,
        batch: TensorDictBase,
        action: Tensor | None,
        under: Key | None,
        *,
        hold_out: bool,
        first: int | None,
    ) -> Tensor:
        """The same by critics with a memory, of a batch [*B, T]."""
        own = self._paths["action"]
        for critic in critics.critics() if action is not None else []:
            self._check_reads_action(critic)
            check_action_apart(critic, own, type(self).__name__)
        if under is None:
            held = batch if action is None else batch.copy().set(own, action)
            reads = [self.inputs_of(critic, held) for critic in critics.critics()]
            return self.call_critics(critics, reads, batch.batch_size, hold_out=hold_out, first=first)
        held = batch if action is None else with_following_action(batch, own, action)
        pairs = [self.lived(critic, held) for critic in critics.critics()]
        if None in pairs:
            raise LossError(f"{type(self).__name__}: either all critics have a memory, or none; got a mixture")
        sequences, inputs = zip(*[pair for pair in pairs if pair is not None], strict=True)
        size = sequences[0].batch_size
        values = self.call_critics(critics, list(inputs), size, hold_out=hold_out, first=first)
        return sequences[0].split(values, 1)[1]

    def call_critics(
        self,
        critics: CriticEnsemble,
        inputs: list[list[Tensor]],
        batch_size: torch.Size,
        *,
        hold_out: bool = False,
        first: int | None = None,
    ) -> Tensor:
        """The values of all critics, [N, *B, ...], of their inputs, one list for each of ``critics.critics()``."""
        arguments = (inputs, self._paths[self.value_key], batch_size, first)
        if not torch.is_grad_enabled() or not (hold_out or self._shared):
            values: Tensor = critics(*arguments)
            return values
        if hold_out and not torch.compiler.is_compiling():
            with hold_out_net(critics):
                values = critics(*arguments)
            return values
        return call_detached(critics, self._held_out(critics, everything=hold_out), *arguments)

    def critic_inputs(
        self, critic: nn.Module, batch: TensorDictBase, action: Tensor | None, under: Key | None
    ) -> list[Tensor]:
        """What a critic reads, with the given action in place of the batch's."""
        if action is None:
            return read_inputs(critic, batch, type(self).__name__, under=under)
        self._check_reads_action(critic)
        own, inputs = self._paths["action"], []
        for key in critic.in_keys:  # type: ignore[union-attr]
            if key == own:
                inputs.append(action)
                continue
            full = as_key(key) if under is None else join(under, key)
            value = batch.get(full, None)
            if value is None:
                cure = f"It is an in_key of {type(critic).__name__}: rename there, or let the environment write it."
                raise missing_key(type(self).__name__, full, batch, cure)
            inputs.append(value)
        return inputs

    def _check_reads_action(self, critic: nn.Module) -> None:
        own = self._paths["action"]
        if own not in critic.in_keys:  # type: ignore[operator]
            raise SpecError(
                f"{type(self).__name__}: {self.critic_name} must read {quoted(own)}; its in_keys are "
                f"{list(critic.in_keys)}. Add the key, or call loss.set_keys(action=...)."  # type: ignore[arg-type]
            )

    def _held_out(self, critics: nn.Module, *, everything: bool) -> Mapping[str, nn.Parameter]:
        named = dict(critics.named_parameters())
        return named if everything else {name: named[name] for name in self._shared if name in named}

    def td_target(self, batch: TensorDictBase, next_value: Tensor) -> Tensor:
        """What the critics are to learn, of the next value's shape [*B, 1] (or [*B, K], the same step for K numbers).

        A row's own discount (n-step data) takes the place of the estimator's gamma.
        """
        estimator = self.value_estimator
        discount = batch.get(self._paths["discount"], None)
        if type(estimator) is not TD0Estimator or estimator.average_rewards:
            if discount is not None:
                raise SpecError(
                    f"{type(self).__name__}: the batch has a discount per row, {quoted(self._paths['discount'])}, as "
                    f"n-step data have; {type(estimator).__name__} cannot use it. Use TD0, or data of single steps."
                )
            return estimator.value_estimate(batch, next_value=next_value)
        reward, name = self.read(batch, "reward"), "terminated"
        terminated = batch.get(self._paths[name], None)
        if terminated is None:
            name = "done"
            terminated = self.read(batch, name)
        wanted, what = (*next_value.shape[:-1], 1), "the values of next states"
        if reward.shape != wanted or terminated.shape != wanted or terminated.dtype is not torch.bool:
            raise self.unfit_step(what, next_value.shape, {"reward": reward, name: terminated})
        if discount is None:
            discount = raised_discount(estimator.gamma, batch.get(self._paths["steps_to_next_obs"], None), reward)
        elif discount.shape != wanted:
            raise self.unfit_step(what, next_value.shape, {"discount": discount})
        return one_step_target(reward, next_value, terminated, discount)

    def critic_distance(self, values: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """How far critics are from a target.

        Args:
            values: [N, *B, 1].
            target: [*B, 1], without gradient.

        Returns:
            The distances summed over critics, [*B]; the largest absolute error of a critic, [*B, 1].
        """
        self.check_values(values, target)
        distance = distance_loss(values, target.expand_as(values), self.loss_function).sum(0).squeeze(-1)
        error = (values.detach() - target).abs_().amax(0)
        return distance, error

    def check_values(self, values: Tensor, target: Tensor) -> None:
        """Raise LossError unless each critic's values have the target's shape."""
        if values.shape[1:] != target.shape:
            key = quoted(self._paths[self.value_key])
            raise LossError(
                f"{type(self).__name__}: the critics' {key} {list(values.shape[1:])} and their targets "
                f"{list(target.shape)} must have one shape; they would broadcast against each other's rows."
            )

    def weighted(self, batch: TensorDictBase, rows: Tensor, mask: Tensor | None) -> Tensor:
        """Per-row losses [*B] times their importance weights, if there are any, under the loss's reduction."""
        weight = self.weights(batch, rows)
        rows = rows if weight is None else rows * weight
        return self.reduce(rows, mask)


def deterministic() -> set_exploration_type:
    """Within this context policies give their deterministic action, as they do in a call of the whole loss."""
    return set_exploration_type(ExplorationType.DETERMINISTIC)
