"""Older public names that tutorials still use, each in terms of its successor."""

from __future__ import annotations

from typing import Any

from tensordict.nn import TensorDictModuleBase

from rl_core.errors import PolicyError
from rl_core.specs import TensorSpec
from rl_modules.exploration.additive_gaussian import AdditiveGaussianModule
from rl_modules.exploration.egreedy import EGreedyModule
from rl_modules.exploration.ornstein_uhlenbeck import OrnsteinUhlenbeckProcessModule
from rl_modules.networks.normal_params import NormalParamsNet as NormalParamsWrapper
from rl_modules.policies.sequential import SafeSequential

__all__ = ["AdditiveGaussianWrapper", "EGreedyWrapper", "NormalParamsWrapper", "OrnsteinUhlenbeckProcessWrapper"]


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
    return SafeSequential(policy, EGreedyModule(_spec_of(policy, spec, "EGreedyWrapper"), **kwargs))


def AdditiveGaussianWrapper(  # noqa: N802 (the published name)
    policy: TensorDictModuleBase, *, spec: TensorSpec | None = None, **kwargs: Any
) -> SafeSequential:
    """A policy followed by :class:`AdditiveGaussianModule`, which the last module of the result is.

    Arguments as of :func:`EGreedyWrapper`.
    """
    return SafeSequential(policy, AdditiveGaussianModule(_spec_of(policy, spec, "AdditiveGaussianWrapper"), **kwargs))


def OrnsteinUhlenbeckProcessWrapper(  # noqa: N802 (the published name)
    policy: TensorDictModuleBase, *, spec: TensorSpec | None = None, **kwargs: Any
) -> SafeSequential:
    """A policy followed by :class:`OrnsteinUhlenbeckProcessModule`, which the last module of the result is.

    Arguments as of :func:`EGreedyWrapper`.
    """
    found = _spec_of(policy, spec, "OrnsteinUhlenbeckProcessWrapper")
    return SafeSequential(policy, OrnsteinUhlenbeckProcessModule(found, **kwargs))


def _spec_of(policy: TensorDictModuleBase, spec: TensorSpec | None, name: str) -> TensorSpec:
    found = spec if spec is not None else getattr(policy, "spec", None)
    if found is None:
        raise PolicyError(f"{name} needs the spec of the action: pass spec=env.action_spec, or give the policy a spec.")
    return found
