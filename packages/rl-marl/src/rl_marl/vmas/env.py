"""``VmasWrapper`` and ``VmasEnv``: the vectorised simulator VMAS as one grouped environment of batch size ``[N]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_core import Categorical, Composite, EnvBase
from rl_core.envs.partial_reset import reset_rows
from rl_core.errors import EnvError, PolicyError, UnknownNameError
from rl_core.registry.errors_text import close_match
from rl_marl.groups import GroupMap, MarlGroupMapType, group_by_prefix, numbered_prefix, resolve_group_map
from rl_marl.vmas.group import VmasGroup
from rl_marl.vmas.library import vmas
from rl_marl.vmas.streams import RandomStream

__all__ = ["VmasEnv", "VmasWrapper", "all_scenarios"]


class VmasWrapper(EnvBase):
    """A VMAS environment as a grouped environment of batch size ``[N]``, its tensors as the simulator makes them.

    Group g holds ``(g, "observation")`` [N, n, F], ``(g, "action")``, ``(g, "reward")`` [N, n, 1] under "next", and
    ``(g, "info", k)`` for the infos that all its agents have. The end flags lie at the root, [N, 1]: a scenario's own
    end is ``terminated``, ``max_steps`` is ``truncated``. Random draws come from a stream of this environment alone.

    Args:
        env: from ``vmas.make_env``, with tuples, not dicts, of agents (``dict_spaces=False``); it is switched to report
            terminations and truncations apart.
        categorical_actions: write choices as numbers instead of one-hot vectors.
        group_map: group -> agents, or a :class:`~rl_marl.MarlGroupMapType`. Default: agents named ``<name>_<int>`` by
            their name ("agent" alone becomes "agents"); where one is named otherwise, all in one group "agents".

    Raises:
        SpecError: a grouping that is none; agents of one group whose shapes differ.

    Example:
        >>> import vmas
        >>> env = VmasWrapper(vmas.make_env("navigation", num_envs=2, n_agents=3))
        >>> env.rollout(5)["agents", "observation"].shape
        torch.Size([2, 5, 3, 18])
    """

    def __init__(
        self,
        env: Any,
        categorical_actions: bool = True,
        group_map: Mapping[str, Sequence[str]] | MarlGroupMapType | None = None,
    ) -> None:
        if not isinstance(env, vmas.simulator.environment.Environment):
            raise TypeError(f"VmasWrapper takes what vmas.make_env gives (without a wrapper), got {type(env).__name__}")
        if env.dict_spaces:
            raise EnvError("VmasWrapper needs an environment with lists of agents: vmas.make_env(dict_spaces=False)")
        super().__init__(device=env.device, batch_size=[env.num_envs])
        self.simulator = env
        self.scenario_name = type(env.scenario).__name__
        env.terminated_truncated = True
        names = [agent.name for agent in env.agents]
        self.group_map: GroupMap = resolve_group_map(group_map, names, _default_groups(names))
        self._stream = RandomStream(type(env).vmas_random_state)
        self._next_seed: int | None = None
        self._was_reset = False
        self._categorical = categorical_actions
        self._bind()

    @property
    def agents(self) -> list[str]:
        """Every agent, in the simulator's order."""
        return [agent.name for agent in self.simulator.agents]

    def _bind(self) -> None:
        """Groups and specs; the simulator is reset, to see what it gives."""
        with self._stream.in_force():
            observations, infos = self.simulator.reset(return_info=True)
        place = {agent: i for i, agent in enumerate(self.agents)}
        self._groups = [
            VmasGroup(name, [place[agent] for agent in members], self.simulator, observations, infos, self._categorical)
            for name, members in self.group_map.items()
        ]
        batch, groups = self.batch_size, self._groups
        self.observation_spec = Composite({g.name: g.observation_spec() for g in groups}, shape=batch)
        self.full_action_spec = Composite(
            {g.name: Composite({"action": g.action_spec}, shape=g.size) for g in groups}, shape=batch
        )
        self.full_reward_spec = Composite({g.name: g.reward_spec() for g in groups}, shape=batch)
        flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
        self.full_done_spec = Composite(
            {name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=batch
        )

    # ---------------------------------------------------------------- data
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if kwargs:
            raise TypeError(f"reset of {self} takes no keyword arguments, got {', '.join(kwargs)}; see set_seed")
        rows = reset_rows(tensordict)
        simulator = self.simulator
        with self._stream.in_force():
            seed = self._take_seed()
            if seed is not None:
                simulator.seed(seed)
            if rows is None or bool(rows.all()):
                observations, infos = simulator.reset(return_info=True)
            else:
                for row in rows.nonzero().flatten().tolist():
                    simulator.reset_at(row, return_observations=False)
                observations, infos = simulator.get_from_scenario(
                    get_observations=True, get_rewards=False, get_infos=True, get_dones=False
                )
        data = {group.name: group.read(observations, infos) for group in self._groups}
        return TensorDict(data, batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions: list[Any] = [None] * len(self.simulator.agents)
        for group in self._groups:
            group.act(tensordict.get(group.name).get("action"), actions)
        with self._stream.in_force(), _explained():
            observations, rewards, terminated, truncated, infos = self.simulator.step(actions)
        data: dict[str, Any] = {group.name: group.read(observations, infos, rewards) for group in self._groups}
        data["terminated"] = terminated.unsqueeze(-1)
        data["truncated"] = truncated.unsqueeze(-1)
        return TensorDict(data, batch_size=self.batch_size, device=self.device)

    # ---------------------------------------------------------------- seeds and life
    def _set_seed(self, seed: int) -> None:
        """The next reset seeds the simulator; later ones go on with its stream."""
        self._next_seed = seed

    def _take_seed(self) -> int | None:
        seed, self._next_seed = self._next_seed, None
        if seed is None and not self._was_reset:
            seed = int(torch.randint(2**31 - 1, ()).item())
        self._was_reset = True
        return seed

    def to(self, device: torch.device | str) -> EnvBase:
        """Move the simulator; a reset is due, since it starts anew."""
        if torch.device(device) != self.device:
            self.simulator.to(torch.device(device))
            self.device = self.simulator.device
            self._bind()
        return self

    def render(self, **kwargs: Any) -> Any:
        """``simulator.render``: ``mode="rgb_array"``, ``env_index`` ..."""
        return self.simulator.render(**kwargs)

    def __repr__(self) -> str:
        what = f"{self.scenario_name}, num_envs={self.simulator.num_envs}"
        return f"{type(self).__name__}({what}, groups={self.group_map}, device={self.device})"


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise PolicyError(
            f"VMAS refused the actions: {error}. Actions out of range are clamped with clamp_actions=True; others must "
            "lie in the action spec"
        ) from error


def _default_groups(names: Sequence[str]) -> GroupMap:
    if any(numbered_prefix(name) is None for name in names):
        return {"agents": list(names)}
    groups = group_by_prefix(names)
    return {"agents": groups["agent"]} if list(groups) == ["agent"] else groups


def all_scenarios() -> list[str]:
    """Every scenario that VMAS brings along."""
    return sorted({*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios})


class VmasEnv(VmasWrapper):
    """A VMAS scenario, N environments that step together.

    Args:
        scenario: the name of a scenario, or a ``vmas.BaseScenario``.
        num_envs: N.
        continuous_actions: forces (True), or one choice among directions (False).
        max_steps: truncate episodes after so many steps; None: no limit.
        categorical_actions: as in :class:`VmasWrapper`.
        seed: of the first episodes, as :meth:`set_seed`.
        group_map: as in :class:`VmasWrapper`.
        scenario_kwargs: for the scenario, for example ``{"n_agents": 3}``.
        **kwargs: for ``vmas.make_env`` (``device``, ``clamp_actions``, ``multidiscrete_actions`` ...) and the scenario.

    Raises:
        UnknownNameError: no such scenario.
        PluginNotInstalledError: VMAS is not installed.

    Example:
        >>> env = VmasEnv("balance", num_envs=3, max_steps=4, n_agents=2)
        >>> env.rollout(9)["next", "truncated"][0].squeeze(-1)
        tensor([False, False, False,  True])
    """

    def __init__(
        self,
        scenario: Any,
        *,
        num_envs: int,
        continuous_actions: bool = True,
        max_steps: int | None = None,
        categorical_actions: bool = True,
        seed: int | None = None,
        group_map: Mapping[str, Sequence[str]] | MarlGroupMapType | None = None,
        scenario_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(scenario, str) and scenario.removesuffix(".py") not in all_scenarios():
            raise UnknownNameError(
                f"VMAS has no scenario {scenario!r}{close_match(scenario, all_scenarios())}; it has "
                f"{', '.join(all_scenarios())}"
            )
        given = {"terminated_truncated": True, **(scenario_kwargs or {}), **kwargs}
        env = vmas.make_env(
            scenario, num_envs=num_envs, continuous_actions=continuous_actions, max_steps=max_steps, **given
        )
        super().__init__(env, categorical_actions, group_map)
        self.scenario_name = scenario if isinstance(scenario, str) else self.scenario_name
        if seed is not None:
            self.set_seed(seed)

    @property
    def num_envs(self) -> int:
        """N."""
        return self.simulator.num_envs
