"""``build_actor``: a network and an action spec give a stochastic policy with the head that suits the spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Distribution

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, parent_path
from rl_core.specs import Bounded, Categorical, OneHot, TensorSpec, Unbounded
from rl_modules.distributions.categorical import Categorical as CategoricalDistribution
from rl_modules.distributions.gaussian import IndependentNormal
from rl_modules.distributions.masked import MaskedCategorical, MaskedOneHotCategorical
from rl_modules.distributions.one_hot import OneHotCategorical
from rl_modules.distributions.tanh_normal import TanhNormal
from rl_modules.networks.normal_params import NormalParamExtractor
from rl_modules.policies.probabilistic_actor import ProbabilisticActor

__all__ = ["build_actor"]


def build_actor(
    spec: TensorSpec,
    network: Callable[[int], nn.Module],
    in_keys: Sequence[Key] = ("observation",),
    *,
    action_key: Key = "action",
    action_mask_key: Key | None = None,
    return_log_prob: bool = True,
    **options: Any,
) -> ProbabilisticActor:
    """A stochastic policy for an action spec.

    The distribution's parameters are written beside the action: ("agents", "logits") for ("agents", "action").

    ====================  ==================================================  ==========
    spec                  distribution                                        outputs
    ====================  ==================================================  ==========
    Categorical           Categorical over logits                             n
    OneHot                OneHotCategorical over logits                       n
    Bounded, floats       TanhNormal between the bounds                       2 A
    Unbounded, floats     IndependentNormal                                   2 A
    ====================  ==================================================  ==========

    Args:
        spec: of one environment's action (``env.action_spec_unbatched``), a leaf; A is its last dimension.
        network: makes the network for a number of outputs: ``lambda n: MLP(out_features=n, num_cells=[64, 64])``.
        in_keys: what the network reads.
        action_key: where the action is written.
        action_mask_key: bool ``[*B, n]``, which actions are legal, for Categorical and OneHot; without it all are.
        return_log_prob: write the log-probability.
        **options: of :class:`ProbabilisticActor`.

    Raises:
        SpecError: no head is known for the spec, or a mask is given for actions that are numbers.

    Example:
        >>> import torch
        >>> actor = build_actor(Bounded(-2.0, 2.0, (1,)), lambda n: nn.Linear(3, n))
        >>> actor.out_keys
        ['loc', 'scale', 'action', 'action_log_prob']
    """
    outputs, names, distribution, arguments = _head(spec)
    net = network(outputs)
    if names == ["loc", "scale"]:
        net = nn.Sequential(net, NormalParamExtractor())
    parent = parent_path(action_key)
    inputs = {name: as_key((*parent, name)) for name in names}
    written = list(inputs.values())
    if action_mask_key is not None:
        if distribution not in _MASKED:
            raise SpecError(f"build_actor: {spec!r} takes no action mask; it was given {action_mask_key!r}")
        distribution, inputs["mask"] = _MASKED[distribution], as_key(action_mask_key)
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=list[Any](in_keys), out_keys=list[Any](written)),
        in_keys=inputs,
        out_keys=[action_key],
        spec=spec,
        distribution_class=distribution,
        distribution_kwargs=arguments,
        return_log_prob=return_log_prob,
        **options,
    )


_MASKED: Mapping[type[Distribution], type[Distribution]] = {
    CategoricalDistribution: MaskedCategorical,
    OneHotCategorical: MaskedOneHotCategorical,
}


def _head(spec: TensorSpec) -> tuple[int, list[Any], type[Distribution], Mapping[str, Any]]:
    """Number of outputs, parameters, distribution class and its further arguments."""
    if isinstance(spec, OneHot):
        return int(spec.n), ["logits"], OneHotCategorical, {}
    if isinstance(spec, Categorical) and spec.start == 0:
        return int(spec.n), ["logits"], CategoricalDistribution, {}
    if isinstance(spec, (Bounded, Unbounded)) and spec.dtype is not None and spec.dtype.is_floating_point and spec.ndim:
        size = 2 * spec.shape[-1]
        if isinstance(spec, Bounded):
            return size, ["loc", "scale"], TanhNormal, {"low": spec.low, "high": spec.high}
        return size, ["loc", "scale"], IndependentNormal, {}
    raise SpecError(
        f"build_actor knows no head for {spec!r}; it knows Categorical (start 0), OneHot, and Bounded and Unbounded "
        "floats. Build the policy by hand with ProbabilisticActor(..., distribution_class=...)"
    )
