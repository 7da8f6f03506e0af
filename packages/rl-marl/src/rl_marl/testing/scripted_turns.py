"""``ScriptedTurns``: a turn-based PettingZoo game in which agents end, join and earn as a script says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_marl.pettingzoo.library import gymnasium, pettingzoo

__all__ = ["ScriptedTurns"]


class ScriptedTurns(pettingzoo.AECEnv):
    """Agents that move in turn; move m (from 1) pays and ends whom the script says.

    The observation of agent i after m moves is ``[m, i, a number drawn at the reset]``, float32, for everybody. With
    ``masked``, whoever is not in turn has a mask of zeros, as PettingZoo's own games do; the actor of move m may not
    choose ``m % choices``.

    Args:
        order: the agents, in the order of their turns.
        length: moves until everybody who is left is truncated.
        rewards: move -> agent -> reward.
        ends: agent -> ``(move, how)``; ``how`` is "terminated", "truncated" or "both".
        joins: agent -> the move after which it joins (again, where it has ended); the others are there from the start.
        masked: give observations as ``{"observation": ..., "action_mask": ...}``.
        choices: how many actions there are.
        strict: raise at an action that the mask forbids.
    """

    def __init__(
        self,
        order: Sequence[str],
        length: int,
        rewards: Mapping[int, Mapping[str, float]] | None = None,
        ends: Mapping[str, tuple[int, str]] | None = None,
        joins: Mapping[str, int] | None = None,
        masked: bool = False,
        choices: int = 3,
        strict: bool = True,
    ) -> None:
        super().__init__()
        self.metadata = {"name": "scripted_turns_v0", "render_modes": []}
        self.possible_agents, self.length = list(order), length
        self.script, self.ends, self.joins = dict(rewards or {}), dict(ends or {}), dict(joins or {})
        self.masked, self.choices, self.strict = masked, choices, strict
        self.rng = np.random.default_rng(0)
        spaces = gymnasium.spaces
        seen = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        mask = spaces.Box(0, 1, (choices,), np.int8)
        self._observed = spaces.Dict({"observation": seen, "action_mask": mask}) if masked else seen
        self._chosen = spaces.Discrete(choices)

    def observation_space(self, agent: str) -> Any:
        """The same for all."""
        return self._observed

    def action_space(self, agent: str) -> Any:
        """The same for all."""
        return self._chosen

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """No moves yet."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.moves, self.drawn = 0, float(self.rng.random())
        self.agents: list[str] = []
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        for name in self.possible_agents:
            if name not in self.joins or (name in self.ends and self.ends[name][0] < self.joins[name]):
                self._add(name)
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        """What the agent sees, in turn or not."""
        seen = np.array([self.moves, self.possible_agents.index(agent), self.drawn], dtype=np.float32)
        return {"observation": seen, "action_mask": self._mask(agent)} if self.masked else seen

    def step(self, action: Any) -> None:
        """One move."""
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        if self.strict and self.masked and not self._mask(name)[action]:
            raise ValueError(f"{name} may not choose {action} in move {self.moves + 1}")
        self._cumulative_rewards[name] = 0
        self._clear_rewards()
        self.moves += 1
        self.rewards.update({agent: r for agent, r in self.script.get(self.moves, {}).items() if agent in self.agents})
        self._flag()
        self._accumulate_rewards()
        for agent, move in self.joins.items():
            if move == self.moves:
                self._add(agent)
        self.agent_selection = self._following(name)
        self._deads_step_first()

    def _flag(self) -> None:
        for agent in self.agents:
            move, how = self.ends.get(agent, (0, ""))
            if move == self.moves:
                self.terminations[agent] = how in ("terminated", "both")
                self.truncations[agent] = how in ("truncated", "both")
            elif self.moves >= self.length:
                self.truncations[agent] = not self.terminations[agent]

    def _add(self, name: str) -> None:
        self.agents.append(name)
        self.rewards[name] = self._cumulative_rewards[name] = 0
        self.terminations[name] = self.truncations[name] = False
        self.infos[name] = {}

    def _following(self, name: str) -> str:
        """The next in the order who is there and lives; the mover itself where nobody is."""
        count, at = len(self.possible_agents), self.possible_agents.index(name)
        for step in range(1, count + 1):
            candidate = self.possible_agents[(at + step) % count]
            alive = not (self.terminations.get(candidate, True) or self.truncations.get(candidate, True))
            if candidate in self.agents and alive:
                return candidate
        return name

    def _mask(self, agent: str) -> np.ndarray:
        if agent != self.agent_selection:
            return np.zeros(self.choices, dtype=np.int8)
        mask = np.ones(self.choices, dtype=np.int8)
        mask[(self.moves + 1) % self.choices] = 0
        return mask
