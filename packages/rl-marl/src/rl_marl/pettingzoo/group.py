"""One group of PettingZoo agents: its specs, its actions on their way in, its rows on their way out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Binary, Categorical, TensorSpec, Unbounded
from rl_core.errors import EnvError, SpecError
from rl_marl.pettingzoo.games import Happened
from rl_marl.pettingzoo.library import gymnasium
from rl_marl.pettingzoo.lives import Lives
from rl_marl.pettingzoo.spaces import ActionCodec, Leaf, action_codec, leaf_spec, observation_leaves

__all__ = ["AgentGroup"]


class AgentGroup:
    """Agents of equal spaces, which share one nested TensorDict of batch size ``[n]``.

    Args:
        name: of the group.
        agents: in order; the place is the row.
        env: the PettingZoo environment, for its spaces.
        first: what its first reset brought, for infos and for action masks that come with them.
        lives: of all agents.
        masked: write ``(group, "mask")`` and allow agents to be away.
        categorical: choices as numbers.
    """

    def __init__(
        self, name: str, agents: Sequence[str], env: Any, first: Happened, lives: Lives, masked: bool, categorical: bool
    ) -> None:
        self.name, self.agents, self.masked = name, list(agents), masked
        self.rows = np.array([lives.index[agent] for agent in self.agents])
        actions = [env.action_space(agent) for agent in self.agents]
        self._refuse_mixture("action", actions)
        self.codec: ActionCodec = action_codec(actions, categorical)
        observed = [env.observation_space(agent) for agent in self.agents]
        self.mask_source = self._find_mask_source(observed[0], first)
        per_agent = [self._leaves(space) for space in observed]
        self._refuse_mixture("observation", observed, [[_kind(leaf) for leaf in leaves] for leaves in per_agent])
        self.leaves: list[Leaf] = per_agent[0]
        alone = len(self.leaves) == 1 and self.leaves[0].path in ((), ("observation",))
        self.paths = [("observation",)] if alone else [("observation", *leaf.path) for leaf in self.leaves]
        self._leaf_spaces = [[leaves[i].space for leaves in per_agent] for i in range(len(self.leaves))]
        self.infos = self._find_infos(first)

    # ---------------------------------------------------------------- what there is
    def _leaves(self, space: Any) -> list[Leaf]:
        leaves = observation_leaves(space)
        if self.mask_source == "observation":
            leaves = [leaf for leaf in leaves if leaf.path != ("action_mask",)]
        return leaves

    def _find_mask_source(self, space: Any, first: Happened) -> str | None:
        """Where masks over the choices come from: the observation, the infos, or nowhere."""
        choices = self.codec.choices
        if choices is None:
            return None
        if isinstance(space, gymnasium.spaces.Dict):
            mask = space.spaces.get("action_mask")
            if mask is not None and mask.shape == (choices,):
                return "observation"
        masks = [first.infos[agent].get("action_mask") for agent in self.agents if agent in first.infos]
        given = [mask is not None and np.shape(mask) == (choices,) for mask in masks]
        return "info" if any(given) else None

    def _find_infos(self, first: Happened) -> dict[str, np.ndarray]:
        """Numeric entries that all agents of the group have at the first reset: name -> a value of zeros."""
        present = [first.infos[agent] for agent in self.agents if agent in first.infos]
        found: dict[str, np.ndarray] = {}
        for key in present[0] if present else {}:
            values = [np.asarray(info.get(key)) for info in present]
            same = len({(array.shape, array.dtype) for array in values}) == 1
            if key != "action_mask" and same and values[0].dtype.kind in "biuf":
                found[str(key)] = np.zeros(values[0].shape or (1,), dtype=values[0].dtype)
        return found

    def _refuse_mixture(self, what: str, spaces: Sequence[Any], kinds: Sequence[Any] | None = None) -> None:
        kinds = [_action_kind(space) for space in spaces] if kinds is None else kinds
        for agent, space, kind in zip(self.agents, spaces, kinds, strict=True):
            if kind != kinds[0]:
                raise SpecError(
                    f"the agents of the group {self.name!r} differ in their {what} space: {self.agents[0]!r} has "
                    f"{spaces[0]}, {agent!r} has {space}. Rows of a group have one shape; give them groups of their "
                    "own with group_map={...} or MarlGroupMapType.ONE_GROUP_PER_AGENT"
                )

    # ---------------------------------------------------------------- specs
    def observation_specs(self) -> dict[tuple[str, ...], TensorSpec]:
        """Everything of the group that carries over: observations, masks, infos."""
        count = len(self.agents)
        specs: dict[tuple[str, ...], TensorSpec] = {
            path: leaf_spec(spaces, self.masked) for path, spaces in zip(self.paths, self._leaf_spaces, strict=True)
        }
        if self.mask_source is not None:
            specs["action_mask",] = Binary(shape=(count, self.codec.choices or 0), dtype=torch.bool)
        if self.masked:
            specs["mask",] = Binary(shape=(count,), dtype=torch.bool)
        for key, zero in self.infos.items():
            specs["info", key] = Unbounded(shape=(count, *zero.shape), dtype=torch.from_numpy(zero).dtype)
        return specs

    def end_specs(self) -> dict[tuple[str, ...], TensorSpec]:
        """The group's end flags."""
        flag = Categorical(2, shape=(len(self.agents), 1), dtype=torch.bool)
        return {(name,): flag.clone() for name in ("done", "terminated", "truncated")}

    # ---------------------------------------------------------------- in
    def decode(self, actions: Tensor, actors: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """The actions of those who act now; rows of all others are not read."""
        rows = actions.detach().cpu().numpy()
        for row, agent in enumerate(self.agents):
            if agent in actors:
                yield agent, self.codec.decode(rows[row])

    # ---------------------------------------------------------------- out
    def read(self, happened: Happened, lives: Lives, device: torch.device | None) -> TensorDictBase:
        """What carries over, after a reset or a step: zeros for the rows of agents that are away."""
        count = len(self.agents)
        arrays = [np.zeros((count, *leaf.shape), dtype=leaf.dtype) for leaf in self.leaves]
        infos = {key: np.zeros((count, *zero.shape), dtype=zero.dtype) for key, zero in self.infos.items()}
        seen = (lives.alive | lives.was_alive)[self.rows]
        for row in np.flatnonzero(seen):
            agent = self.agents[row]
            observation = self._observation(agent, happened, lives)
            if observation is not None:
                for leaf, array in zip(self.leaves, arrays, strict=True):
                    array[row] = leaf.read(observation)
            given = happened.infos.get(agent, {})
            for key, array in infos.items():
                if given.get(key) is not None:
                    array[row] = given[key]
        data: dict[str, Any] = {}
        for path, array in zip(self.paths, arrays, strict=True):
            _put(data, path, torch.from_numpy(array))
        if self.mask_source is not None:
            data["action_mask"] = torch.from_numpy(self._action_masks(happened, lives))
        if self.masked:
            data["mask"] = torch.from_numpy(lives.acting[self.rows])
        for key, array in infos.items():
            _put(data, ("info", key), torch.from_numpy(array))
        return _nest(data, count, device)

    def _observation(self, agent: str, happened: Happened, lives: Lives) -> Any:
        observation = happened.observations.get(agent)
        if observation is None and lives.alive[lives.index[agent]]:
            raise EnvError(
                f"the agent {agent!r} of the group {self.name!r} is among the environment's agents, but the "
                "environment gave it no observation"
            )
        return observation

    def _action_masks(self, happened: Happened, lives: Lives) -> np.ndarray:
        """Bool ``[n, K]``; whoever does not act may do anything, so that no row forbids everything."""
        masks = np.ones((len(self.agents), self.codec.choices or 0), dtype=bool)
        source: Mapping[str, Any] = happened.observations if self.mask_source == "observation" else happened.infos
        for row in np.flatnonzero(lives.acting[self.rows]):
            agent = self.agents[row]
            mask = source.get(agent, {}).get("action_mask")
            if mask is None:
                continue
            masks[row] = mask
            if not masks[row].any():
                raise EnvError(f"the agent {agent!r} of the group {self.name!r} must act, but its mask forbids it all")
        return masks

    def outcome(self, happened: Happened, lives: Lives, device: torch.device | None) -> dict[str, Tensor]:
        """Rewards (of agents that were alive) and end flags, ``[n, 1]``."""
        earned = [
            float(happened.rewards.get(agent, 0.0)) if lives.was_alive[row] else 0.0
            for agent, row in zip(self.agents, self.rows, strict=True)
        ]
        results = {
            "reward": torch.tensor(earned, dtype=torch.float32).unsqueeze(-1),
            "terminated": torch.from_numpy(lives.terminated[self.rows]).unsqueeze(-1),
            "truncated": torch.from_numpy(lives.truncated[self.rows]).unsqueeze(-1),
        }
        return results if device is None else {key: value.to(device) for key, value in results.items()}

    def require_everyone(self, lives: Lives) -> None:
        """Without a mask, every agent stays until the episode ends.

        Raises:
            EnvError: one is away; the group, the agent and the cure are named.
        """
        if self.masked:
            return
        for agent, row in zip(self.agents, self.rows, strict=True):
            if not lives.alive[row]:
                how = "terminated" if lives.terminated[row] else "was truncated" if lives.truncated[row] else "is away"
                raise EnvError(
                    f"the agent {agent!r} of the group {self.name!r} {how} while the episode goes on, so its rows mean "
                    f"nothing from here on: pass use_mask=True, which writes ({self.name!r}, 'mask') to tell who acts, "
                    "or done_on_any=True, which ends the episode with the first agent"
                )


def _kind(leaf: Leaf) -> tuple[Any, ...]:
    space = leaf.space
    same = (space.n, space.start) if isinstance(space, gymnasium.spaces.Discrete) else ()
    return (leaf.path, type(space), leaf.shape, leaf.dtype, *same)


def _action_kind(space: Any) -> tuple[Any, ...]:
    kinds = gymnasium.spaces
    if isinstance(space, kinds.Discrete):
        return (kinds.Discrete, int(space.n), int(space.start))
    if isinstance(space, kinds.MultiDiscrete):
        return (kinds.MultiDiscrete, tuple(space.nvec.reshape(-1)), tuple(space.start.reshape(-1)))
    return (type(space), space.shape, space.dtype)


def _put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        data = data.setdefault(name, {})
    data[path[-1]] = value


def _nest(data: dict[str, Any], count: int, device: torch.device | None) -> TensorDictBase:
    return TensorDict(
        {key: _nest(value, count, device) if isinstance(value, dict) else value for key, value in data.items()},
        batch_size=[count],
        device=device,
    )
