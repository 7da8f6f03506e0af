"""Multi-agent proximal policy optimisation: the clipped surrogate per agent, with a central or a decentral critic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tensordict import TensorDict, TensorDictBase
from torch import Size, Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import entry, quoted
from rl_core.losses.networks import call_on_tensors, read_inputs
from rl_core.losses.reduction import masked_mean, masked_rows
from rl_marl.estimators.multi_agent_gae import MultiAgentGAE
from rl_marl.functional.agents import over_agents
from rl_marl.functional.idle_rows import finite_inputs, stand_in
from rl_marl.losses.denormalized_critic import DenormalizedCritic
from rl_marl.masks import group_mask
from rl_marl.value_norm import ValueNorm
from rl_objectives.estimators.base import TrajectoryEstimator
from rl_objectives.functional import ppo
from rl_objectives.functional.distance import distance_loss
from rl_objectives.losses.critic import clipped_value_distance, shared_weights
from rl_objectives.losses.ppo import ClipPPOLoss, PPOKeys

__all__ = ["IPPOLoss", "MAPPOKeys", "MAPPOLoss"]


@dataclass(frozen=True)
class MAPPOKeys(PPOKeys):
    """The entries of the multi-agent PPO losses: those of PPO with a dimension of agents, [*B, n, ...]."""

    agent_mask: Key = ("agents", "mask")
    """Read if present: bool [*B, n], True where the agent acts in the row."""
    team_reward: Key = field(default="reward", metadata=entry(under_next=True))
    """Read by the value estimator where ``reward`` is absent."""
    team_done: Key = field(default="done", metadata=entry(under_next=True))
    """Read by the value estimator: where the team is done no agent's trajectory goes on."""
    team_terminated: Key = field(default="terminated", metadata=entry(under_next=True))
    """Read by the value estimator where ``done`` and ``terminated`` are absent."""


class _AgentPPOLoss(ClipPPOLoss):
    """What MAPPO and IPPO share: all of it; they differ in what their critic reads."""

    default_keys: ClassVar[Any] = MAPPOKeys()
    default_value_estimator: ClassVar[type[ValueEstimator] | str | None] = MultiAgentGAE

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module | None = None,
        *,
        value_norm: ValueNorm | None = None,
        entropy_coeff: float = 0.01,
        normalize_advantage: bool = True,
        normalize_advantage_exclude_dims: Sequence[int] = (-2,),
        **options: Any,
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            entropy_coeff=entropy_coeff,
            normalize_advantage=normalize_advantage,
            normalize_advantage_exclude_dims=normalize_advantage_exclude_dims,
            **options,
        )
        if value_norm is not None and not isinstance(value_norm, ValueNorm):
            raise SpecError(
                f"{type(self).__name__}: value_norm is a ValueNorm, such as PopArtValueNorm(); got {value_norm!r}"
            )
        if value_norm is not None and not self.has_critic:
            raise SpecError(f"{type(self).__name__}: value_norm needs a critic_network and a critic_coeff")
        self.value_norm = value_norm

    def set_group(self, group: str | tuple[str, ...]) -> None:
        """Point the keys at a group of agents: ``set_group("agents")``.

        Action, log-probability, reward, end flags, advantage, value target and mask lie in the group from then on,
        under their usual names; the value where the critic writes it. Rewards and end flags that the batch holds only
        at the root are found there.

        Args:
            group: the group's key.
        """
        names = {
            "action": "action",
            "sample_log_prob": "action_log_prob",
            "reward": "reward",
            "done": "done",
            "terminated": "terminated",
            "advantage": "advantage",
            "value_target": "value_target",
            "agent_mask": "mask",
        }
        keys = {name: join(group, leaf) for name, leaf in names.items()}
        critic = self._modules.get("critic_network")
        written = [] if critic is None else [as_key(key) for key in critic.out_keys]  # type: ignore[union-attr]
        in_group = join(group, "state_value")
        keys["value"] = "state_value" if "state_value" in written and in_group not in written else in_group
        self.set_keys(**keys)

    def valid_rows(self, batch: TensorDictBase) -> Tensor | None:
        """The rows that count for each agent, bool [*B, n], or None."""
        return group_mask(batch, self._paths["mask"], self._paths["agent_mask"], self._known_by(batch)[1][batch.ndim])

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        batch = self._prepared(batch)
        mask = self.valid_rows(batch)
        if mask is not None and not bool(mask.any()):
            return self._nothing(mask)
        values = super().compute(batch)
        if self.reduction == "none":  # the entropy has the distribution's shape, which may be [*B, n, 1]
            return {key: _one_per_agent(value, batch.ndim) for key, value in values.items()}
        return values

    # ---- the batch, per agent

    def _known_by(self, batch: TensorDictBase) -> tuple[Key, Size]:
        """Where the number of agents comes from: the log-probability, [*B, n] or [*B, n, 1]."""
        key, old = self._paths["sample_log_prob"], self.read(batch, "sample_log_prob")
        dims = batch.ndim
        if old.ndim == dims + 1 or (old.ndim == dims + 2 and old.shape[-1] == 1):
            return key, old.shape
        size = list(batch.batch_size)
        raise SpecError(
            f"{type(self).__name__}: {quoted(key)} {list(old.shape)} must hold one log-probability per agent, "
            f"[*B, n] or [*B, n, 1] with *B = {size}. The policy's distribution sums over the actions of one agent "
            f"(Independent(..., 1)), not over agents."
        )

    def _per_agent(self, batch: TensorDictBase, key: Key, value: Tensor) -> Tensor:
        known_by = self._known_by(batch)
        n_agents = known_by[1][batch.ndim]
        return over_agents(type(self).__name__, (key, value), batch.batch_size, n_agents, known_by)

    def _prepared(self, batch: TensorDictBase) -> TensorDictBase:
        """A shallow copy with all that the loss reads per agent, in the critic's units, and harmless in masked rows."""
        batch = batch.copy()
        if batch.get(self._paths["advantage"], None) is None and self._can_estimate():
            batch = self.value_estimator(batch)
        mask = self.valid_rows(batch)
        names = (
            ["advantage"] + ["value_target"] * self.has_critic + ["value"] * (self.has_critic and self.has_value_clip)
        )
        for name in names:
            key = self._paths[name]
            batch.set(key, self._per_agent(batch, key, self.read(batch, name).detach()))
        batch.set(self._paths["sample_log_prob"], _one_per_agent(self.read(batch, "sample_log_prob"), batch.ndim))
        if self.value_norm is not None:
            self._normalize_values(batch, names[1:], mask)
        if mask is not None:
            self._disarm(batch, mask)
        return batch

    def _can_estimate(self) -> bool:
        return "critic_network" in self._modules or self.__dict__["_value_estimator"] is not None

    def _normalize_values(self, batch: TensorDictBase, names: list[str], mask: Tensor | None) -> None:
        """Move the statistics (in training), then put stored values into their units."""
        norm = self.value_norm
        assert norm is not None
        if self.training:
            norm.update(self.read(batch, "value_target"), mask)
        for name in names:
            batch.set(self._paths[name], norm.normalize(self.read(batch, name)))

    def _disarm(self, batch: TensorDictBase, mask: Tensor) -> None:
        """Replace what a masked row may hold and a network or a distribution cannot take.

        A gradient of zero times NaN is NaN: it is not enough to leave the row out of the sum.
        """
        action = batch.get(self._paths["action"], None)
        if isinstance(action, Tensor) and action.shape[: mask.ndim] == mask.shape:
            batch.set(self._paths["action"], stand_in(action, mask))
        networks = [self._modules["actor_network"], self._modules.get("critic_network")]
        keys = [as_key(key) for network in networks if network is not None for key in network.in_keys]  # type: ignore[union-attr]
        for key in dict.fromkeys(keys):
            value = batch.get(key, None)
            if isinstance(value, Tensor):
                batch.set(key, finite_inputs(value, mask))

    # ---- the parts that differ from PPO's

    def _log_ratio(self, batch: TensorDictBase, log_prob: Tensor, advantage: Tensor) -> Tensor:
        """Log r [*B, n, 1], 0 and without gradient in masked rows."""
        log_ratio = super()._log_ratio(batch, _one_per_agent(log_prob, batch.ndim), advantage)
        mask = self.valid_rows(batch)
        return log_ratio if mask is None else log_ratio.masked_fill(~mask.unsqueeze(-1), 0)

    def _critic_loss(self, batch: TensorDictBase, mask: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The distance of the critic's value to its target [*B, n, 1], in the critic's units, and logs about it."""
        owner, key = type(self).__name__, self._paths["value"]
        target = self.read(batch, "value_target")
        critic, actor = self._modules["critic_network"], self._modules["actor_network"]
        assert critic is not None and actor is not None
        weights = (shared_weights(critic, actor) or None) if self.separate_losses else None
        value = call_on_tensors(critic, read_inputs(critic, batch, owner), key, batch.batch_size, weights=weights)
        value = self._per_agent(batch, key, value)
        value = value if mask is None else value.masked_fill(~mask.unsqueeze(-1), 0)
        seen = masked_rows(value.detach(), mask), masked_rows(target, mask)
        logs = {"explained_variance": ppo.explained_variance(*seen)}
        if not self.has_value_clip:
            return distance_loss(value, target, self.loss_critic_type), logs
        old = self.read(batch, "value")
        distance, clipped = clipped_value_distance(value, old, target, self.value_limit(), self.loss_critic_type)
        logs["value_clip_fraction"] = masked_mean(clipped.to(value.dtype), mask)
        return distance, logs

    def _nothing(self, mask: Tensor) -> dict[str, Tensor]:
        """The losses of a batch in which no agent acts: 0."""
        zero = next(self.parameters()).detach().sum() * 0
        rows = zero.expand(mask.shape) if self.reduction == "none" else zero
        return {
            str(key): rows.clone().requires_grad_() if str(key).startswith("loss") else zero.clone()
            for key in self.default_out_keys()
        }

    # ---- around the loss

    def _batch_of(self, tensors: dict[str, Tensor]) -> TensorDict:
        """A batch from keyword tensors; where all of them are per agent the agents are no dimension of the batch."""
        batch = super()._batch_of(tensors)
        old = batch.get(self._paths["sample_log_prob"], None)
        if old is not None and old.ndim == batch.ndim:
            batch.batch_size = batch.batch_size[:-1]
        return batch

    def _share_keys(self, estimator: ValueEstimator) -> None:
        """The key map, and a view of the critic in raw units where it predicts normalised values."""
        super()._share_keys(estimator)
        if self.value_norm is None or not isinstance(estimator, TrajectoryEstimator):
            return
        network = estimator.value_network
        if network is not None and network is self._modules.get("critic_network"):
            estimator.value_network = DenormalizedCritic(network, self.value_norm, self._paths["value"])
        elif isinstance(network, DenormalizedCritic):
            network.value_key = self._paths["value"]


class MAPPOLoss(_AgentPPOLoss):
    r"""Clipped PPO for the agents of a group, with a centralised critic.

    .. math::
        L = \frac{1}{|M|} \sum_{(t, i) \in M} -\min(r_{t,i} A_{t,i}, \mathrm{clip}(r_{t,i}, 1 - \epsilon, 1 + \epsilon)
        A_{t,i}) + c_v \, d(V_{t,i}, G_{t,i}) - c_e H_{t,i}

    over the rows t and agents i that count (M). The critic reads the state, or all agents' observations; the policy
    only its own agent's. Returns what :class:`rl_objectives.ClipPPOLoss` returns.

    **Shapes.** Log-probabilities are [*B, n] or [*B, n, 1]: they tell n. Advantage, value target, stored value and the
    critic's output may each be per agent [*B, n, 1] or of the team [*B, 1]; a team's number holds for every agent. The
    default estimator, :class:`MultiAgentGAE`, takes rewards and end flags of both kinds likewise.

    **Masks.** Rows whose ``agent_mask`` or collector mask is False count nowhere: not in the losses, the normalisation
    of advantages, the statistics of ``value_norm``, the logs. What stands in them (NaN, actions out of range, action
    masks that allow nothing) does not matter, save that a centralised network does see the finite observations of
    agents that do not act. A batch in which no agent acts has losses 0.

    **Value normalisation.** With ``value_norm`` the critic predicts normalised values. In training each call first
    takes the value targets into the statistics; then target and stored value are normalised for the critic's loss.
    Values, advantages and targets in a batch are always raw: let the loss's own estimator write them
    (``loss.make_value_estimator(gamma=0.99, lmbda=0.95)``, then ``loss.value_estimator(batch)``), which denormalises
    what the critic says. An estimator built apart on the bare critic would take normalised values for raw ones.

    Args:
        actor_network: the policy, with one action distribution per agent.
        critic_network: a module that writes the value; None: no critic loss.
        value_norm: a :class:`ValueNorm`, such as ``PopArtValueNorm()``; it becomes part of the loss.
        entropy_coeff: weight of the entropy.
        normalize_advantage: standardise the advantage over the rows that count.
        normalize_advantage_exclude_dims: dimensions with moments of their own: (-2,), each agent's.
        **options: of :class:`rl_objectives.ClipPPOLoss`.

    Raises:
        SpecError: an option is not admitted, or value_norm is given without a critic.

    Yu et al., 2021, The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games, arXiv 2103.01955.
    """


class IPPOLoss(_AgentPPOLoss):
    """Clipped PPO for the agents of a group, each with a critic of its own observation.

    The losses, shapes, masks and arguments are those of :class:`MAPPOLoss`; only what the critic reads differs, and
    that is the network's affair (``MultiAgentMLP(centralized=False)``). With several groups build one loss per group
    and name it: ``loss.set_group("predators")``.

    Args:
        actor_network: see :class:`MAPPOLoss`.
        critic_network: a module that computes each agent's value from that agent's observation; None: no critic loss.
        value_norm: see :class:`MAPPOLoss`.
        entropy_coeff: see :class:`MAPPOLoss`.
        normalize_advantage: see :class:`MAPPOLoss`.
        normalize_advantage_exclude_dims: see :class:`MAPPOLoss`.
        **options: of :class:`rl_objectives.ClipPPOLoss`.

    Raises:
        SpecError: an option is not admitted, or value_norm is given without a critic.

    de Witt et al., 2020, Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?,
    arXiv 2011.09533.
    """


def _one_per_agent(value: Tensor, dims: int) -> Tensor:
    """[*B, n] of a value [*B, n] or [*B, n, 1], where *B has so many dimensions."""
    return value.squeeze(-1) if value.ndim == dims + 2 and value.shape[-1] == 1 else value
