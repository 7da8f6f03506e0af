"""Turns distribution parameters into a value and its log-probability."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type
from torch import Generator, Size, Tensor
from torch.distributions import Distribution

from rl_core.keys import Key, as_keys, leaf_name, sibling
from rl_core.specs import Composite, TensorSpec
from rl_modules.distributions.base import PolicyDistribution
from rl_modules.distributions.delta import Delta
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.drawing import draw, pick
from rl_modules.policies.projection import leaf_specs, project, spec_tree
from rl_modules.policies.reading import read_inputs
from rl_modules.policies.safe_module import Keys, argument_names

__all__ = ["SafeProbabilisticModule"]


class SafeProbabilisticModule(PolicyModule):
    """Builds a distribution from its parameters and writes a value of it, and the value's log-probability if asked.

    Which value follows ``set_exploration_type``: RANDOM draws; MODE, MEAN, MEDIAN and DETERMINISTIC do not. Outside of
    such a context, ``default_interaction_type`` decides.

    Args:
        in_keys: the parameters: keys whose leaf names are the distribution's arguments, or a dict ``{argument: key}``.
        out_keys: the key of the value, "action" unless given.
        spec: spec of the value, a leaf or a Composite.
        safe: project values outside the spec onto it (the log-probability stays that of the value before).
        distribution_class: any torch distribution; those of this package are built without validation.
        distribution_kwargs: its further arguments.
        return_log_prob: write the log-probability ``[*B]``.
        log_prob_key: its key; ``<value key>_log_prob`` unless given.
        log_prob_keys: a list with that one key.
        default_interaction_type: the exploration type outside of a context, or its name.
        cache_dist: accepted for compatibility; building a distribution is cheap.
        n_empirical_estimate: number of samples averaged under MEAN where the mean has no closed form.
        num_samples: leading dims of the draw; the output TensorDict is expanded by them and the input left as it is.
        generator: random state for draws, for distributions of this package.

    Raises:
        ValueError: if the keys or options do not fit each other.
    """

    def __init__(
        self,
        in_keys: Keys | Mapping[str, Key],
        out_keys: Keys | None = None,
        spec: TensorSpec | None = None,
        *,
        safe: bool = False,
        distribution_class: type[Distribution] = Delta,
        distribution_kwargs: Mapping[str, Any] | None = None,
        return_log_prob: bool = False,
        log_prob_key: Key | None = None,
        log_prob_keys: Sequence[Key] | None = None,
        default_interaction_type: ExplorationType | str | None = ExplorationType.DETERMINISTIC,
        cache_dist: bool = False,
        n_empirical_estimate: int = 1000,
        num_samples: int | Sequence[int] | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        name: str = self.__name__
        self.parameter_names, parameter_keys = argument_names(in_keys)
        self._value_key, self._log_prob_key = _value_and_log_prob_keys(name, out_keys, log_prob_key, log_prob_keys)
        self.return_log_prob = return_log_prob
        self._set_keys(parameter_keys, [self._value_key, self._log_prob_key] if return_log_prob else [self._value_key])
        self.safe = safe
        self._specs = leaf_specs(spec, [self._value_key], name, safe=safe)
        self._value_dtype = _integer_dtype(self._specs.get(self._value_key))
        self.distribution_class = distribution_class
        self.distribution_kwargs = dict(distribution_kwargs or {})
        self._factory = _factory(distribution_class, self.distribution_kwargs)
        default = ExplorationType.DETERMINISTIC if default_interaction_type is None else default_interaction_type
        self.default_interaction_type = ExplorationType(default)
        self.n_empirical_estimate = n_empirical_estimate
        self.num_samples = (
            None if num_samples is None else Size((num_samples,) if isinstance(num_samples, int) else num_samples)
        )
        if generator is not None and not issubclass(distribution_class, PolicyDistribution):
            raise ValueError(
                f"{name} got a generator, which {distribution_class.__name__} cannot use. Use a distribution of "
                f"rl_modules, or seed with torch.manual_seed."
            )
        self.generator = generator

    @property
    def spec(self) -> Composite | None:
        """The spec of the value, as a Composite."""
        return spec_tree(self._specs)

    @property
    def log_prob_key(self) -> Key:
        """Key of the log-probability."""
        return self._log_prob_key

    @property
    def log_prob_keys(self) -> list[Key]:
        """Key of the log-probability, as a list."""
        return [self._log_prob_key]

    @property
    def dist_sample_keys(self) -> list[Key]:
        """Key of the value, as a list."""
        return [self._value_key]

    @property
    def dist_params_keys(self) -> list[Key]:
        """Keys of the distribution's parameters."""
        return self.in_keys

    def build_dist(self, *parameters: Tensor) -> Distribution:
        """The distribution with the given parameters, in the order of ``in_keys``."""
        return self._factory(**dict(zip(self.parameter_names, parameters, strict=True)))

    def get_dist(self, tensordict: Any) -> Distribution:
        """The distribution whose parameters a TensorDict holds."""
        return self.build_dist(*read_inputs(tensordict, self.in_keys, self))

    build_dist_from_params = get_dist

    def get_dist_tensors(self, *inputs: Tensor) -> Distribution:
        """The distribution with the given parameters, in the order of ``in_keys``."""
        return self.build_dist(*inputs)

    def log_prob(self, tensordict: Any, *, dist: Distribution | None = None) -> Tensor:
        """Log-probability ``[*B]`` of the value that a TensorDict holds.

        Args:
            tensordict: holds the value, and the parameters unless a distribution is given.
            dist: the distribution, if it is known already.
        """
        dist = self.get_dist(tensordict) if dist is None else dist
        (value,) = read_inputs(tensordict, [self._value_key], self)
        return dist.log_prob(value)

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        dist = self._factory(**dict(zip(self.parameter_names, inputs, strict=True)))
        how = interaction_type() or self.default_interaction_type
        scored = self.return_log_prob
        log_prob: Tensor | None = None
        value: Any
        if how is ExplorationType.RANDOM:
            if scored and isinstance(dist, PolicyDistribution) and not torch.is_grad_enabled():
                value, log_prob = dist.sample_and_log_prob(self.num_samples or (), self.generator)
            else:
                value, log_prob = draw(dist, scored, self.num_samples or (), self.generator)
        else:
            value = pick(dist, how, self.n_empirical_estimate)
            if scored:
                log_prob = dist.log_prob(value)
        if self._value_dtype is not None:
            value = value.to(self._value_dtype)
        if self.safe:
            (value,) = project(self._specs, [self._value_key], [value])
        return (value, log_prob) if scored else (value,)

    def _run(self, tensordict: Any, target: Any) -> Any:
        if self.num_samples is not None and interaction_type_of(self) is ExplorationType.RANDOM:
            target = target.expand(self.num_samples + target.batch_size)
        return super()._run(tensordict, target)


def interaction_type_of(module: SafeProbabilisticModule) -> ExplorationType:
    """The exploration type in force for a module."""
    return interaction_type() or module.default_interaction_type


def _value_and_log_prob_keys(
    name: str, out_keys: Keys | None, log_prob_key: Key | None, log_prob_keys: Sequence[Key] | None
) -> tuple[Key, Key]:
    if log_prob_keys:
        if log_prob_key is not None or len(log_prob_keys) != 1:
            raise ValueError(f"{name} has one log-probability: give log_prob_key, or one entry in log_prob_keys.")
        log_prob_key = log_prob_keys[0]
    keys = as_keys(out_keys) or ["action"]
    log_prob_key = log_prob_key or sibling(keys[0], f"{leaf_name(keys[0])}_log_prob")
    others = [key for key in keys[1:] if key != log_prob_key]
    if others:
        raise ValueError(f"{name} writes one value, under one key; got out_keys={keys}.")
    return keys[0], log_prob_key


def _factory(distribution_class: type[Distribution], kwargs: dict[str, Any]) -> Any:
    """What builds the distribution from its parameters: without validation, its fixed arguments prepared once."""
    if issubclass(distribution_class, PolicyDistribution):
        return distribution_class.bind(**kwargs)
    if "validate_args" not in kwargs and "validate_args" in inspect.signature(distribution_class).parameters:
        kwargs = {**kwargs, "validate_args": False}
    return partial(distribution_class, **kwargs) if kwargs else distribution_class


def _integer_dtype(spec: TensorSpec | None) -> torch.dtype | None:
    """The dtype to which discrete values are cast: a one-hot spec may be bool, where the distribution gives int64."""
    dtype = None if spec is None else spec.dtype
    return None if dtype is None or dtype.is_floating_point or dtype == torch.int64 else dtype
