"""One group of VMAS agents: its specs, its actions on their way in, its rows on their way out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded
from rl_core.errors import SpecError

__all__ = ["VmasGroup"]


class VmasGroup:
    """Agents of equal spaces, which share one nested TensorDict of batch size ``[N, n]``.

    Args:
        name: of the group.
        indices: places of its agents in the simulator's list; the order is that of the rows.
        simulator: the VMAS environment.
        observations: of every agent, as the simulator gives them.
        infos: of every agent.
        categorical: choices as numbers.
    """

    def __init__(
        self,
        name: str,
        indices: Sequence[int],
        simulator: Any,
        observations: Sequence[Any],
        infos: Sequence[dict[str, Any]],
        categorical: bool,
    ) -> None:
        self.name, self.indices = name, list(indices)
        self.agents = [simulator.agents[i].name for i in self.indices]
        self.size = torch.Size([simulator.num_envs, len(self.indices)])
        self.device = simulator.device
        spaces = [simulator.get_agent_action_space(simulator.agents[i]) for i in self.indices]
        self._refuse_mixture("action space", [_action_form(space) for space in spaces])
        self._refuse_mixture("observation", [_form(observations[i]) for i in self.indices])
        self.action_spec, self._decode = self._action(spaces, simulator.continuous_actions, categorical)
        self._example = observations[self.indices[0]]
        first = infos[self.indices[0]]
        self.info_keys = [key for key in first if all(key in infos[i] for i in self.indices)]
        self._info_example = {key: first[key] for key in self.info_keys}
        self._info_dtypes = [(key, first[key].dtype) for key in self.info_keys]

    def _refuse_mixture(self, what: str, forms: Sequence[Any]) -> None:
        for agent, form in zip(self.agents, forms, strict=True):
            if form != forms[0]:
                raise SpecError(
                    f"the agents of the group {self.name!r} differ in their {what}: {self.agents[0]!r} has {forms[0]}, "
                    f"{agent!r} has {form}. Rows of a group have one shape; give them groups of their own with "
                    "group_map={...} or MarlGroupMapType.ONE_GROUP_PER_AGENT"
                )

    # ---------------------------------------------------------------- specs
    def _action(
        self, spaces: Sequence[Any], continuous: bool, categorical: bool
    ) -> tuple[TensorSpec, Callable[[Tensor], Tensor]]:
        """The action spec, and what makes of its values ``[N, n, parts]``, the simulator's own form."""
        first, size, device = spaces[0], self.size, self.device
        if continuous:
            low, high = (
                torch.stack([torch.as_tensor(getattr(space, side), device=device) for space in spaces])
                for side in ("low", "high")
            )
            shape = (*size, low.shape[-1])
            return Bounded(low.expand(shape), high.expand(shape), shape, device, torch.float32), _as_it_is
        if hasattr(first, "nvec"):
            nvec = torch.as_tensor(first.nvec, device=device)
            if categorical:
                return MultiCategorical(nvec, (*size, len(nvec)), device), _as_it_is
            hot = MultiOneHot(nvec, (*size, int(nvec.sum())), device)
            return hot, hot.to_categorical
        if categorical:
            return Categorical(int(first.n), size, device), _one_part
        return OneHot(int(first.n), (*size, int(first.n)), device), _hot_part

    def observation_spec(self) -> Composite:
        """Everything of the group that carries over: observations and infos."""
        spec = Composite({"observation": self._unbounded(self._example)}, shape=self.size)
        if self.info_keys:
            spec.set("info", self._unbounded(self._info_example))
        return spec

    def _unbounded(self, example: Any) -> TensorSpec:
        if isinstance(example, dict):
            return Composite({key: self._unbounded(value) for key, value in example.items()}, shape=self.size)
        shape = (*self.size, *(example.shape[1:] or (1,)))
        return Unbounded(shape=shape, device=self.device, dtype=example.dtype)

    def reward_spec(self) -> Composite:
        """The group's rewards."""
        reward = Unbounded(shape=(*self.size, 1), device=self.device, dtype=torch.float32)
        return Composite({"reward": reward}, shape=self.size)

    # ---------------------------------------------------------------- data
    def act(self, action: Tensor, actions: list[Any]) -> None:
        """Put the group's actions ``[N, n, ...]`` into the simulator's list, one view for each agent."""
        for i, part in zip(self.indices, self._decode(action).unbind(1), strict=True):
            actions[i] = part

    def read(
        self,
        observations: Sequence[Any],
        infos: Sequence[dict[str, Any]],
        rewards: Sequence[Tensor] | None = None,
    ) -> TensorDictBase:
        """The group's rows, stacked: one new tensor for each leaf."""
        rows: dict[str, Any] = {"observation": self._stack([observations[i] for i in self.indices])}
        if self.info_keys:
            given = [infos[i] for i in self.indices]
            # The dtype is the first reset's: some scenarios change it from call to call.
            leaves = {key: self._stack([info[key] for info in given]).to(dtype) for key, dtype in self._info_dtypes}
            rows["info"] = TensorDict(leaves, batch_size=self.size, device=self.device)
        if rewards is not None:
            rows["reward"] = torch.stack([rewards[i] for i in self.indices], 1).view(*self.size, 1)
        return TensorDict(rows, batch_size=self.size, device=self.device)

    def _stack(self, values: list[Any]) -> Any:
        if isinstance(values[0], dict):
            leaves = {key: self._stack([value[key] for value in values]) for key in values[0]}
            return TensorDict(leaves, batch_size=self.size, device=self.device)
        stacked = torch.stack(values, 1)
        return stacked.unsqueeze(-1) if stacked.ndim == 2 else stacked


def _as_it_is(action: Tensor) -> Tensor:
    return action


def _one_part(action: Tensor) -> Tensor:
    return action.unsqueeze(-1)


def _hot_part(action: Tensor) -> Tensor:
    return (action.byte() if action.dtype is torch.bool else action).argmax(-1, keepdim=True)


def _form(example: Any) -> Any:
    """Shape and dtype of one agent's observation, by key where it is a dict."""
    if isinstance(example, dict):
        return {key: _form(value) for key, value in example.items()}
    return (tuple(example.shape[1:]), example.dtype)


def _action_form(space: Any) -> Any:
    nvec = getattr(space, "nvec", None)
    return (type(space).__name__, tuple(space.shape), getattr(space, "n", None), None if nvec is None else tuple(nvec))
