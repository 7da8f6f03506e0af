"""``torch.stack`` and other torch functions on specs; equal specs give a dense spec, different ones a lazy stack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rl_core.errors import SpecError
from rl_core.specs.base import TensorSpec
from rl_core.specs.bounded import Bounded
from rl_core.specs.composite import Composite
from rl_core.specs.single_choice import SingleChoice
from rl_core.specs.stacked import Stacked
from rl_core.specs.stacked_composite import StackedComposite

__all__ = ["stack_specs", "torch_function"]


def stack_specs(specs: Sequence[TensorSpec], dim: int = 0) -> TensorSpec:
    """Stack specs along a new dimension, which counts as a batch dimension.

    Args:
        specs: at least one.
        dim: where the new dimension stands; negative numbers count from the end of the result.

    Returns:
        A dense spec where the specs are equal, or differ only by bounds or masks; else a :class:`Stacked` or a
        :class:`StackedComposite`.
    """
    specs = list(specs)
    if not specs or not all(isinstance(spec, TensorSpec) for spec in specs):
        raise SpecError(f"torch.stack of specs needs one or more specs, found {specs!r}.")
    first = specs[0]
    if not -first.ndim - 1 <= dim <= first.ndim:
        raise SpecError(f"torch.stack: dimension {dim} is out of range for specs of shape {list(first.shape)}.")
    at = dim % (first.ndim + 1)
    dense = _dense(specs, at)
    if dense is not None:
        return dense
    composites = [spec for spec in specs if isinstance(spec, Composite)]
    if len(composites) == len(specs):
        return StackedComposite(*composites, dim=at)
    return Stacked(*specs, dim=at)


def _dense(specs: Sequence[TensorSpec], at: int) -> TensorSpec | None:
    """The dense stack, or None if there is none."""
    first = specs[0]
    if isinstance(first, (Stacked, StackedComposite)):
        return None
    if all(spec == first for spec in specs[1:]):
        return _repeated(first, len(specs), at)
    if any(type(spec) is not type(first) or spec.shape != first.shape or spec.dtype != first.dtype for spec in specs):
        return None
    if any(spec.device != first.device for spec in specs):
        return None
    if isinstance(first, Bounded):
        low = torch.stack([spec.low for spec in specs], at)  # type: ignore[attr-defined]
        high = torch.stack([spec.high for spec in specs], at)  # type: ignore[attr-defined]
        return _repeated(first, len(specs), at).replace(low=low, high=high)
    if isinstance(first, SingleChoice):
        return _dense_choice([spec for spec in specs if isinstance(spec, SingleChoice)], at)
    if isinstance(first, Composite):
        return _dense_composite([spec for spec in specs if isinstance(spec, Composite)], at)
    return None


def _repeated(spec: TensorSpec, count: int, at: int) -> TensorSpec:
    one = spec.unsqueeze(at)
    return one.expand([count if i == at else -1 for i in range(one.ndim)])


def _dense_choice(specs: Sequence[SingleChoice], at: int) -> TensorSpec | None:
    """Choices that differ by their masks only."""
    if len({(spec.n, spec.start) for spec in specs}) > 1:
        return None
    masks = torch.stack([spec.full_mask() for spec in specs], at)
    plain = specs[0].replace(mask=None)
    return _repeated(plain, len(specs), at).replace(mask=masks)


def _dense_composite(specs: Sequence[Composite], at: int) -> TensorSpec | None:
    """Composites of the same keys, all of whose entries have a dense stack."""
    first = specs[0]
    if any(set(spec.keys()) != set(first.keys()) for spec in specs):
        return None
    entries = {key: _dense([spec[key] for spec in specs], at) for key in first.keys()}  # noqa: SIM118
    if any(entry is None for entry in entries.values()):
        return None
    shape = torch.Size([*first.shape[:at], len(specs), *first.shape[at:]])
    return Composite(entries, shape=shape, device=first.device)


def torch_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a torch function means for specs."""
    if func is torch.stack:
        return stack_specs(*args, **kwargs)
    name = _METHODS.get(func)
    if name is None:
        return NotImplemented
    return getattr(args[0], name)(*args[1:], **kwargs)


_METHODS: dict[Any, str] = {
    torch.squeeze: "squeeze",
    torch.unsqueeze: "unsqueeze",
    torch.index_select: "index_select",
    torch.permute: "permute",
    torch.reshape: "reshape",
    torch.flatten: "flatten",
    torch.unflatten: "unflatten",
    torch.unbind: "unbind",
    torch.clone: "clone",
    torch.Tensor.expand: "expand",
    torch.zeros_like: "zero",
    torch.ones_like: "one",
    torch.rand_like: "rand",
}
