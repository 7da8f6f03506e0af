"""The networks of the on-policy recipes: a stochastic actor, a critic, and their orthogonal weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from rl_core import registry

__all__ = ["make_actor", "make_critic", "orthogonal"]


def make_actor(env: Any, in_keys: list[Any], hidden: Sequence[int]) -> nn.Module:
    """A stochastic policy: observation to distribution to action."""
    mlp = registry.modules.get("mlp")
    actor: nn.Module = registry.modules.get("build_actor")(
        env.action_spec_unbatched,
        lambda outputs: mlp(out_features=outputs, num_cells=list(hidden)),
        in_keys,
        action_key=env.action_key,
    )
    return actor


def make_critic(in_keys: list[Any], hidden: Sequence[int]) -> nn.Module:
    """A network for the value of a state."""
    net = registry.modules.get("mlp")(out_features=1, num_cells=list(hidden))
    critic: nn.Module = registry.modules.get("value_operator")(net, in_keys=in_keys)
    return critic


def orthogonal(network: nn.Module, last_gain: float) -> None:
    """Orthogonal weights and zero biases; a small last layer makes the first policy close to uniform.

    Huang et al. 2022, The 37 Implementation Details of Proximal Policy Optimization, detail 2.
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2))
        nn.init.zeros_(layer.bias)
