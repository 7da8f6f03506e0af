"""TensorSpec: what every spec can do, and the one path (``replace``) by which every spec is rebuilt.

A kind of spec defines its constructor, ``_config`` (the constructor arguments that rebuild it), how to draw, check and
project values, and how a change of shape moves its bounds or masks (``_moved``). Everything else is here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from rl_core.errors import SpecError
from rl_core.specs import shape_ops
from rl_core.specs.boxes import Box
from rl_core.specs.shape_ops import ShapeOp, as_size
from rl_core.specs.values import as_tensor, concrete, same

__all__ = ["Shape", "TensorSpec"]

Shape = int | Sequence[int]


class TensorSpec:
    """What a tensor (or a TensorDict, or Python objects) may be: shape, dtype, device and values.

    Args:
        shape: shape of a value, including the batch dimensions of the Composite that holds the spec. -1 is dynamic.
        dtype: the exact dtype of a value.
        device: where values are made.

    Attributes:
        batch_ndim: how many leading dimensions of ``shape`` are batch dimensions. A value may have any number of
            further dimensions (time, minibatch) before, between or after these: with ``shape = [4, 3]`` and
            ``batch_ndim = 1`` both ``[20, 4, 3]`` and a rollout's ``[4, 20, 3]`` are accepted. Set by the Composite
            that holds the spec.
    """

    shape: torch.Size
    dtype: torch.dtype | None
    device: torch.device | None
    batch_ndim: int
    domain: ClassVar[str | None] = None

    def __init__(self, shape: Shape | None, dtype: torch.dtype | None, device: torch.device | str | int | None) -> None:
        self.shape = as_size(shape)
        self.dtype = dtype
        self.device = torch.device("cpu" if device is None else device)
        self.batch_ndim = 0
        self._concrete = concrete(self.shape)

    # What a kind defines

    def _config(self) -> dict[str, Any]:
        """The constructor arguments that rebuild this spec."""
        raise NotImplementedError

    def _moved(self, op: ShapeOp, n: int) -> dict[str, Any]:
        """The changes that a change of the first ``n`` dimensions makes: the new shape, bounds, masks."""
        return {"shape": op.shape(self.shape, n)}

    def _draw(self, shape: torch.Size) -> Any:
        """Draw legal values of the full shape."""
        raise NotImplementedError

    def _legal(self, val: Any, at: int, extra: int) -> bool:
        """Whether all values are legal; dtype and shape are right, with ``extra`` further dimensions at ``at``."""
        raise NotImplementedError

    def _project(self, val: Any, at: int, extra: int) -> Any:
        """The nearest legal values, in the spec's dtype."""
        raise NotImplementedError

    def _why_not(self, val: Any, at: int, extra: int) -> str:
        """A sentence on the first value that is not legal."""
        raise NotImplementedError

    @property
    def space(self) -> Box | None:
        """What values are admitted, as a box with ``low`` and ``high`` or ``n``."""
        return None

    # Rebuilding

    def replace(self, **changes: Any) -> Self:
        """A spec of the same kind with some constructor arguments (or ``batch_ndim``) changed."""
        batch_ndim = changes.pop("batch_ndim", self.batch_ndim)
        new = self._made({**self._config(), **changes})
        new.batch_ndim = min(batch_ndim, len(new.shape))
        return new

    @classmethod
    def _made(cls, config: dict[str, Any]) -> Self:
        """A spec from the arguments that ``_config`` gives."""
        return cls(**config)

    def _apply(self, op: ShapeOp, n: int | None = None) -> Self:
        changes = self._moved(op, self.ndim if n is None else n)
        return self.replace(batch_ndim=op.batch(self.batch_ndim, self.shape), **changes)

    def clone(self) -> Self:
        """A copy that shares nothing that can change."""
        return copy.deepcopy(self)

    def to(self, dest: torch.device | torch.dtype | str | int) -> Self:
        """The spec on another device or of another dtype."""
        if isinstance(dest, torch.dtype):
            return self if dest == self.dtype else self.replace(dtype=dest)
        device = torch.device(dest)
        return self if device == self.device else self.replace(device=device)

    def cpu(self) -> Self:
        """The spec on the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | str | None = None) -> Self:
        """The spec on a CUDA device."""
        return self.to(torch.device("cuda") if device is None else torch.device(device))

    def expand(self, *shape: Any) -> Self:
        """Broadcast to a larger shape; new leading dimensions are batch dimensions."""
        return self._apply(shape_ops.expand(as_size(*shape), self._outer))

    def reshape(self, *shape: Any) -> Self:
        """Another shape of as many elements."""
        return self._apply(shape_ops.reshape(as_size(*shape), self._outer))

    view = reshape

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Merge dimensions."""
        return self._apply(shape_ops.flatten(start_dim, end_dim, self._outer))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Self:
        """Split a dimension."""
        return self._apply(shape_ops.unflatten(dim, sizes, self._outer))

    def unsqueeze(self, dim: int) -> Self:
        """Insert a dimension of size 1."""
        return self._apply(shape_ops.unsqueeze(dim, self._outer))

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Drop dimensions of size 1."""
        return self._apply(shape_ops.squeeze(dim, self._outer))

    def permute(self, *dims: Any) -> Self:
        """Reorder dimensions."""
        return self._apply(shape_ops.permute(as_size(*dims), self._outer))

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Some rows of a dimension."""
        return self[(slice(None),) * (dim % max(self.ndim, 1)) + (index,)]

    def __getitem__(self, key: Any) -> Any:
        """Index the spec's dimensions as a tensor's."""
        return self._apply(shape_ops.index(key, self._outer))

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        """One spec per row of a dimension."""
        dim = dim % max(self.ndim, 1)
        return tuple(self[(slice(None),) * dim + (i,)] for i in range(len(self) if dim == 0 else self._outer[dim]))

    def make_neg_dim(self, dim: int) -> Self:
        """Make one dimension dynamic (-1)."""
        if not -self.ndim <= dim < self.ndim:
            raise SpecError(f"make_neg_dim: dimension {dim} is out of range for a spec of shape {list(self.shape)}.")
        sizes = list(self.shape)
        sizes[dim] = -1
        return self.replace(shape=torch.Size(sizes))

    @property
    def _outer(self) -> torch.Size:
        """The dimensions that shape operations are about: all of a leaf, the batch dimensions of a Composite."""
        return self.shape

    # Values

    def rand(self, shape: Shape | None = None) -> Any:
        """Random legal values of shape ``[*shape, *spec.shape]``, from torch's default generator."""
        return self._draw(torch.Size((*as_size(shape), *self._concrete)) if shape else self._concrete)

    def sample(self, shape: Shape | None = None) -> Any:
        """The same as :meth:`rand`."""
        return self.rand(shape)

    def blank(self, shape: Shape | None = None) -> Any:
        """All zeros, whether legal or not; for buffers that are overwritten before they are read."""
        return torch.zeros((*as_size(shape), *self._concrete), dtype=self.dtype, device=self.device)

    def zero(self, shape: Shape | None = None) -> Any:
        """The legal values nearest to zero (the first legal category of a one-hot)."""
        return self._constant(0, shape)

    def zeros(self, shape: Shape | None = None) -> Any:
        """The same as :meth:`zero`."""
        return self._constant(0, shape)

    def one(self, shape: Shape | None = None) -> Any:
        """The legal values nearest to one."""
        return self._constant(1, shape)

    def ones(self, shape: Shape | None = None) -> Any:
        """The same as :meth:`one`."""
        return self._constant(1, shape)

    def _constant(self, number: int, shape: Shape | None) -> Any:
        lead = as_size(shape)
        full = torch.full((*lead, *self._concrete), number, dtype=self.dtype, device=self.device)
        return self._project(full, 0, len(lead))

    def is_in(self, val: Any) -> bool:
        """Whether a value is legal: exact dtype, matching shape, values in range and allowed by the mask."""
        if not isinstance(val, Tensor) or val.dtype != self.dtype:
            return False
        if val.shape == self.shape:
            return self._legal(val, 0, 0)
        return any(self._legal(val, at, extra) for at, extra in self._places(val.shape))

    def contains(self, val: Any) -> bool:
        """The same as :meth:`is_in`."""
        return self.is_in(val)

    def project(self, val: Any) -> Any:
        """The value itself where legal, else the nearest legal one; the argument is left alone."""
        if self.is_in(val):
            return val
        place = self._place(val)
        return self._project(val, *place)

    def _places(self, shape: torch.Size) -> Iterator[tuple[int, int]]:
        """Where the dimensions that a value has beyond the spec's may stand: pairs of (position, count)."""
        own, extra = self.shape, len(shape) - len(self.shape)
        if extra < 0:
            if -extra <= self.batch_ndim and self._fits(shape, own[-extra:] if shape else own[len(own) :]):
                yield 0, extra
            return
        for at in range(self.batch_ndim + 1):
            if self._fits((*shape[:at], *shape[at + extra :]), own):
                yield at, extra
            if not extra:
                return

    def _fits(self, found: Sequence[int], own: torch.Size) -> bool:
        batch = self.batch_ndim - (self.ndim - len(own))
        return all(
            f == o or o == -1 or (i < batch and 1 in (f, o)) for i, (f, o) in enumerate(zip(found, own, strict=True))
        )

    def _place(self, val: Any) -> tuple[int, int]:
        if not isinstance(val, Tensor):
            raise SpecError(f"{self._name} expected a tensor, found {type(val).__name__}: {val!r}.")
        place = next(self._places(val.shape), None)
        if place is None:
            raise SpecError(self._shape_message(val.shape))
        return place

    # Encoding

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """A native value (number, list, array) as a tensor of the spec's dtype and shape; arrays are copied.

        Args:
            val: the native value; extra leading dimensions and other dimensions of size 1 are accepted.
            ignore_device: leave the result where it is made instead of moving it to the spec's device.
        """
        return self._fitted(as_tensor(val, self.dtype, None if ignore_device else self.device))

    def _fitted(self, tensor: Tensor) -> Tensor:
        if tensor.shape == self.shape or next((extra >= 0 for _, extra in self._places(tensor.shape)), False):
            return tensor
        if [size for size in tensor.shape if size != 1] == [size for size in self._concrete if size != 1]:
            return tensor.reshape(self._concrete)
        raise SpecError(self._shape_message(tensor.shape))

    def to_numpy(self, val: Any) -> Any:
        """The native value of a tensor: the inverse of :meth:`encode`."""
        return val.detach().cpu().numpy()

    # Explanations

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _shape_message(self, found: Sequence[int]) -> str:
        extra = f" whose first {self.batch_ndim} dimensions are the batch" if self.batch_ndim else ""
        return (
            f"{self._name} expected the shape {list(self.shape)}{extra}, with further leading dimensions if any; "
            f"found {list(found)}."
        )

    def explain(self, val: Any) -> str | None:
        """Why a value is not legal, in a sentence; None when it is."""
        if not isinstance(val, Tensor):
            return f"{self._name} expected a tensor of dtype {self.dtype}, found {type(val).__name__}: {val!r}."
        if val.dtype != self.dtype:
            return f"{self._name} expected dtype {self.dtype}, found {val.dtype}. Cast it, or use spec.encode(value)."
        places = list(self._places(val.shape))
        if not places:
            return self._shape_message(val.shape)
        if any(self._legal(val, *place) for place in places):
            return None
        return f"{self._name} of shape {list(self.shape)}: {self._why_not(val, *places[0])}"

    def assert_is_in(self, val: Any) -> None:
        """Raise a SpecError that says what was expected and found, unless the value is legal."""
        reason = None if self.is_in(val) else self.explain(val)
        if reason is not None:
            raise SpecError(reason)

    def type_check(self, val: Any, key: Any = None) -> None:
        """Raise a SpecError unless the value has the spec's dtype."""
        found = getattr(val, "dtype", type(val).__name__)
        if found != self.dtype:
            where = "" if key is None else f" under {key!r}"
            raise SpecError(f"{self._name}{where} expected dtype {self.dtype}, found {found}.")

    # Counting

    def cardinality(self) -> float | int:
        """How many values (of the spec's shape) are legal without the mask; infinity if they cannot be counted."""
        return float("inf")

    def enumerate(self, use_mask: bool = False) -> Any:
        """All legal values, stacked along a new first dimension.

        Args:
            use_mask: leave out values that the mask forbids.
        """
        raise SpecError(f"{self._name} of shape {list(self.shape)} and dtype {self.dtype} cannot be enumerated.")

    def to_dict(self) -> dict[str, Any]:
        """The spec as a JSON-able dictionary; ``spec_from_dict`` reads it."""
        from rl_core.specs.serialise import spec_to_dict

        return spec_to_dict(self)

    # Python protocol

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def ndimension(self) -> int:
        """The same as :attr:`ndim`."""
        return len(self.shape)

    def dim(self) -> int:
        """The same as :attr:`ndim`."""
        return len(self.shape)

    def __len__(self) -> int:
        """The size of the first dimension."""
        if not self.shape:
            raise TypeError(f"{self._name} of shape [] has no length.")
        return self.shape[0]

    def __bool__(self) -> bool:
        """A spec is true, whatever its length."""
        return True

    def __eq__(self, other: object) -> bool:
        """Same kind and same constructor arguments; ``batch_ndim`` does not count."""
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, TensorSpec)
        mine, theirs = self._identity(), other._identity()
        return mine.keys() == theirs.keys() and all(same(value, theirs[name]) for name, value in mine.items())

    def _identity(self) -> dict[str, Any]:
        """What equality compares."""
        return self._config()

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.shape, self.dtype, self.device))

    def __reduce__(self) -> Any:
        """Pickle by constructor arguments."""
        return _rebuild, (type(self), self._config(), self.batch_ndim)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy of everything that can change."""
        new = self.replace(**copy.deepcopy(self._config(), memo))
        memo[id(self)] = new
        return new

    def __repr__(self) -> str:
        """The constructor call."""
        parts = ", ".join(f"{name}={_short(value)}" for name, value in self._config().items() if value is not None)
        return f"{self._name}({parts})"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """``torch.stack`` and friends work on specs."""
        from rl_core.specs.stacking import torch_function

        return torch_function(func, args, kwargs or {})


def _rebuild(kind: type[TensorSpec], config: dict[str, Any], batch_ndim: int) -> TensorSpec:
    spec = kind._made(config)
    spec.batch_ndim = batch_ndim
    return spec


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return repr(value.tolist()) if value.numel() <= 16 else f"<{value.dtype} of shape {list(value.shape)}>"
    return repr(list(value)) if isinstance(value, torch.Size) else str(value)
