"""The two APIs of PettingZoo behind one: what a reset or a step brought, whoever acted.

:class:`ParallelGame` steps all agents at once. :class:`TurnGame` steps one agent and takes every dead agent's ``None``
step by itself, so that nobody has to act for the dead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rl_core.errors import EnvError

__all__ = ["Game", "Happened", "ParallelGame", "TurnGame"]


@dataclass(frozen=True)
class Happened:
    """What a reset or a step brought.

    Attributes:
        present: the agents that the game lists now; an agent that has just ended may be missing already.
        actors: those that must act next.
        observations: by agent; the last one of an agent that has just ended is among them where the game gives it.
        rewards: by agent, earned in this very step.
        terminated: by agent.
        truncated: by agent.
        infos: by agent.
    """

    present: Sequence[str]
    actors: Sequence[str]
    observations: Mapping[str, Any]
    infos: Mapping[str, Mapping[str, Any]]
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: Mapping[str, bool] = field(default_factory=dict)
    truncated: Mapping[str, bool] = field(default_factory=dict)


class Game(Protocol):
    """A PettingZoo environment of either kind."""

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Happened:
        """Start an episode."""
        ...

    def step(self, actions: Mapping[str, Any]) -> Happened:
        """Act, with an action for each of the last ``actors``."""
        ...


class ParallelGame:
    """A ``pettingzoo.ParallelEnv``: every agent that is present acts.

    Args:
        env: the environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Happened:
        observations, infos = self.env.reset(seed=seed, options=options)
        present = list(self.env.agents)
        return Happened(present, present, observations, infos)

    def step(self, actions: Mapping[str, Any]) -> Happened:
        observations, rewards, terminated, truncated, infos = self.env.step(dict(actions))
        present = list(self.env.agents)
        return Happened(present, present, observations, infos, rewards, terminated, truncated)


class TurnGame:
    """A ``pettingzoo.AECEnv``: the agent that is selected acts; all others wait.

    Args:
        env: the environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> Happened:
        self.env.reset(seed=seed, options=options)
        return self._look({}, {}, {}, {}, dict(self.env.infos))

    def step(self, actions: Mapping[str, Any]) -> Happened:
        env = self.env
        env.step(actions[env.agent_selection])
        rewards, infos = dict(env.rewards), dict(env.infos)
        terminated, truncated = dict(env.terminations), dict(env.truncations)
        ended = [agent for agent in env.agents if terminated.get(agent) or truncated.get(agent)]
        last = {agent: env.observe(agent) for agent in ended}
        self._bury()
        return self._look(rewards, terminated, truncated, last, infos)

    def _look(
        self,
        rewards: Mapping[str, float],
        terminated: Mapping[str, bool],
        truncated: Mapping[str, bool],
        last: Mapping[str, Any],
        infos: Mapping[str, Any],
    ) -> Happened:
        """Everyone who is present observes, the actor too; its legal actions are those of its turn."""
        env = self.env
        present = list(env.agents)
        actors = [env.agent_selection] if present else []
        observations = {**last, **{agent: env.observe(agent) for agent in present}}
        return Happened(present, actors, observations, infos, rewards, terminated, truncated)

    def _bury(self) -> None:
        """Take the ``None`` step of every dead agent that is selected, until a living one is."""
        env = self.env
        while env.agents:
            selected = env.agent_selection
            if not (env.terminations[selected] or env.truncations[selected]):
                return
            count = len(env.agents)
            env.step(None)
            if len(env.agents) >= count:
                raise EnvError(
                    f"{env} keeps the agent {selected!r} that has ended, after its step with the action None; an AEC "
                    "environment begins step() with: if the selected agent has ended, return "
                    "self._was_dead_step(action)"
                )
