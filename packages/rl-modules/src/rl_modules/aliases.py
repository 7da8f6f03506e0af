"""Older public names that tutorials still use, each in terms of its successor."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase

from rl_core.errors import PolicyError
from rl_core.specs import TensorSpec
from rl_modules.exploration.egreedy import EGreedyModule
from rl_modules.networks.normal_params import NormalParamsNet as NormalParamsWrapper
from rl_modules.policies.sequential import SafeSequential

__all__ = ["EGreedyWrapper", "NormalParamsWrapper"]


def EGreedyWrapper(  # noqa: N802 (the published name)
    policy: TensorDictModuleBase, *, spec: TensorSpec | None = None, **kwargs: Any
) -> SafeSequential:
    """A policy followed by :class:`EGreedyModule`, which the last module of the result is.

    Args:
        policy: the policy.
        spec: spec of the action; the policy's own unless given.
        **kwargs: arguments of :class:`EGreedyModule`.

    Raises:
        PolicyError: if neither the call nor the policy gives a spec.
    """
    found = spec if spec is not None else getattr(policy, "spec", None)
    if found is None:
        raise PolicyError(
            "EGreedyWrapper needs the spec of the action: pass spec=env.action_spec, or give the policy a spec."
        )
    return SafeSequential(policy, EGreedyModule(found, **kwargs))
