"""State that a policy carries from step to step, and the environment that carries it for the policy.

A recurrent module reads its state at the root and writes the following one under "next". Between the two stands the
environment: at a reset it writes the initial state, and a flag that marks first steps. A module says so by
:class:`StateCarrier`; collectors and rollouts then add what the environment lacks (:func:`with_carried_state`), so that
no policy acts without its memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key, as_path, join, leaf_name
from rl_core.registry import registry
from rl_core.specs import Composite, TensorSpec

if TYPE_CHECKING:
    from rl_core.envs.base import EnvBase

__all__ = ["CarriedState", "StateCarrier", "carried_state", "reads_sequences", "with_carried_state"]


@dataclass
class CarriedState:
    """What a policy carries.

    Attributes:
        specs: key at the root -> spec of one environment's state; its zero is the initial state. The policy writes the
            following state under ``("next", key)``.
        init_keys: bool flags ``[*B, 1]``, True on the first step of an episode, that the policy reads.
    """

    specs: dict[Key, TensorSpec] = field(default_factory=dict)
    init_keys: list[Key] = field(default_factory=list)


class StateCarrier:
    """A module that carries state from step to step; to be inherited from beside nn.Module."""

    def carried_state(self) -> CarriedState:
        """Its state's keys and specs, and the flags it reads."""
        raise NotImplementedError(f"{type(self).__name__} must define carried_state(self) -> CarriedState")

    def reads_sequences(self) -> bool:
        """Whether it would now take its last batch dimension for time."""
        return False


def _carriers(policy: Any) -> Iterable[StateCarrier]:
    parts = policy.modules() if isinstance(policy, nn.Module) else [policy]
    return [part for part in parts if isinstance(part, StateCarrier)]


def reads_sequences(network: Any) -> bool:
    """Whether a network holds a module that would now take its last batch dimension for time."""
    return any(part.reads_sequences() for part in _carriers(network))


def carried_state(policy: Any) -> CarriedState:
    """The state that a policy carries, over all modules in it.

    Raises:
        PolicyError: two modules in it write one state.
    """
    total = CarriedState()
    for part in _carriers(policy):
        own = part.carried_state()
        for key, spec in own.specs.items():
            if key in total.specs:
                raise PolicyError(
                    f"two modules of the policy carry the state {key!r}; each needs its own. Give one of them other "
                    f"keys: {type(part).__name__}(..., in_keys=[...], out_keys=[...])"
                )
            total.specs[key] = spec
        total.init_keys += [key for key in own.init_keys if key not in total.init_keys]
    return total


def with_carried_state(env: EnvBase, policy: Any) -> EnvBase:
    """The environment with what it lacks to carry a policy's state: initial states at resets, flags on first steps.

    The environment given is left as it is; where it lacks nothing it is returned. The transforms that are added
    (``TensorDictPrimer`` and ``InitTracker``, from rl-envs) come from the registry.

    Args:
        env: the environment.
        policy: any policy; one that carries no state needs nothing.

    Raises:
        PolicyError: the policy does not write the state that it reads, or the environment's entry has another shape.
        PluginNotInstalledError: the transforms are needed and rl-envs is absent.
    """
    state = carried_state(policy)
    if not state.specs:
        return env
    written = {as_path(key) for key in getattr(policy, "out_keys", None) or []}
    for key, spec in state.specs.items():
        if written and ("next", *as_path(key)) not in written:
            raise PolicyError(
                f"{type(policy).__name__} reads the state {key!r} and does not write {join('next', key)!r}: it would "
                f"act without memory. Its out_keys are {list(policy.out_keys)}; keep {join('next', key)!r} among them"
            )
        _check_shape(env, key, spec)
    known = set(env.observation_keys)
    flags = dict.fromkeys(leaf_name(key) for key in state.init_keys if key not in known)
    absent = {key: spec for key, spec in state.specs.items() if key not in known}
    for name in flags:
        env = _wrap(env, registry.transforms.get("InitTracker")(init_key=name))
    if absent:
        env = _wrap(env, registry.transforms.get("TensorDictPrimer")(primers=_tree(absent)))
    return env


def _wrap(env: EnvBase, transform: Any) -> EnvBase:
    from rl_core.transforms.transformed_env import TransformedEnv  # here: it imports the environments' modules

    return TransformedEnv(env, transform)


def _tree(specs: dict[Key, TensorSpec]) -> Composite:
    tree = Composite()
    for key, spec in specs.items():
        tree[as_key(key)] = spec
    return tree


def _check_shape(env: EnvBase, key: Key, spec: TensorSpec) -> None:
    present = env.observation_spec.get(key, None)
    wanted = (*env.batch_size, *spec.shape)
    if present is not None and tuple(present.shape) != wanted:
        raise PolicyError(
            f"the policy carries {key!r} of shape {wanted}, the environment's entry of that name has "
            f"{tuple(present.shape)}. Make its primer from this policy: get_env_transforms_from_module(policy)"
        )
