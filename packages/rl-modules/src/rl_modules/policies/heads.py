"""The distribution that suits an action spec, and how a network's outputs become its parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Size, Tensor, nn
from torch.distributions import Distribution

from rl_core.errors import SpecError
from rl_core.specs import Binary, Bounded, Categorical, MultiCategorical, MultiOneHot, OneHot, TensorSpec, Unbounded
from rl_modules.distributions.bernoulli import IndependentBernoulli
from rl_modules.distributions.categorical import Categorical as CategoricalDistribution
from rl_modules.distributions.gaussian import IndependentNormal
from rl_modules.distributions.masked import MaskedCategorical, MaskedOneHotCategorical
from rl_modules.distributions.multi_categorical import MultiCategorical as MultiCategoricalDistribution
from rl_modules.distributions.multi_categorical import MultiOneHotCategorical
from rl_modules.distributions.one_hot import OneHotCategorical
from rl_modules.distributions.tanh_normal import TanhNormal
from rl_modules.networks.normal_params import NormalParamExtractor

__all__ = ["Head", "SplitHeads", "head_for"]


@dataclass(frozen=True)
class Head:
    """What stands behind a network for one action.

    Attributes:
        outputs: the network's outputs.
        names: the distribution's parameters.
        distribution: its class.
        arguments: its further arguments.
        shape: of each parameter beyond the batch, where that is not one dimension.
        masked: the class that also takes a mask.
    """

    outputs: int
    names: tuple[str, ...]
    distribution: type[Distribution]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    shape: Size | None = None
    masked: type[Distribution] | None = None

    @property
    def splits(self) -> bool:
        """Whether outputs need layers to become parameters."""
        return bool(self.layers())

    def layers(self) -> list[nn.Module]:
        """Modules from the outputs ``[*B, outputs]`` to the parameters."""
        split: list[nn.Module] = [NormalParamExtractor()] if len(self.names) == 2 else []
        return split if self.shape is None else [*split, _Unflatten(self.shape)]


def head_for(spec: TensorSpec, outer_dims: int = 0) -> Head:
    """The head for one action, a leaf.

    Args:
        spec: of the action.
        outer_dims: leading dimensions of the spec that the network's outputs have too, such as a group's agents.

    Raises:
        SpecError: none is known.
    """
    if outer_dims:
        head = head_for(spec[(0,) * outer_dims])
        bounds = {"low": spec.low, "high": spec.high} if isinstance(spec, Bounded) else {}
        return replace(head, arguments={**head.arguments, **bounds})
    if isinstance(spec, OneHot) and spec.ndim == 1:
        return Head(int(spec.n), ("logits",), OneHotCategorical, masked=MaskedOneHotCategorical)
    if isinstance(spec, Categorical) and spec.start == 0 and spec.ndim == 0:
        return Head(int(spec.n), ("logits",), CategoricalDistribution, masked=MaskedCategorical)
    if isinstance(spec, (MultiOneHot, MultiCategorical)) and not bool(spec.start.any()):
        return _choices(spec)
    if isinstance(spec, Binary) and spec.ndim:
        shape = spec.shape if spec.ndim > 1 else None
        return Head(math.prod(spec.shape), ("logits",), IndependentBernoulli, {"event_dims": spec.ndim}, shape)
    if isinstance(spec, (Bounded, Unbounded)) and spec.dtype is not None and spec.dtype.is_floating_point and spec.ndim:
        return _normal(spec)
    raise SpecError(
        f"build_actor knows no head for {spec!r}; it knows Categorical and MultiCategorical (start 0), OneHot, "
        "MultiOneHot, Binary, Bounded and Unbounded floats, and Composites of these. Build the policy by hand with "
        "ProbabilisticActor(..., distribution_class=...)"
    )


def _choices(spec: MultiOneHot | MultiCategorical) -> Head:
    nvec = [int(n) for n in spec.nvec.flatten()]
    if isinstance(spec, MultiOneHot):
        if spec.ndim == 1:
            masked = MultiOneHotCategorical
            return Head(sum(nvec), ("logits",), masked, {"nvec": nvec}, masked=masked)
    elif spec.shape == spec.nvec.shape:
        arguments = {"nvec": nvec, "event_shape": tuple(spec.shape)}
        multi = MultiCategoricalDistribution
        return Head(sum(nvec), ("logits",), multi, arguments, masked=multi)
    raise SpecError(f"build_actor takes the spec of one environment's action (env.action_spec_unbatched), not {spec!r}")


def _normal(spec: Bounded | Unbounded) -> Head:
    size = 2 * math.prod(spec.shape)
    shape = spec.shape if spec.ndim > 1 else None
    if isinstance(spec, Bounded):
        arguments: dict[str, Any] = {"low": spec.low, "high": spec.high}
        if shape is not None:
            arguments["event_dims"] = spec.ndim
        return Head(size, ("loc", "scale"), TanhNormal, arguments, shape)
    return Head(size, ("loc", "scale"), IndependentNormal, {} if shape is None else {"event_dim": spec.ndim}, shape)


class _Unflatten(nn.Module):
    """Gives each tensor's last dimension a shape."""

    def __init__(self, shape: Size) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...] | Tensor:
        """``[*B, prod(shape)] -> [*B, *shape]``."""
        shaped = tuple(tensor.unflatten(-1, self.shape) for tensor in (tensors[0] if _is_tuple(tensors) else tensors))
        return shaped if len(shaped) > 1 else shaped[0]


def _is_tuple(tensors: tuple[Any, ...]) -> bool:
    """nn.Sequential hands a tuple on as one argument."""
    return len(tensors) == 1 and isinstance(tensors[0], tuple)


class SplitHeads(nn.Module):
    """Splits one output into the parameters of several heads.

    Args:
        heads: the heads.
    """

    def __init__(self, heads: Sequence[Head]) -> None:
        super().__init__()
        self.sizes = [head.outputs for head in heads]
        self.heads = nn.ModuleList([nn.Sequential(*head.layers()) for head in heads])

    def forward(self, joint: Tensor) -> tuple[Tensor, ...]:
        """``[*B, sum of outputs]`` to the parameters of all heads, in order."""
        parameters: list[Tensor] = []
        for head, part in zip(self.heads, joint.split(self.sizes, -1), strict=True):
            made = head(part)
            parameters += made if isinstance(made, tuple) else [made]
        return tuple(parameters)
