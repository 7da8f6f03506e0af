"""Actors, critics and action values of one group of an environment: multi-layer perceptrons with the group's keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.envs.base import EnvBase
from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, as_path, join
from rl_core.specs import Categorical, OneHot
from rl_marl.networks.mlp import MultiAgentMLP
from rl_modules.policies.build import build_actor
from rl_modules.policies.probabilistic_actor import ProbabilisticActor
from rl_modules.policies.q_value import QValueActor
from rl_modules.policies.value_operator import ValueOperator

__all__ = ["build_group_actor", "build_group_critic", "build_group_q_actor"]


def build_group_actor(
    env: EnvBase,
    group: str = "agents",
    *,
    num_cells: Sequence[int] = (256, 256),
    activation_class: type[nn.Module] = nn.Tanh,
    share_params: bool = True,
    agent_id: bool = False,
    in_keys: Sequence[Key] | None = None,
    **options: Any,
) -> ProbabilisticActor:
    """A stochastic policy of a group, each agent acting on its own observation.

    Legal actions are respected where the environment writes ``(group, "action_mask")``.

    Args:
        env: the environment, for its specs.
        group: the group's name.
        num_cells: units of the hidden layers.
        activation_class: their activation.
        share_params: whether all agents have one net.
        agent_id: whether the net is told which agent it acts for.
        in_keys: what the net reads, ``(group, "observation")`` unless given; several are joined.
        **options: of :func:`rl_modules.build_actor`.

    Raises:
        SpecError: the environment has no such group, or no head is known for its actions.
    """
    action_key = _group_key(env, group, "action", env.action_keys)
    inputs = _inputs(env, group, in_keys)
    n_agents = _agents(env, group, inputs[0])

    def network(outputs: int) -> nn.Module:
        return MultiAgentMLP(
            None,
            outputs,
            n_agents,
            centralized=False,
            share_params=share_params,
            num_cells=list(num_cells),
            activation_class=activation_class,
            agent_id=agent_id,
        )

    spec = env.full_action_spec_unbatched[action_key]
    mask = join(group, "action_mask")
    legal = mask if mask in env.observation_keys else None
    return build_actor(spec, network, inputs, action_key=action_key, action_mask_key=legal, outer_dims=1, **options)


def build_group_critic(
    env: EnvBase,
    group: str = "agents",
    *,
    centralized: bool = True,
    num_cells: Sequence[int] = (256, 256),
    activation_class: type[nn.Module] = nn.Tanh,
    share_params: bool = True,
    agent_id: bool = False,
    in_keys: Sequence[Key] | None = None,
) -> ValueOperator:
    """The values of a group's agents, ``(group, "state_value")``, [*B, n, 1].

    Args:
        env: the environment, for its specs.
        group: the group's name.
        centralized: whether each value depends on the observations of all agents of the group.
        num_cells: units of the hidden layers.
        activation_class: their activation.
        share_params: whether all agents have one net.
        agent_id: whether the net is told which agent it judges.
        in_keys: what the net reads, ``(group, "observation")`` unless given; several are joined.

    Raises:
        SpecError: the environment has no such group.
    """
    inputs = _inputs(env, group, in_keys)
    net = MultiAgentMLP(
        None,
        1,
        _agents(env, group, inputs[0]),
        centralized=centralized,
        share_params=share_params,
        num_cells=list(num_cells),
        activation_class=activation_class,
        agent_id=agent_id,
    )
    return ValueOperator(net, in_keys=list[Any](inputs), out_keys=[join(group, "state_value")])


def build_group_q_actor(
    env: EnvBase,
    group: str = "agents",
    *,
    num_cells: Sequence[int] = (64, 64),
    activation_class: type[nn.Module] = nn.ReLU,
    share_params: bool = True,
    agent_id: bool = True,
    in_keys: Sequence[Key] | None = None,
) -> QValueActor:
    """Greedy actions of a group from action values: writes its action, ``action_value`` and ``chosen_action_value``.

    Args:
        env: the environment, for its specs.
        group: the group's name.
        num_cells: units of the hidden layers.
        activation_class: their activation.
        share_params: whether all agents have one net.
        agent_id: whether the net is told which agent it acts for.
        in_keys: what the net reads, ``(group, "observation")`` unless given; several are joined.

    Raises:
        SpecError: the environment has no such group, or its actions are not discrete.
    """
    action_key = _group_key(env, group, "action", env.action_keys)
    inputs = _inputs(env, group, in_keys)
    spec = env.full_action_spec_unbatched[action_key]
    if not isinstance(spec, (Categorical, OneHot)):
        raise SpecError(f"action values need discrete actions; those of group {group!r} are {spec!r}")
    net = MultiAgentMLP(
        None,
        int(spec.n),
        _agents(env, group, inputs[0]),
        centralized=False,
        share_params=share_params,
        num_cells=list(num_cells),
        activation_class=activation_class,
        agent_id=agent_id,
    )
    mask = join(group, "action_mask")
    return QValueActor(
        TensorDictModule(net, in_keys=list[Any](inputs), out_keys=[join(group, "action_value")]),
        spec=spec,
        action_key=action_key,
        chosen_action_value_key=join(group, "chosen_action_value"),
        action_mask_key=mask if mask in env.observation_keys else None,
    )


def _inputs(env: EnvBase, group: str, in_keys: Sequence[Key] | None) -> list[Key]:
    if in_keys is not None:
        return [as_key(key) for key in in_keys]
    return [_group_key(env, group, "observation", env.observation_keys)]


def _group_key(env: EnvBase, group: str, leaf: str, keys: Sequence[Key]) -> Key:
    key = join(group, leaf)
    if key not in keys:
        groups = sorted({found[0] for found in map(as_path, env.action_keys) if len(found) > 1})
        raise SpecError(
            f"the environment has no {key!r}; it has {', '.join(map(repr, keys))}. Its groups are {', '.join(groups)}"
        )
    return key


def _agents(env: EnvBase, group: str, observation: Key) -> int:
    """How many agents a group has: the dimension that follows the environment's batch dims."""
    shape = env.observation_spec[observation].shape
    dims = len(env.batch_size)
    if len(shape) < dims + 2:
        raise SpecError(
            f"{observation!r} of group {group!r} has shape {list(shape)}; it should be [*B, n agents, features]"
        )
    return int(shape[dims])
