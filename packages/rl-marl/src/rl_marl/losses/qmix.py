"""QMixerLoss: the temporal-difference error of a team's value that a mixer makes of its agents' values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import entry, missing_key, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, read_inputs
from rl_core.losses.reduction import masked_mean
from rl_core.specs import Categorical, OneHot, TensorSpec
from rl_marl.functional.qmix import greedy_action, taken_value
from rl_marl.masks import agents_mask, bootstrap_mask, rows_mask
from rl_modules.policies.q_value import QValueModule
from rl_objectives.estimators.gae import GAE
from rl_objectives.estimators.td import TD0Estimator
from rl_objectives.functional.distance import check_distance, distance_loss

__all__ = ["QMixerKeys", "QMixerLoss"]

_STEP = "The environment writes it; a collector keeps it."
_TEAM = (
    "QMIX learns from one reward per row, [*B, 1]. Where rewards lie in the group, sum or average them first: "
    'batch["next", "reward"] = batch["next", "agents", "reward"].mean(-2).'
)
_SPACES = {"one_hot": "one_hot", "one-hot": "one_hot", "categorical": "categorical"}


@dataclass(frozen=True)
class QMixerKeys(LossKeys):
    """The entries of :class:`QMixerLoss`; n agents with K actions each."""

    local_value: Key = ("agents", "chosen_action_value")
    """[*B, n, 1]: what the mixer reads."""
    global_value: Key = "chosen_action_value"
    """[*B, 1]: what the mixer writes."""
    action_value: Key = ("agents", "action_value")
    """[*B, n, K]: what the local network writes."""
    action: Key = field(
        default=("agents", "action"), metadata=entry(producer="The collecting policy writes it: one-hot or an index.")
    )
    """[*B, n, K] one-hot, or [*B, n] indices."""
    priority: Key = "td_error"
    """[*B, 1]: the absolute error, written into the batch if the loss has a priority_key."""
    reward: Key = field(default="reward", metadata=entry(producer=_TEAM, under_next=True))
    """[*B, 1]: the reward of the team."""
    done: Key = field(default="done", metadata=entry(producer=_STEP, under_next=True))
    terminated: Key = field(default="terminated", metadata=entry(producer=_STEP, under_next=True))
    agent_mask: Key = ("agents", "mask")
    """bool [*B, n], True where the agent acts; read if present, at the root and under "next"."""
    agent_terminated: Key = field(default=("agents", "terminated"), metadata=entry(under_next=True))
    """bool [*B, n, 1]; read if present where there is an agent_mask: who terminated before the episode was cut."""
    action_mask: Key = ("agents", "action_mask")
    """bool [*B, n, K], True where an action is allowed; read under "next", if present."""


class QMixerLoss(LossModule):
    r"""Q-learning of a team's value, mixed from its agents' values (QMIX, VDN).

    .. math:: L = d(Q_{tot}(s, q_1(a_1), ..., q_n(a_n)), \; r + \gamma (1 - m) Q'_{tot}(s', \max q'_1, ..., \max q'_n))

    Returns ``loss`` and the detached logs ``td_error`` (mean absolute error), ``pred_value`` and ``target_value``.

    Agents that do not act (the group's mask) contribute nothing and get no gradient; in the target it is those that do
    not act next, save that a cut episode goes on with the agents that had not terminated. Rows in which nobody acts do
    not count, and a state in which nobody acts has the value 0. The maximum is over allowed actions where the batch has
    an action mask under "next".

    Args:
        local_value_network: a module with ``in_keys`` that writes the action values of all agents, e.g. a
            ``QValueActor`` with ``action_value_key=("agents", "action_value")``.
        mixer_network: a module with ``in_keys`` that turns the values of chosen actions into the team's value, e.g.
            ``TensorDictModule(QMixer(...), [("agents", "chosen_action_value"), "state"], ["chosen_action_value"])``.
        loss_function: "l2", "l1" or "smooth_l1".
        delay_value: evaluate next states by target networks, moved by SoftUpdate or HardUpdate.
        gamma: not here: ``loss.make_value_estimator(gamma=...)``.
        action_space: "one_hot", "categorical" or a spec; read from the shape of the actions where None.
        priority_key: write each row's absolute error into the batch under this key, for prioritised replay.
        double_dqn: choose the next actions by the online network, evaluate them by the target.
        reduction: "mean", "sum" or "none" (per row).

    Raises:
        SpecError: an option is not admitted.
        TypeError: gamma is given.

    Rashid et al., 2018, QMIX: Monotonic Value Function Factorisation for Deep Multi-Agent Reinforcement Learning,
    eq. 6, arXiv 1803.11485. Sunehag et al., 2017, Value-Decomposition Networks, arXiv 1706.05296.
    """

    default_keys: ClassVar[Any] = QMixerKeys()
    default_value_estimator: ClassVar[type[ValueEstimator] | str | None] = TD0Estimator

    def __init__(
        self,
        local_value_network: nn.Module,
        mixer_network: nn.Module,
        *,
        loss_function: str = "l2",
        delay_value: bool = True,
        gamma: float | None = None,
        action_space: str | TensorSpec | None = None,
        priority_key: Key | None = None,
        double_dqn: bool = False,
        reduction: str = "mean",
    ) -> None:
        if gamma is not None:
            raise TypeError(
                f"{type(self).__name__} takes no gamma: it belongs to the value estimator. "
                f"Call loss.make_value_estimator(gamma={gamma})."
            )
        super().__init__(reduction=reduction)
        self.add_network("local_value_network", local_value_network, delayed=delay_value)
        self.add_network("mixer_network", mixer_network, delayed=delay_value)
        self.loss_function = check_distance(loss_function)
        self.delay_value, self.double_dqn = delay_value, double_dqn
        self.action_space = None if action_space is None else _space_name(action_space)
        self.writes_priority = False
        greedy = [module for module in local_value_network.modules() if isinstance(module, QValueModule)]
        self._network_masks = [as_key(module.in_keys[1]) for module in greedy if len(module.in_keys) > 1]
        if priority_key is not None:
            self.set_keys(priority=priority_key)

    def set_keys(self, **keys: Key | None) -> None:
        """Rename entries; None means the default again. A named priority is written, with None it is not."""
        super().set_keys(**keys)
        if "priority" in keys:
            self.writes_priority = keys["priority"] is not None

    def make_value_estimator(self, value_type: Any = None, **hyperparameters: Any) -> LossModule:
        """Choose how targets are made: TD0 (the default), TD1 or TDLambda.

        Args:
            value_type: a member of ``ValueEstimators``, a registered name, a class or an instance.
            **hyperparameters: for the estimator's constructor, e.g. ``gamma=0.99``.

        Returns:
            The loss.

        Raises:
            SpecError: GAE was asked for, which needs a state's value beside that of the taken actions.
        """
        before = self.__dict__["_value_estimator"]
        super().make_value_estimator(value_type, **hyperparameters)
        if isinstance(self.value_estimator, GAE):
            self.__dict__["_value_estimator"] = before
            raise SpecError(f"{type(self).__name__} has no state value for GAE. Use TD0, TD1 or TDLambda.")
        return self

    def default_in_keys(self) -> list[Key]:
        local, mixer = self._modules["local_value_network"], self._modules["mixer_network"]
        inputs = [as_key(key) for network in (local, mixer) for key in network.in_keys]  # type: ignore[union-attr]
        inputs = [key for key in inputs if key != self.path("local_value")]
        step = [self.path(name) for name in ("action", "reward", "done", "terminated")]
        return list(dict.fromkeys([*inputs, *(join("next", key) for key in inputs), *step]))

    def default_out_keys(self) -> list[Key]:
        return ["loss", "td_error", "pred_value", "target_value"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The loss and logs of a batch [*B]."""
        self._check_networks()
        value_net, mixer = self._modules["local_value_network"], self._modules["mixer_network"]
        assert value_net is not None and mixer is not None
        action_value = self._action_value(value_net, batch, None)
        acting = agents_mask(batch, self.path("agent_mask"), action_value.shape[-2])
        rows = rows_mask(batch, self.path("mask"))
        if acting is not None:
            rows = acting.any(-1) if rows is None else rows & acting.any(-1)
        chosen = self._taken_value(batch, action_value, acting)
        value = self._team_value(mixer, batch, None, chosen, acting)
        target = self._target(batch, acting, rows)
        error = (value - target).detach().abs()
        if self.writes_priority:
            batch.set(self.path("priority"), error if rows is None else error.masked_fill(~rows.unsqueeze(-1), 0))
        return {
            "loss": self.reduce(distance_loss(value, target, self.loss_function).squeeze(-1), rows),
            "td_error": masked_mean(error, rows),
            "pred_value": masked_mean(value.detach(), rows),
            "target_value": masked_mean(target, rows),
        }

    # ---- the parts, in the order of compute

    def _action_value(self, network: nn.Module, batch: TensorDictBase, under: Key | None) -> Tensor:
        """The values of all actions [*B, n, K]."""
        inputs = read_inputs(network, batch, type(self).__name__, under=under)
        value = call_on_tensors(network, inputs, self.path("action_value"), batch.batch_size)
        if value.ndim != len(batch.batch_size) + 2:
            raise SpecError(
                f"{type(self).__name__}: {quoted(self.path('action_value'))} must be [*B, n, K], values of n agents' K "
                f"actions; got {list(value.shape)} for a batch of size {list(batch.batch_size)}"
            )
        return value

    def _taken_value(self, batch: TensorDictBase, action_value: Tensor, acting: Tensor | None) -> Tensor:
        """The values of the stored actions [*B, n, 1]; whatever is stored for agents that do not act is admitted."""
        action = self.read(batch, "action")
        if acting is not None and action.shape[: acting.ndim] == acting.shape:
            action = action.masked_fill(~acting.reshape(*acting.shape, *[1] * (action.ndim - acting.ndim)), 0)
        return taken_value(action_value, action, self.action_space)

    def _team_value(
        self, mixer: nn.Module, batch: TensorDictBase, under: Key | None, chosen: Tensor, counted: Tensor | None
    ) -> Tensor:
        """The mixer's value [*B, 1]; agents that do not count are given the value 0, which contributes nothing."""
        if counted is not None:
            chosen = chosen.masked_fill(~counted.unsqueeze(-1), 0)
        everybody = torch.ones(chosen.shape[:-1], dtype=torch.bool, device=chosen.device)
        own = {
            self.path("local_value"): chosen,
            self.path("agent_mask"): everybody if counted is None else counted,
        }
        inputs = []
        for key in mixer.in_keys:  # type: ignore[union-attr]
            full = as_key(key) if under is None else join(under, key)
            value = own[as_key(key)] if as_key(key) in own else batch.get(full, None)
            if value is None:
                raise missing_key(type(self).__name__, full, batch, "It is an in_key of the mixer_network.")
            inputs.append(value)
        value = call_on_tensors(mixer, inputs, self.path("global_value"), batch.batch_size)
        if value.shape != (*batch.batch_size, 1):
            raise SpecError(
                f"{type(self).__name__}: the mixer's {quoted(self.path('global_value'))} must be one value per row, "
                f"{[*batch.batch_size, 1]}; got {list(value.shape)}"
            )
        return value

    @torch.no_grad()
    def _target(self, batch: TensorDictBase, acting: Tensor | None, rows: Tensor | None) -> Tensor:
        """The estimator's target [*B, 1] from the team's value of the greedy next actions."""
        ended = self._check_step(batch)
        next_value = self._action_value(self.target_or_online("local_value_network"), batch, "next")
        counted = self._counted_next(batch, acting, next_value.shape[-2])
        needed = ~ended if rows is None else ~ended & rows.unsqueeze(-1)
        needed = needed.expand(next_value.shape[:-1]) if counted is None else needed & counted
        judge = next_value
        if self.double_dqn:
            judge = self._action_value(self._modules["local_value_network"], batch, "next")  # type: ignore[arg-type]
        greedy = greedy_action(judge, batch.get(join("next", self.path("action_mask")), None), needed)
        chosen = next_value.gather(-1, greedy)
        team = self._team_value(self.target_or_online("mixer_network"), batch, "next", chosen, counted)
        if counted is not None:
            team = team.masked_fill(~counted.any(-1, keepdim=True), 0)
        return self.value_estimator.value_estimate(batch, next_value=team)

    def _counted_next(self, batch: TensorDictBase, acting: Tensor | None, n_agents: int) -> Tensor | None:
        """The agents whose values make up the next state's, bool [*B, n]; None: all of them."""
        key = join("next", self.path("agent_mask"))
        next_acting = agents_mask(batch, key, n_agents)
        if next_acting is None:
            if acting is None:
                return None
            cure = f"It says which agents act next, as {quoted(self.path('agent_mask'))} does for the row itself."
            raise missing_key(type(self).__name__, key, batch, cure)
        terminated = batch.get(self.path("agent_terminated"), None)
        if terminated is not None and terminated.ndim > next_acting.ndim:
            terminated = terminated.squeeze(-1)
        return bootstrap_mask(acting, next_acting, self.read(batch, "done"), terminated)

    def _check_step(self, batch: TensorDictBase) -> Tensor:
        """Whether each row ended by termination, bool [*B, 1].

        Raises:
            SpecError: reward or end flags are not one per row.
        """
        reward, done = self.read(batch, "reward"), self.read(batch, "done")
        terminated = batch.get(self.path("terminated"), None)
        terminated = done if terminated is None else terminated
        for name, value in (("reward", reward), ("done", done), ("terminated", terminated)):
            if value.shape != (*batch.batch_size, 1):
                cure = _TEAM if name == "reward" else "The loss reads the end flags of the team, those of the root."
                raise SpecError(
                    f"{type(self).__name__}: {quoted(self.path(name))} must have shape {[*batch.batch_size, 1]}; got "
                    f"{list(value.shape)}. {cure}"
                )
        return terminated

    def _check_networks(self) -> None:
        for network, name in (("local_value_network", "action_value"), ("mixer_network", "global_value")):
            module, key = self._modules[network], self.path(name)
            written = [as_key(found) for found in module.out_keys]  # type: ignore[union-attr]
            if key not in written:
                raise KeyMissingError(
                    f"{type(self).__name__}: {network} must write {quoted(key)}; it writes "
                    f"{', '.join(map(quoted, written))}. Rename its output, or call loss.set_keys({name}=...)."
                )
        if self.path("local_value") not in [as_key(key) for key in self._modules["mixer_network"].in_keys]:  # type: ignore[union-attr]
            raise KeyMissingError(
                f"{type(self).__name__}: the mixer_network must read {quoted(self.path('local_value'))}, the values of "
                "the agents' actions. Rename its input, or call loss.set_keys(local_value=...)."
            )
        for key in self._network_masks:
            if key != self.path("action_mask"):
                raise SpecError(
                    f"{type(self).__name__}: local_value_network masks actions by {quoted(key)}, but the target's "
                    f"maximum is over {quoted(self.path('action_mask'))}. Call loss.set_keys(action_mask={key!r})."
                )


def _space_name(action_space: str | TensorSpec) -> str:
    if isinstance(action_space, OneHot):
        return "one_hot"
    if isinstance(action_space, Categorical):
        return "categorical"
    if isinstance(action_space, str) and action_space in _SPACES:
        return _SPACES[action_space]
    raise SpecError(f"action_space is 'one_hot', 'categorical', or a OneHot or Categorical spec; got {action_space!r}")
