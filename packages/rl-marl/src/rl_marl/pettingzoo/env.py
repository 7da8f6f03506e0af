"""``PettingZooWrapper`` and ``PettingZooEnv``: parallel and turn-based games as grouped environments.

Rows of agents that are away keep their shape: observation, reward and infos 0, an action mask that allows everything,
``(group, "mask")`` False. The row in which an agent ends still has its true last observation under "next" (and so the
row after it at the root, where its mask is False). See :mod:`rl_marl.pettingzoo.lives` for what the end flags mean, per
agent and at the root.

Turns. One row is one step of the game, by whoever is selected: ``(group, "mask")`` is True at the root for the actor
alone, ``("next", group, "mask")`` for the one after it. A reward is written in the row in which it falls due, so that
returns add up row by row, to whomever it belongs: also in rows where that agent only waits. What an action earned is
known no sooner than its agent's next turn, rows later. :class:`~rl_marl.MultiAgentGAE` reads such batches as they are
and gives each agent what it gives on the agent's own trajectory. For all that looks at single rows (TD targets, replay
buffers) :meth:`PettingZooWrapper.credit_turns` moves the rewards, next observations and end flags of a batch back into
the rows of the actions they belong to::

    collector = Collector(env, policy, frames_per_batch=512, postproc=env.credit_turns)

After it an agent's rows with mask True are exactly its own trajectory, that of ``agent_iter`` and ``last``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from rl_core import Categorical, Composite, EnvBase, TensorSpec, Unbounded
from rl_core.envs.partial_reset import reset_request
from rl_core.errors import EnvError
from rl_marl.groups import GroupMap, MarlGroupMapType, group_by_prefix, resolve_group_map
from rl_marl.pettingzoo.credit import credit_turns
from rl_marl.pettingzoo.games import Game, Happened, ParallelGame, TurnGame
from rl_marl.pettingzoo.group import AgentGroup
from rl_marl.pettingzoo.library import pettingzoo
from rl_marl.pettingzoo.lives import Lives
from rl_marl.pettingzoo.making import make_game
from rl_marl.pettingzoo.spaces import nested

__all__ = ["PettingZooEnv", "PettingZooWrapper"]


class PettingZooWrapper(EnvBase):
    """A PettingZoo environment, parallel or turn-based (AEC), as a grouped environment of batch size ``[]``.

    Group g holds ``(g, "observation")`` [n, ...], ``(g, "action")``, ``(g, "reward")`` [n, 1] float32 under "next", the
    end flags [n, 1], where there are such: ``(g, "action_mask")`` bool [n, K] (also the mask of the action spec, so
    that random actions are legal), ``(g, "mask")`` bool [n] (who acts), ``(g, "info", k)`` for the numeric infos that
    all agents of the group have at the first reset. At the root: done, terminated, truncated, and "state".

    Args:
        env: a ``pettingzoo.ParallelEnv`` or ``AECEnv``; it is closed with this one.
        return_state: write ``env.state()`` as "state".
        group_map: group -> agents, or a :class:`~rl_marl.MarlGroupMapType`. Default: parallel games group by name
            prefix ("wolf_0", "wolf_1" -> "wolf"), turn-based ones give each agent a group.
        use_mask: write ``(group, "mask")`` and let agents come and go; turn-based games always do.
        categorical_actions: write choices as numbers instead of one-hot vectors.
        seed: of the first episode, as :meth:`set_seed`.
        done_on_any: end the episode with the first agent that ends; default: parallel games yes, turn-based ones no.
        device: where tensors are moved; None leaves them on the CPU.

    Raises:
        SpecError: a grouping that is none; agents of one group whose spaces differ.
        EnvError: the environment's agents are not known in advance; an agent leaves while nothing tells who acts.

    Example:
        >>> from mpe2 import simple_spread_v3
        >>> env = PettingZooWrapper(simple_spread_v3.parallel_env(N=2))
        >>> env.group_map, env.rollout(3)["agent", "observation"].shape
        ({'agent': ['agent_0', 'agent_1']}, torch.Size([3, 2, 12]))
    """

    def __init__(
        self,
        env: Any,
        return_state: bool = False,
        group_map: Mapping[str, Sequence[str]] | MarlGroupMapType | None = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(device=device)
        self.simulator = env
        self.parallel = isinstance(env, pettingzoo.ParallelEnv)
        if not self.parallel and not isinstance(env, pettingzoo.AECEnv):
            raise TypeError(f"PettingZooWrapper takes a pettingzoo ParallelEnv or AECEnv, got {type(env).__name__}")
        self.return_state, self.use_mask = return_state, use_mask or not self.parallel
        self.done_on_any = self.parallel if done_on_any is None else done_on_any
        names = _possible_agents(env)
        default = group_by_prefix(names) if self.parallel else MarlGroupMapType.ONE_GROUP_PER_AGENT
        self.group_map: GroupMap = resolve_group_map(group_map, names, default)
        self._game: Game = ParallelGame(env) if self.parallel else TurnGame(env)
        self._lives = Lives(names, self.done_on_any)
        self._actors: Sequence[str] = ()
        self._next_seed: int | None = None
        self._was_reset = False
        first = self._game.reset(0, None)  # to see infos and the state; the first reset of this object seeds anew
        self._groups = [
            AgentGroup(name, agents, env, first, self._lives, self.use_mask, categorical_actions)
            for name, agents in self.group_map.items()
        ]
        self._declare()
        if seed is not None:
            self.set_seed(seed)

    @property
    def agents(self) -> list[str]:
        """Every agent that may appear, in the environment's order."""
        return list(self._lives.names)

    # ---------------------------------------------------------------- specs
    def _declare(self) -> None:
        parts: dict[str, dict[str, Composite]] = {"observation": {}, "action": {}, "reward": {}, "done": {}}
        for group in self._groups:
            shape = (len(group.agents),)
            reward = Unbounded(shape=(*shape, 1), dtype=torch.float32)
            parts["observation"][group.name] = nested(group.observation_specs(), shape)
            parts["action"][group.name] = nested({("action",): group.codec.spec}, shape)
            parts["reward"][group.name] = nested({("reward",): reward}, shape)
            parts["done"][group.name] = nested(group.end_specs(), shape)
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        root: dict[str, TensorSpec] = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        state: dict[str, TensorSpec] = {"state": self._state_spec()} if self.return_state else {}
        self.observation_spec = Composite({**parts["observation"], **state})
        self.full_action_spec = Composite({**parts["action"]})
        self.full_reward_spec = Composite({**parts["reward"]})
        self.full_done_spec = Composite({**root, **parts["done"]})

    def _state_spec(self) -> TensorSpec:
        try:
            state = self._state()
        except (NotImplementedError, AttributeError) as error:
            raise EnvError(f"return_state=True needs env.state(), which {self.simulator} does not have") from error
        return Unbounded(shape=state.shape, dtype=state.dtype)

    def _state(self) -> torch.Tensor:
        state = torch.from_numpy(np.array(self.simulator.state()))
        return state if self.device is None else state.to(self.device)

    # ---------------------------------------------------------------- data
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        unknown = sorted(set(kwargs) - {"seed", "options"})
        if unknown:
            raise TypeError(f"reset of {self} takes seed= and options=, not {', '.join(unknown)}")
        if reset_request(tensordict, self.end_groups) is not None:
            raise EnvError(
                f"{self} was asked for a partial reset; a PettingZoo episode starts anew for all agents at once: "
                "reset where the root's 'done' is True"
            )
        happened = self._game.reset(self._take_seed(kwargs.get("seed")), kwargs.get("options"))
        self._lives.begin(happened)
        for group in self._groups:
            group.require_everyone(self._lives)
        return TensorDict(self._carried(happened), batch_size=[], device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        actions: dict[str, Any] = {}
        for group in self._groups:
            actions.update(group.decode(tensordict.get((group.name, "action")), self._actors))
        happened = self._game.step(actions)
        terminated, truncated = self._lives.advance(happened)
        data = self._carried(happened)
        for group in self._groups:
            if not (terminated or truncated):
                group.require_everyone(self._lives)
            for key, value in group.outcome(happened, self._lives, self.device).items():
                data[group.name].set(key, value)
        ends = {"terminated": torch.tensor([terminated]), "truncated": torch.tensor([truncated])}
        return TensorDict({**data, **ends}, batch_size=[], device=self.device)

    def _carried(self, happened: Happened) -> dict[str, Any]:
        """What a reset and a step both bring."""
        self._actors = [name for name in happened.actors if name in self._lives.index]
        data: dict[str, Any] = {}
        for group in self._groups:
            data[group.name] = group.read(happened, self._lives, self.device)
        if self.return_state:
            data["state"] = self._state()
        return data

    def credit_turns(self, batch: TensorDictBase) -> TensorDictBase:
        """The batch with every reward in the row of the action that earned it: a collector's ``postproc``.

        See :func:`rl_marl.credit_turns`.
        """
        return credit_turns(batch, self.group_map)

    # ---------------------------------------------------------------- seeds and life
    def _set_seed(self, seed: int) -> None:
        """The next reset seeds the game; later ones go on with its generator."""
        self._next_seed = seed

    def _take_seed(self, given: int | None) -> int | None:
        seed, self._next_seed = self._next_seed if given is None else given, None
        if seed is None and not self._was_reset:
            seed = int(torch.randint(2**31 - 1, ()).item())
        self._was_reset = True
        return seed

    def render(self) -> Any:
        """The frame of the present state."""
        return self.simulator.render()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the game."""
        if not self.is_closed:
            self.simulator.close()
        super().close(raise_if_closed=raise_if_closed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.simulator}, groups={self.group_map}, device={self.device})"


def _possible_agents(env: Any) -> list[str]:
    names = getattr(env, "possible_agents", None)
    if not names:
        raise EnvError(
            f"{env} does not say which agents may appear (possible_agents); rows of a group are made for a fixed set "
            "of agents"
        )
    return list(names)


class PettingZooEnv(PettingZooWrapper):
    """A PettingZoo environment by its id.

    Args:
        task: ``"mpe2/simple_spread_v3"``, ``"butterfly/pistonball_v6"``, ``"classic/tictactoe_v3"``; or the dotted path
            of a module with ``parallel_env`` or ``env``.
        parallel: the parallel API (True) or the turn-based one (False); None takes the parallel one where there is one.
        return_state: as in :class:`PettingZooWrapper`.
        group_map: as in :class:`PettingZooWrapper`.
        use_mask: as in :class:`PettingZooWrapper`.
        categorical_actions: as in :class:`PettingZooWrapper`.
        seed: as in :class:`PettingZooWrapper`.
        done_on_any: as in :class:`PettingZooWrapper`.
        device: as in :class:`PettingZooWrapper`.
        **kwargs: for the task's constructor.

    Raises:
        UnknownNameError: no such task.
        PluginNotInstalledError: PettingZoo, or what the task needs, is not installed.

    Example:
        >>> env = PettingZooEnv("mpe2/simple_tag_v3", num_good=1, num_adversaries=3)
        >>> env.group_map
        {'adversary': ['adversary_0', 'adversary_1', 'adversary_2'], 'agent': ['agent_0']}
    """

    def __init__(
        self,
        task: str,
        parallel: bool | None = None,
        return_state: bool = False,
        group_map: Mapping[str, Sequence[str]] | MarlGroupMapType | None = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        *,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            make_game(task, parallel, kwargs),
            return_state,
            group_map,
            use_mask,
            categorical_actions,
            seed,
            done_on_any,
            device=device,
        )
        self.task = task
