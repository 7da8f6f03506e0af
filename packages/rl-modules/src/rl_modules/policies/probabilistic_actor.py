"""Stochastic policy: a network that gives the parameters of an action distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict.nn import CompositeDistribution
from tensordict.nn import InteractionType as ExplorationType
from torch import Generator
from torch.distributions import Distribution

from rl_core.keys import Key
from rl_core.specs import Composite, TensorSpec
from rl_modules.policies.composite_head import CompositeHead
from rl_modules.policies.probabilistic_module import SafeProbabilisticModule
from rl_modules.policies.probabilistic_sequential import SafeProbabilisticTensorDictSequential
from rl_modules.policies.safe_module import Keys, SafeModule, argument_names, has_keys

__all__ = ["ProbabilisticActor"]


class ProbabilisticActor(SafeProbabilisticTensorDictSequential):
    """Computes distribution parameters with a module, then writes an action and, if asked, its log-probability.

    Output keys, in order: the parameters, the action, ``"<action>_log_prob"`` of shape ``[*B]``. The action follows
    ``set_exploration_type`` (RANDOM draws), outside of it ``default_interaction_type``. With tensordict's
    ``CompositeDistribution`` the action has several parts, see :class:`CompositeHead`.

    Args:
        module: module with keys that writes the parameters; or a plain network, which then reads "observation" and
            returns the parameters in the order of ``in_keys``.
        in_keys: the parameters: keys whose leaf names are the distribution's arguments, or a dict ``{argument: key}``
            (also for arguments that come from the data, such as ``{"logits": "logits", "mask": "action_mask"}``).
        out_keys: the key of the action.
        spec: spec of the action, a leaf or a Composite.
        distribution_class: class of the action distribution.
        distribution_kwargs: its further arguments, such as the bounds ``low`` and ``high``.
        return_log_prob: write the log-probability.
        default_interaction_type: the exploration type outside of a context.
        log_prob_key: key of the log-probability instead of the default.
        log_prob_keys: a list with that one key.
        cache_dist: accepted for compatibility; building a distribution is cheap.
        n_empirical_estimate: number of samples averaged under MEAN where the mean has no closed form.
        safe: project actions outside the spec onto it.
        num_samples: leading dims of each draw.
        generator: random state for draws.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> from torch import nn
    >>> from rl_modules import Categorical
    >>> actor = ProbabilisticActor(
    ...     nn.Linear(3, 2), in_keys=["logits"], distribution_class=Categorical, return_log_prob=True
    ... )
    >>> actor.out_keys
    ['logits', 'action', 'action_log_prob']
    >>> actor(TensorDict({"observation": torch.zeros(4, 3)}, [4]))["action_log_prob"].shape
    torch.Size([4])
    """

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: Keys | Mapping[str, Key],
        out_keys: Keys | None = None,
        *,
        spec: TensorSpec | None = None,
        distribution_class: type[Distribution],
        distribution_kwargs: Mapping[str, Any] | None = None,
        return_log_prob: bool = False,
        default_interaction_type: ExplorationType | str | None = ExplorationType.DETERMINISTIC,
        log_prob_key: Key | None = None,
        log_prob_keys: Sequence[Key] | None = None,
        cache_dist: bool = False,
        n_empirical_estimate: int = 1000,
        safe: bool = False,
        num_samples: int | Sequence[int] | None = None,
        generator: Generator | None = None,
    ) -> None:
        if out_keys is None and isinstance(spec, Composite):
            leaves = list(spec.keys(True, True))
            out_keys = leaves if len(leaves) == 1 else None
        if not has_keys(module):
            module = SafeModule(module, ["observation"], argument_names(in_keys)[1])
        if issubclass(distribution_class, CompositeDistribution):
            composite = CompositeHead(
                in_keys,
                out_keys,
                spec,
                parameter_keys=module.out_keys,  # type: ignore[attr-defined]
                safe=safe,
                distribution_kwargs=distribution_kwargs or {},
                return_log_prob=return_log_prob,
                log_prob_key=log_prob_key,
                log_prob_keys=log_prob_keys,
                default_interaction_type=default_interaction_type,
                n_empirical_estimate=n_empirical_estimate,
                num_samples=num_samples,
                generator=generator,
            )
            super().__init__(module, composite)
            return
        head = SafeProbabilisticModule(
            in_keys,
            out_keys,
            spec,
            safe=safe,
            distribution_class=distribution_class,
            distribution_kwargs=distribution_kwargs,
            return_log_prob=return_log_prob,
            log_prob_key=log_prob_key,
            log_prob_keys=log_prob_keys,
            default_interaction_type=default_interaction_type,
            cache_dist=cache_dist,
            n_empirical_estimate=n_empirical_estimate,
            num_samples=num_samples,
            generator=generator,
        )
        super().__init__(module, head)
