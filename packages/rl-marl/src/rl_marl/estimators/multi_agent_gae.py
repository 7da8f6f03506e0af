"""GAE for a group of agents: team signals reach every agent, and each agent's own rows are its trajectory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.estimators import EstimatorKeys
from rl_core.keys import Key, join, parent_path
from rl_core.losses.keys import entry, quoted
from rl_marl.functional.agents import over_agents
from rl_marl.masks import group_mask, rows_mask
from rl_objectives.estimators.base import Steps
from rl_objectives.estimators.gae import GAE
from rl_objectives.estimators.trajectories import raised_discount, time_axis
from rl_objectives.functional.gae import generalized_advantage_estimate
from rl_objectives.functional.masked_gae import masked_generalized_advantage_estimate
from rl_objectives.functional.ppo import standardize
from rl_objectives.losses.critic import check_same_shape

__all__ = ["AgentSteps", "MultiAgentGAE", "MultiAgentKeys"]


@dataclass(frozen=True)
class MultiAgentKeys(EstimatorKeys):
    """The entries of estimators of groups: per agent [*B, T, n, 1], or of the team [*B, T, 1]."""

    agent_mask: Key = ("agents", "mask")
    """Read if present: bool [*B, T, n], True where the agent acts in the row."""
    team_reward: Key = field(default="reward", metadata=entry(under_next=True))
    """Read where ``reward`` is absent."""
    team_done: Key = field(default="done", metadata=entry(under_next=True))
    """Read if present: where the team is done no agent's trajectory goes on. Stands in for ``done``."""
    team_terminated: Key = field(default="terminated", metadata=entry(under_next=True))
    """Read where ``done`` and ``terminated`` are absent."""


@dataclass(frozen=True)
class AgentSteps(Steps):
    """A batch's tensors as they were read, each per agent [*B, T, n, 1] or of the team [*B, T, 1]."""

    cut: Tensor | None
    """bool: the team's end flag, beside ``done``."""
    acts: Tensor | None
    """bool [*B, T, n], or None where no mask of agents was read."""
    spacing: Tensor | None
    """Steps from an observation to its successor."""
    batch_size: torch.Size
    counted: tuple[Key, torch.Size] | None
    """Key and shape of an entry with a dimension of agents."""


class MultiAgentGAE(GAE):
    r"""Generalised advantage estimation for the agents of a group.

    .. math::
        \delta_t = r_t + \gamma (1 - m_t) V'_t - V_t, \qquad A_t = \delta_t + \gamma \lambda (1 - d_t) A_{t+1}

    for each agent, over the rows in which it acts. Writes ``advantage``, ``value_target`` (= A + V), ``state_value``
    and ``("next", "state_value")``, each [*B, T, n, 1].

    **Signals.** Value, reward, done and terminated may each be per agent [*B, T, n, 1] or of the team [*B, T, 1]; a
    team's entry holds for every agent. Where ``reward`` or ``done`` is absent, ``team_reward`` or ``team_done`` (the
    root's) is read instead, and ``team_terminated`` with the latter. Where the team is done, no agent's trajectory goes
    on: an agent that was not done itself is cut there and bootstraps. If all entries are the team's, so is the result.

    **Masks.** Rows whose ``mask`` is False do not exist: nothing flows across them. Rows whose ``agent_mask`` is False
    exist, but the agent does not act in them (it is dead, or it waits for its turn). Each agent's result equals GAE on
    the trajectory made of its own rows alone:

    - reward: what its action earned until it acts again. Rewards that arrive while it waits are added to its latest own
      row, so it makes no difference whether the environment credits them there itself.
    - end flags raised while it waits end its latest own row. After an end nothing counts until its next own row (a dead
      agent that comes back starts a new trajectory).
    - next value: V of its next own row; at an end and at the batch's last row the stored next value of that row.
    - the discount is applied once per own row.
    - rewards before an agent's first own row of the batch belong to an action outside of it, and are dropped.

    So a batch of agents in turn is taken as the environment wrote it. ``credit_turns`` before it gives the same where
    the batch ends with its episodes; elsewhere it leaves the unfinished last turn of each agent out.

    The mask of a row says who acts *in* it: the row in which an agent dies is its own, the following are not. A death
    must be flagged by the agent's done and terminated; without these a dead agent looks like one that waits, and what
    the team earns after its death is credited to its last action. In masked rows the advantage is 0 and the value
    target is V. Without masks the compiled scan of :class:`GAE` runs.

    Args:
        agent_dim: index of the agents in the values, [*B, T, n, 1]: -2. Kept for compatibility.
        gamma: discount per step.
        lmbda: trace decay, in [0, 1].
        average_gae: standardise the advantage, for each agent over its own rows; the target stays raw.
        **options: of :class:`GAE`.

    Raises:
        SpecError: agent_dim is another dimension, or lmbda is outside [0, 1].

    Schulman et al., 2015, High-Dimensional Continuous Control Using Generalized Advantage Estimation, eq. 16,
    arXiv 1506.02438.

    >>> from tensordict import TensorDict
    >>> ends = torch.tensor([[False], [False], [True]])
    >>> group = TensorDict({"state_value": torch.zeros(3, 2, 1)}, [3, 2])
    >>> step = {"agents": group.clone(), "reward": torch.ones(3, 1), "done": ends, "terminated": ends}
    >>> gae = MultiAgentGAE(gamma=1.0, lmbda=1.0)
    >>> gae.set_keys(value=("agents", "state_value"))
    >>> gae(TensorDict({"agents": group, "next": step}, [3]))["advantage"].squeeze(-1)
    tensor([[3., 3.],
            [2., 2.],
            [1., 1.]])
    """

    default_keys: ClassVar[Any] = MultiAgentKeys()

    def __init__(self, *, agent_dim: int = -2, gamma: float | Tensor, lmbda: float | Tensor, **options: Any) -> None:
        super().__init__(gamma=gamma, lmbda=lmbda, **options)
        if agent_dim != -2:
            raise SpecError(f"agent_dim is -2, as values of a group are [*B, T, n, 1]; got {agent_dim}")
        self.agent_dim = agent_dim

    def read_steps(self, batch: TensorDictBase) -> AgentSteps:
        """The batch's rewards, end flags and masks, from the group or from the root."""
        owner = type(self).__name__
        time = time_axis(batch, self.time_dim, owner)
        reward = self._first(batch, "reward", "team_reward")
        if reward is None:
            raise self.missing(batch, "reward")
        done, terminated, cut = self._ends(batch)
        counted = self._counted(batch, (("reward", reward), ("done", done), ("terminated", terminated)))
        acts = None
        if counted is not None and batch.get(self.path("agent_mask"), None) is not None:
            n_agents = counted[1][batch.ndim]
            acts = group_mask(batch, self.path("mask"), self.path("agent_mask"), n_agents)
        return AgentSteps(
            gamma=self.gamma.to(reward.device) if isinstance(self.gamma, Tensor) else self.gamma,
            reward=reward,
            done=done,
            terminated=terminated,
            time=time,
            mask=rows_mask(batch, self.path("mask")),
            cut=cut,
            acts=acts,
            spacing=batch.get(self.path("steps_to_next_obs"), None),
            batch_size=batch.batch_size,
            counted=counted,
        )

    def estimate(self, steps: Steps, value: Tensor, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """The formula, over own rows, standardised if asked."""
        assert isinstance(steps, AgentSteps)
        steps, value, next_value = self._aligned(steps, value, next_value)
        gamma = raised_discount(steps.gamma, steps.spacing, steps.reward)
        lmbda = self.lmbda.to(steps.reward.device) if isinstance(self.lmbda, Tensor) else self.lmbda
        inputs = (gamma, lmbda, value, next_value, steps.reward, steps.done, steps.terminated)
        acts = _trailing(steps.mask if steps.acts is None else steps.acts, value.ndim)
        if acts is None:
            advantage, target = generalized_advantage_estimate(*inputs, time_dim=steps.time)
        else:
            exists = _trailing(steps.mask, value.ndim)
            advantage, target = masked_generalized_advantage_estimate(*inputs, acts, exists, time_dim=steps.time)
        if self.average_gae:
            apart = (value.ndim - 2,) if value.ndim == len(steps.batch_size) + 2 else ()
            advantage = standardize(advantage, acts, apart, floor=1e-4)
            advantage = advantage if acts is None else advantage.masked_fill(~acts, 0)
        return advantage, target

    # ---- reading

    def _first(self, batch: TensorDictBase, name: str, team_name: str) -> Tensor | None:
        """The group's entry, else the team's."""
        found = batch.get(self.path(name), None)
        return batch.get(self.path(team_name), None) if found is None else found

    def _ends(self, batch: TensorDictBase) -> tuple[Tensor, Tensor, Tensor | None]:
        """(done, terminated, the team's done beside them)."""
        team = batch.get(self.path("team_done"), None)
        own = batch.get(self.path("done"), None)
        done = team if own is None else own
        if done is None:
            raise self.missing(batch, "done")
        terminated = batch.get(self.path("terminated"), None)
        if terminated is None:
            terminated = batch.get(self.path("team_terminated"), None) if own is None else None
        terminated = done if terminated is None else terminated
        flags = {"team_done": team} if own is None else {"done": own, "team_done": team}
        for name, flag in {**flags, "terminated": terminated}.items():
            if flag is not None and flag.dtype is not torch.bool:
                key = quoted(self.path(name))
                raise SpecError(f"{type(self).__name__}: {key} must be a bool tensor; got {flag.dtype}")
        return done, terminated, team

    def _counted(self, batch: TensorDictBase, signals: tuple[tuple[str, Tensor], ...]) -> tuple[Key, torch.Size] | None:
        """The key and shape of an entry with a dimension of agents: a signal, the mask of agents, the group itself."""
        dims = batch.ndim
        for name, signal in signals:
            if signal.ndim == dims + 2:
                return self.path(name), signal.shape
        mask = batch.get(self.path("agent_mask"), None)
        if mask is not None and mask.ndim > dims:
            return self.path("agent_mask"), mask.shape
        # What is written into a group is per agent: its TensorDict has the agents in its batch size.
        advantage = self.path("advantage")
        group = batch.get(parent_path(advantage), None) if parent_path(advantage) else None
        if isinstance(group, TensorDictBase) and group.ndim > dims:
            return advantage, group.batch_size
        return None

    # ---- one layout

    def _aligned(self, steps: AgentSteps, value: Tensor, next_value: Tensor) -> tuple[AgentSteps, Tensor, Tensor]:
        """Everything per agent, or everything the team's where no entry has a dimension of agents."""
        owner, key, dims = type(self).__name__, self.path("value"), len(steps.batch_size)
        known_by = (key, value.shape) if value.ndim == dims + 2 else steps.counted

        def layout(found_at: Key, entry: Tensor) -> Tensor:
            if known_by is None:
                check_same_shape(owner, (key, value), (found_at, entry))
                return entry
            return over_agents(owner, (found_at, entry), steps.batch_size, known_by[1][dims], known_by)

        done = layout(self.path("done"), steps.done)
        if steps.cut is not None:
            done = done | layout(self.path("team_done"), steps.cut)
        spacing = steps.spacing
        aligned = replace(
            steps,
            reward=layout(self.path("reward"), steps.reward),
            done=done,
            terminated=layout(self.path("terminated"), steps.terminated),
            spacing=None if spacing is None else layout(self.path("steps_to_next_obs"), spacing),
        )
        return aligned, layout(key, value), layout(join("next", key), next_value)


def _trailing(mask: Tensor | None, ndim: int) -> Tensor | None:
    """A mask with trailing dimensions of size one, so that it broadcasts to values."""
    return None if mask is None else mask.reshape(mask.shape + (1,) * (ndim - mask.ndim))
