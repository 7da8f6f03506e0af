"""``ScriptedGame``: a parallel PettingZoo game in which agents come, go and end as a script says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_marl.pettingzoo.library import gymnasium, pettingzoo

__all__ = ["ScriptedGame"]

Life = tuple[int, int, str]


class ScriptedGame(pettingzoo.ParallelEnv):
    """Agents with lives ``(first, last, how)``: present at the times first ... last - 1, ended by step ``last``.

    The observation of agent i at time t is ``[t, i, its last action, a number drawn at the reset]``, float32. Step t
    earns ``t``, or -1 where it terminates the agent. An action of an agent that is not there is an error.

    Args:
        lives: agent -> its lives in order; ``how`` is "terminated", "truncated", "both" or "gone" (no flag at all).
        masked: give observations as ``{"observation": ..., "action_mask": ...}``; at time t agent i may not choose
            ``(t + i) % choices``.
        choices: how many actions there are.
        strict: raise at an action that the mask forbids.

    Example:
        >>> game = ScriptedGame({"a_0": [(0, 2, "terminated")], "a_1": [(0, 1, "gone"), (2, 3, "truncated")]})
        >>> _ = game.reset(seed=0)
        >>> for t in range(3):
        ...     _, rewards, *_ = game.step({agent: 0 for agent in game.agents})
        ...     print(rewards, game.agents)
        {'a_0': 1.0, 'a_1': 1.0} ['a_0']
        {'a_0': -1.0} ['a_1']
        {'a_1': 3.0} []
    """

    def __init__(
        self, lives: Mapping[str, Sequence[Life]], masked: bool = False, choices: int = 3, strict: bool = True
    ) -> None:
        self.metadata = {"name": "scripted_v0", "render_modes": []}
        self.lives, self.masked = {name: list(given) for name, given in lives.items()}, masked
        self.choices, self.strict = choices, strict
        self.possible_agents = list(lives)
        self.agents: list[str] = []
        self.time = 0
        self.rng = np.random.default_rng(0)
        self.drawn = 0.0
        self.last_action: dict[str, int] = {}
        spaces = gymnasium.spaces
        seen = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        mask = spaces.Box(0, 1, (choices,), np.int8)
        self._observed = spaces.Dict({"observation": seen, "action_mask": mask}) if masked else seen
        self._chosen = spaces.Discrete(choices)

    def observation_space(self, agent: str) -> Any:
        """The same for all."""
        return self._observed

    def action_space(self, agent: str) -> Any:
        """The same for all."""
        return self._chosen

    def state(self) -> np.ndarray:
        """The time, and how many agents there are."""
        return np.array([self.time, len(self.agents)], dtype=np.float32)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Time 0."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time, self.drawn, self.last_action = 0, float(self.rng.random()), {}
        self.agents = [name for name in self.possible_agents if self._present(name)]
        return self._observations(self.agents), {name: {"age": 0.0, "name": name} for name in self.agents}

    def step(self, actions: Mapping[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        """Time goes on by one."""
        for name in actions:
            if name not in self.agents:
                raise ValueError(f"an action for {name}, who is not there at time {self.time}")
        for name in self.agents:
            if self.strict and not self._mask(name)[actions[name]]:
                raise ValueError(f"{name} may not choose {actions[name]} at time {self.time}")
            self.last_action[name] = int(actions[name])
        acted = self.agents
        self.time += 1
        how = {name: self._end(name) for name in acted}
        terminated = {name: how[name] in ("terminated", "both") for name in acted if how[name] != "gone"}
        truncated = {name: how[name] in ("truncated", "both") for name in acted if how[name] != "gone"}
        rewards = {name: -1.0 if terminated.get(name) else float(self.time) for name in acted}
        self.agents = [name for name in self.possible_agents if self._present(name)]
        seen = list(dict.fromkeys([*(name for name in acted if how[name] != "gone"), *self.agents]))
        infos = {name: {"age": float(self.time), "name": name} for name in seen}
        return self._observations(seen), rewards, terminated, truncated, infos

    def _present(self, name: str) -> bool:
        return any(first <= self.time < last for first, last, _ in self.lives[name])

    def _end(self, name: str) -> str | None:
        return next((how for _, last, how in self.lives[name] if last == self.time), None)

    def _mask(self, name: str) -> np.ndarray:
        mask = np.ones(self.choices, dtype=np.int8)
        if self.masked:
            mask[(self.time + self.possible_agents.index(name)) % self.choices] = 0
        return mask

    def _observations(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            last = self.last_action.get(name, 0)
            seen = np.array([self.time, self.possible_agents.index(name), last, self.drawn], dtype=np.float32)
            found[name] = {"observation": seen, "action_mask": self._mask(name)} if self.masked else seen
        return found
