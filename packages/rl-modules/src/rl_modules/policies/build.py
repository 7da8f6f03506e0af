"""``build_actor``: a network and an action spec give a stochastic policy with the head that suits the spec."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict.nn import CompositeDistribution, TensorDictModule
from torch import nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, as_path, parent_path
from rl_core.specs import Composite, TensorSpec
from rl_modules.policies.heads import SplitHeads, head_for
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
    outer_dims: int = 0,
    **options: Any,
) -> ProbabilisticActor:
    """A stochastic policy for an action spec.

    The distribution's parameters are written beside the action: ("agents", "logits") for ("agents", "action").

    ====================  ==================================================  ==========
    spec                  distribution                                        outputs
    ====================  ==================================================  ==========
    Categorical           Categorical over logits                             n
    OneHot                OneHotCategorical over logits                       n
    MultiCategorical      MultiCategorical over logits                        sum(nvec)
    MultiOneHot           MultiOneHotCategorical over logits                  sum(nvec)
    Binary                IndependentBernoulli over logits                    A
    Bounded, floats       TanhNormal between the bounds                       2 A
    Unbounded, floats     IndependentNormal                                   2 A
    Composite             each leaf its own, of one network                   their sum
    ====================  ==================================================  ==========

    Args:
        spec: of one environment's action (``env.action_spec_unbatched``); A is its number of elements. A Composite
            gives a policy of several actions under the spec's keys, with parameters under ("params", key) and a
            log-probability for each of them, or their sum under ``log_prob_key``.
        network: makes the network for a number of outputs: ``lambda n: MLP(out_features=n, num_cells=[64, 64])``.
        in_keys: what the network reads.
        action_key: where the action is written; that of a Composite's leaves are the spec's own.
        action_mask_key: bool ``[*B, outputs]``, which choices are legal, for all specs of choices; without it all are.
        return_log_prob: write the log-probability.
        outer_dims: leading dimensions of the spec that the network's outputs have too, such as the agents of a group.
        **options: of :class:`ProbabilisticActor`.

    Raises:
        SpecError: no head is known for the spec, or a mask is given for actions that are numbers.

    Example:
        >>> from rl_core.specs import Bounded
        >>> actor = build_actor(Bounded(-2.0, 2.0, (1,)), lambda n: nn.Linear(3, n))
        >>> actor.out_keys
        ['loc', 'scale', 'action', 'action_log_prob']
    """
    if isinstance(spec, Composite):
        return _build_composite(spec, network, in_keys, action_mask_key, return_log_prob, options)
    head = head_for(spec, outer_dims)
    net = network(head.outputs)
    if head.splits:
        net = nn.Sequential(net, *head.layers())
    parent = parent_path(action_key)
    inputs = {name: as_key((*parent, name)) for name in head.names}
    written = list(inputs.values())
    distribution = head.distribution
    if action_mask_key is not None:
        if head.masked is None:
            raise SpecError(f"build_actor: {spec!r} takes no action mask; it was given {action_mask_key!r}")
        distribution, inputs["mask"] = head.masked, as_key(action_mask_key)
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=list[Any](in_keys), out_keys=list[Any](written)),
        in_keys=inputs,
        out_keys=[action_key],
        spec=spec,
        distribution_class=distribution,
        distribution_kwargs=head.arguments,
        return_log_prob=return_log_prob,
        **options,
    )


def _build_composite(
    spec: Composite,
    network: Callable[[int], nn.Module],
    in_keys: Sequence[Key],
    action_mask_key: Key | None,
    return_log_prob: bool,
    options: dict[str, Any],
) -> ProbabilisticActor:
    if action_mask_key is not None:
        raise SpecError(f"build_actor: a Composite takes no action mask; it was given {action_mask_key!r}")
    leaves: dict[Key, Any] = {as_key(as_path(key)): leaf for key, leaf in spec.items(True, True) if leaf is not None}
    heads = {key: head_for(leaf) for key, leaf in leaves.items()}
    written = [as_key(("params", *as_path(key), name)) for key, head in heads.items() for name in head.names]
    net = nn.Sequential(network(sum(head.outputs for head in heads.values())), SplitHeads(list(heads.values())))
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=list[Any](in_keys), out_keys=list[Any](written)),
        in_keys=["params"],
        out_keys=list(heads),
        spec=spec,
        distribution_class=CompositeDistribution,
        distribution_kwargs={
            "distribution_map": {key: head.distribution for key, head in heads.items()},
            "extra_kwargs": {key: dict(head.arguments) for key, head in heads.items()},
        },
        return_log_prob=return_log_prob,
        **options,
    )
