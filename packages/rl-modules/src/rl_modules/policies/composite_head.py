"""A joint action of several parts, each from a distribution of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from tensordict.nn import CompositeDistribution, composite_lp_aggregate
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type
from torch import Generator, Size, Tensor
from torch.distributions import Distribution

from rl_core.errors import KeyMissingError
from rl_core.keys import Key, as_key, as_keys, as_path, leaf_name, sibling
from rl_core.specs import TensorSpec
from rl_modules.distributions.base import PolicyDistribution
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.drawing import draw, pick
from rl_modules.policies.probabilistic_module import SafeProbabilisticModule, _factory, _integer_dtype
from rl_modules.policies.projection import leaf_specs, project

__all__ = ["CompositeHead"]


class CompositeHead(SafeProbabilisticModule):
    """Draws each part of a joint action from its own distribution: :class:`CompositeDistribution` for policies.

    ``distribution_kwargs`` are those of ``CompositeDistribution``: ``distribution_map`` (part -> class), ``name_map``
    (part -> key of its action, the part's own name unless given) and ``extra_kwargs`` (part -> further arguments). The
    parameters of a part lie under ``(in_key, part, argument)``.

    Log-probabilities are one entry ``<action>_log_prob`` for each part, or one sum: where ``log_prob_key`` is given,
    or ``set_composite_lp_aggregate(True)`` holds while this module is made (then under "sample_log_prob").

    Args:
        in_keys: the TensorDict of all parameters, "params".
        out_keys: the actions' keys; those of ``name_map`` unless given.
        spec: Composite of the actions' specs.
        parameter_keys: the leaves under ``in_keys`` that the module before writes; with them the policy runs without
            TensorDicts.
        safe: project actions outside the spec onto it.
        distribution_kwargs: see above.
        return_log_prob: write the log-probabilities.
        log_prob_key: write their sum here instead.
        log_prob_keys: keys of the parts' log-probabilities instead of the default.
        default_interaction_type: the exploration type outside of a context, or its name.
        n_empirical_estimate: number of samples averaged under MEAN where a mean has no closed form.
        num_samples: leading dims of the draw.
        generator: random state for draws, for distributions of this package.
    """

    def __init__(
        self,
        in_keys: Any = "params",
        out_keys: Any = None,
        spec: TensorSpec | None = None,
        *,
        parameter_keys: Sequence[Key] | None = None,
        safe: bool = False,
        distribution_kwargs: Mapping[str, Any],
        return_log_prob: bool = False,
        log_prob_key: Key | None = None,
        log_prob_keys: Sequence[Key] | None = None,
        default_interaction_type: ExplorationType | str | None = ExplorationType.DETERMINISTIC,
        n_empirical_estimate: int = 1000,
        num_samples: int | Sequence[int] | None = None,
        generator: Generator | None = None,
    ) -> None:
        PolicyModule.__init__(self)
        self.distribution_class = CompositeDistribution
        self.distribution_kwargs = dict(distribution_kwargs)
        self._read_parts(distribution_kwargs, out_keys, log_prob_key, log_prob_keys)
        (self._root,) = as_keys(list(in_keys.values()) if isinstance(in_keys, Mapping) else in_keys)
        self._leaves = [] if parameter_keys is None else _leaves_under(self._root, parameter_keys)
        self.return_log_prob = return_log_prob
        written = [*self._value_keys, *(self._score_keys if return_log_prob else [])]
        self._set_keys([key for key, _, _ in self._leaves] or [self._root], written)
        self.safe = safe
        self._specs = leaf_specs(spec, self._value_keys, self.__name__, safe=safe)
        self._dtypes = [_integer_dtype(self._specs.get(key)) for key in self._value_keys]
        self.default_interaction_type = ExplorationType(default_interaction_type or ExplorationType.DETERMINISTIC)
        self.n_empirical_estimate = n_empirical_estimate
        given = num_samples
        self.num_samples = None if given is None else Size((given,) if isinstance(given, int) else given)
        self.generator = generator

    def _read_parts(
        self,
        kwargs: Mapping[str, Any],
        out_keys: Any,
        log_prob_key: Key | None,
        log_prob_keys: Sequence[Key] | None,
    ) -> None:
        known = {"distribution_map", "name_map", "extra_kwargs", "log_prob_key", "entropy_key"}
        if "distribution_map" not in kwargs or not set(kwargs) <= known:
            raise ValueError(f"a composite action needs distribution_kwargs with distribution_map; got {list(kwargs)}")
        classes = {as_key(as_path(name)): cls for name, cls in kwargs["distribution_map"].items()}
        names = {as_key(as_path(name)): as_key(as_path(key)) for name, key in (kwargs.get("name_map") or {}).items()}
        extra = {as_key(as_path(name)): dict(more) for name, more in (kwargs.get("extra_kwargs") or {}).items()}
        self._parts = list(classes)
        self._factories = [_factory(cls, extra.get(name, {})) for name, cls in classes.items()]
        self._value_keys: list[Key] = [names.get(name, name) for name in self._parts]
        given = as_keys(out_keys)
        if given and set(given[: len(self._parts)]) != set(self._value_keys):
            raise ValueError(
                f"a composite action is written to {self._value_keys} (name_map, else the parts' names); the out_keys "
                f"are {given}"
            )
        self.aggregates = log_prob_key is not None or composite_lp_aggregate()
        single: list[Key] = [sibling(key, f"{leaf_name(key)}_log_prob") for key in self._value_keys]
        if self.aggregates:
            single = [log_prob_key or kwargs.get("log_prob_key") or "sample_log_prob"]
        elif log_prob_keys:
            single = as_keys(log_prob_keys)
            if len(single) != len(self._parts):
                raise ValueError(f"a composite action of {len(self._parts)} parts has log_prob_keys={log_prob_keys}")
        self._score_keys = single

    # ---------------------------------------------------------------- keys
    @property
    def log_prob_key(self) -> Key:
        """Key of the log-probability, where there is one."""
        if len(self._score_keys) != 1:
            raise KeyMissingError(
                f"this composite action has the log-probabilities {self._score_keys}, not one; use log_prob_keys, or "
                "give log_prob_key= for their sum"
            )
        return self._score_keys[0]

    @property
    def log_prob_keys(self) -> list[Key]:
        """Keys of the log-probabilities."""
        return list(self._score_keys)

    @property
    def dist_sample_keys(self) -> list[Key]:
        """Keys of the actions."""
        return list(self._value_keys)

    # ---------------------------------------------------------------- distributions
    def _arguments(self, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """For each part its parameters by argument."""
        if not self._leaves:
            (params,) = inputs
            return [dict(self._part_of(params, name).items()) for name in self._parts]
        found: dict[Key, dict[str, Any]] = {name: {} for name in self._parts}
        for (_, part, argument), value in zip(self._leaves, inputs, strict=True):
            if part in found:
                found[part][argument] = value
        return [found[name] for name in self._parts]

    def _part_of(self, params: Any, name: Key) -> Any:
        part = params.get(name, None) if is_tensor_collection(params) else None
        if part is None:
            present = list(params.keys()) if is_tensor_collection(params) else type(params).__name__
            raise KeyMissingError(f"the parameters under {self._root!r} hold {present}; the part {name!r} is missing")
        return part

    def _distributions(self, inputs: Sequence[Any]) -> list[Distribution]:
        return [make(**some) for make, some in zip(self._factories, self._arguments(inputs), strict=True)]

    def build_dist(self, *parameters: Any) -> Distribution:
        """The ``CompositeDistribution`` with the given parameters, in the order of ``in_keys``."""
        arguments = self._arguments(parameters)
        batch = self._distributions(parameters)[0].batch_shape
        tree = TensorDict({}, batch_size=batch)
        for name, some in zip(self._parts, arguments, strict=True):
            tree.set(name, TensorDict(some, batch_size=batch))
        return CompositeDistribution(tree, **self.distribution_kwargs)

    def log_prob(self, tensordict: Any, *, dist: Any = None) -> Any:
        """Log-probability of the actions that a TensorDict holds: ``[*B]`` if it is a sum, else a TensorDict."""
        dist = self.get_dist(tensordict) if dist is None else dist
        scores = [
            part.log_prob(tensordict.get(key)) for key, part in zip(self._value_keys, self._ordered(dist), strict=True)
        ]
        if self.aggregates:
            return _sum(scores, dist.batch_shape)
        result = TensorDict({}, batch_size=dist.batch_shape)
        for key, score in zip(self._score_keys, scores, strict=True):
            result.set(key, score)
        return result

    def _ordered(self, dist: Any) -> list[Distribution]:
        return [dist[key] for key in self._value_keys]

    # ---------------------------------------------------------------- drawing
    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        how = interaction_type() or self.default_interaction_type
        values: list[Any] = []
        scores: list[Tensor] = []
        dists = self._distributions(inputs)
        for dist, dtype in zip(dists, self._dtypes, strict=True):
            if how is ExplorationType.RANDOM:
                value, score = self._draw(dist)
            else:
                value = pick(dist, how, self.n_empirical_estimate)
                score = dist.log_prob(value) if self.return_log_prob else None
            values.append(value if dtype is None else value.to(dtype))
            if score is not None:
                scores.append(score)
        if self.safe:
            values = list(project(self._specs, self._value_keys, values))
        if not self.return_log_prob:
            return tuple(values)
        lead = Size((*(self.num_samples or ()), *dists[0].batch_shape)) if how is ExplorationType.RANDOM else None
        return (*values, *([_sum(scores, lead or dists[0].batch_shape)] if self.aggregates else scores))

    def _draw(self, dist: Distribution) -> tuple[Any, Tensor | None]:
        scored, shape = self.return_log_prob, self.num_samples or ()
        if scored and isinstance(dist, PolicyDistribution) and not torch.is_grad_enabled():
            return dist.sample_and_log_prob(shape, self.generator)
        generator = self.generator if isinstance(dist, PolicyDistribution) else None
        return draw(dist, scored, shape, generator)


def _sum(scores: Sequence[Tensor], batch: Size) -> Tensor:
    """The log-probability of all parts, over whatever dims a part has beyond the batch."""
    total: Any = 0
    for score in scores:
        total = total + (score.flatten(len(batch)).sum(-1) if score.ndim > len(batch) else score)
    return total


def _leaves_under(root: Key, keys: Sequence[Key]) -> list[tuple[Key, Key, str]]:
    """``(key, part, argument)`` of the parameters that lie under a root."""
    path = as_path(root)
    found: list[tuple[Key, Key, str]] = []
    for key in keys:
        names = as_path(key)
        if names[: len(path)] == path and len(names) > len(path) + 1:
            found.append((key, as_key(names[len(path) : -1]), names[-1]))
    return found
