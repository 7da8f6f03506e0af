"""NonTensor: one Python object (a text, an image handle, ...) per batch element."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from rl_core.errors import SpecError
from rl_core.specs.base import Shape, TensorSpec
from rl_core.specs.shape_ops import as_size

__all__ = ["NonTensor"]


class NonTensor(TensorSpec):
    """Any Python object, one per batch element; nothing about it is checked.

    Args:
        shape: the batch shape.
        device: of the container.
        example_data: what ``rand`` and ``zero`` give.
        batched: make a ``NonTensorStack`` with an object per element rather than one ``NonTensorData`` for all.

    Example:
        >>> NonTensor(example_data="a text").rand().data
        'a text'
    """

    def __init__(
        self,
        shape: Shape = (),
        device: torch.device | str | int | None = None,
        example_data: Any = None,
        batched: bool = False,
    ) -> None:
        super().__init__(shape, None, device)
        self.example_data = example_data
        self.batched = bool(batched)
        self.batch_ndim = self.ndim

    def _config(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "device": self.device,
            "example_data": self.example_data,
            "batched": self.batched,
        }

    def to(self, dest: torch.device | torch.dtype | str | int) -> Any:
        """The spec on another device; a dtype changes nothing."""
        return self if isinstance(dest, torch.dtype) else super().to(dest)

    def _draw(self, shape: torch.Size) -> Any:
        if self.batched and shape:
            return _stack(self.example_data, shape, self.device)
        return NonTensorData(self.example_data, batch_size=shape, device=self.device)

    def _constant(self, number: int, shape: Shape | None) -> Any:
        return self.rand(shape)

    def blank(self, shape: Shape | None = None) -> Any:
        """The example."""
        return self.rand(shape)

    def is_in(self, val: Any) -> bool:
        """Whether the value is Python data of a fitting batch shape; a bare object fits a spec without batch."""
        if isinstance(val, (NonTensorData, NonTensorStack)):
            return val.batch_size == self.shape or any(True for _ in self._places(val.batch_size))
        if isinstance(val, (torch.Tensor, TensorDictBase)):
            return False
        return not self.shape or (isinstance(val, list) and len(val) == self.shape[0])

    def project(self, val: Any) -> Any:
        """The value itself."""
        return val

    def explain(self, val: Any) -> str | None:
        """Why a value is not legal, in a sentence; None when it is."""
        if self.is_in(val):
            return None
        found = f"{type(val).__name__} of shape {list(getattr(val, 'shape', []))}"
        return f"NonTensor expected Python data of batch shape {list(self.shape)}, found {found}."

    def type_check(self, val: Any, key: Any = None) -> None:
        """Raise a SpecError if the value is a tensor."""
        if isinstance(val, torch.Tensor):
            raise SpecError(
                f"NonTensor{'' if key is None else f' under {key!r}'} expected Python data, found a tensor."
            )

    def encode(self, val: Any, *, ignore_device: bool = False) -> Any:
        """The object as ``NonTensorData``; a list of as many objects as the batch has as ``NonTensorStack``."""
        device = None if ignore_device else self.device
        if isinstance(val, (NonTensorData, NonTensorStack)):
            return val
        if self.ndim == 1 and isinstance(val, (list, tuple)) and len(val) == self.shape[0]:
            return NonTensorStack(*[NonTensorData(item, device=device) for item in val])
        return NonTensorData(val, batch_size=self._concrete, device=device)

    def to_numpy(self, val: Any) -> Any:
        """The object, or a list of them."""
        if isinstance(val, NonTensorStack):
            return val.tolist()
        return val.data if isinstance(val, NonTensorData) else val

    def __hash__(self) -> int:
        """Equal specs have equal hashes."""
        return hash((type(self).__name__, self.shape, self.device))


def _stack(data: Any, shape: torch.Size, device: torch.device | None) -> Any:
    if not shape:
        return NonTensorData(data, device=device)
    return NonTensorStack(*[_stack(data, as_size(shape[1:]), device) for _ in range(shape[0])])
