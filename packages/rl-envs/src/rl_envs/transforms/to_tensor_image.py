"""``ToTensorImage``: from frames as simulators give them to frames as networks want them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from rl_core import Bounded, Columns, RowProgram, TensorSpec
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.transforms.entry_transform import EntryTransform, dtype_of, ranged
from rl_envs.transforms.numpy_rows import entry_program

__all__ = ["ToTensorImage"]

_CHANNELS = (1, 3, 4)


class ToTensorImage(EntryTransform):
    """``[..., H, W, C]`` in 0 .. 255 becomes ``[..., C, H, W]`` in 0 .. 1.

    Args:
        from_int: divide by 255; default: where the frames are uint8.
        unsqueeze: put a dimension of size 1 before the channels.
        dtype: of the result; default: float32 (torch's default dtype) where numbers are divided, else that of the
            frames. ``ToTensorImage(from_int=False)`` keeps bytes, a quarter of the memory, for a network that divides.
        in_keys: frames; default ``["pixels"]``.
        out_keys: where to write them; default: the same keys.
        shape_tolerant: leave frames in place whose last dimension is no number of channels (1, 3 or 4).

    Example:
        >>> ToTensorImage()._apply_transform(torch.full((4, 5, 3), 255, dtype=torch.uint8)).shape
        torch.Size([3, 4, 5])
    """

    def __init__(
        self,
        from_int: bool | None = None,
        unsqueeze: bool = False,
        dtype: torch.dtype | None = None,
        *,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        shape_tolerant: bool = False,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        if dtype is not None and not dtype.is_floating_point and from_int is not False:
            raise ValueError(f"ToTensorImage(dtype={dtype}) cannot hold numbers in 0 .. 1; give from_int=False with it")
        self.from_int, self.unsqueeze, self.dtype = from_int, unsqueeze, dtype
        self.shape_tolerant = shape_tolerant

    def _divides(self, dtype: torch.dtype) -> bool:
        return dtype == torch.uint8 if self.from_int is None else self.from_int

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        if self.dtype is not None:
            return self.dtype
        return torch.get_default_dtype() if self._divides(dtype) and not dtype.is_floating_point else dtype

    def _moves(self, shape: torch.Size) -> bool:
        """Whether channels stand last."""
        if len(shape) < 3:
            raise EnvError(
                f"ToTensorImage takes frames [..., H, W, C], got shape {tuple(shape)}; name them with in_keys=[...]"
            )
        return not self.shape_tolerant or shape[-1] in _CHANNELS

    def _apply_transform(self, value: Tensor) -> Tensor:
        result = value.movedim(-1, -3) if self._moves(value.shape) else value
        result = result.to(self._dtype(value.dtype), memory_format=torch.contiguous_format).contiguous()
        if self._divides(value.dtype):
            result = result.div_(255) if result is not value else result.div(255)
        return result.unsqueeze(-4) if self.unsqueeze else result

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        shape = list(leaf.shape)
        if self._moves(leaf.shape):
            shape = [*shape[:-3], shape[-1], *shape[-3:-1]]
        if self.unsqueeze:
            shape.insert(len(shape) - 3, 1)
        dtype = self._dtype(dtype_of(leaf))
        if self._divides(dtype_of(leaf)) and isinstance(leaf, Bounded):
            low, high = leaf.low.min().item() / 255, leaf.high.max().item() / 255
            return ranged(leaf, shape=shape, dtype=dtype, low=low, high=high)
        return ranged(leaf, shape=shape, dtype=dtype)

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """One pass that moves and casts, one that divides, both in place."""

        def write(source: np.ndarray, target: np.ndarray) -> None:
            image = np.moveaxis(source, -1, -3) if self._moves(torch.Size(source.shape)) else source
            np.copyto(target.reshape(image.shape), image, casting="unsafe")
            if source.dtype == np.uint8 if self.from_int is None else self.from_int:
                np.divide(target, 255, out=target)

        pairs = zip(self.in_keys, self.out_keys, strict=True)
        return entry_program(self, before, after, [(key, out, write) for key, out in pairs])
