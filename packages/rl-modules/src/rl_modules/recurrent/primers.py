"""The transforms that a policy's carried state needs, made from the policy."""

from __future__ import annotations

from typing import Any

from rl_core import Compose, Composite, Transform, carried_state, registry
from rl_core.errors import PolicyError
from rl_core.keys import leaf_name

__all__ = ["get_env_transforms_from_module", "get_primers_from_module"]


def get_primers_from_module(module: Any) -> Transform:
    """The transform that writes initial states at resets, for all recurrent modules within a module.

    Args:
        module: a policy.

    Raises:
        PolicyError: it carries no state.
        PluginNotInstalledError: rl-envs, which offers ``TensorDictPrimer``, is absent.
    """
    specs = carried_state(module).specs
    if not specs:
        raise PolicyError(f"{type(module).__name__} carries no state, so it needs no primer")
    tree = Composite()
    for key, spec in specs.items():
        tree[key] = spec
    primer: Transform = registry.transforms.get("TensorDictPrimer")(primers=tree)
    return primer


def get_env_transforms_from_module(module: Any) -> Transform:
    """All that an environment needs for a policy's carried state: flags on first steps, and initial states.

    ``env.append_transform(get_env_transforms_from_module(policy))`` is what collectors and rollouts do by themselves.

    Args:
        module: a policy.

    Raises:
        PolicyError: it carries no state.
        PluginNotInstalledError: rl-envs is absent.
    """
    names = dict.fromkeys(leaf_name(key) for key in carried_state(module).init_keys)
    trackers = [registry.transforms.get("InitTracker")(init_key=name) for name in names]
    return Compose(*trackers, get_primers_from_module(module))
