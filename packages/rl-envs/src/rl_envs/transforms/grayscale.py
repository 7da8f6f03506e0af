"""``GrayScale``: one channel of brightness for three of colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core import Bounded, Columns, RowProgram, TensorSpec
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.transforms.entry_transform import EntryTransform, dtype_of, ranged
from rl_envs.transforms.numpy_rows import entry_program

__all__ = ["GrayScale"]

_SMALL = 16384  # pixels: smaller frames are mapped together, larger ones one by one, so that they stay in the cache


class GrayScale(EntryTransform):
    """``0.2989 red + 0.587 green + 0.114 blue``, the brightness of ITU-R BT.601, in one channel.

    Bytes stay bytes: ``(77 red + 150 green + 29 blue + 128) // 256``, which is that number rounded (at most 1 apart),
    and maps white to white.

    Args:
        in_keys: frames ``[..., 3, H, W]``; default ``["pixels"]``.
        out_keys: where to write them, ``[..., 1, H, W]``; default: the same keys.
        channels_last: frames are ``[..., H, W, 3]`` and become ``[..., H, W, 1]``.

    Example:
        >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(3, 1, 1)
        >>> GrayScale()._apply_transform(red).flatten()
        tensor([77], dtype=torch.uint8)
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        *,
        channels_last: bool = False,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.channels_last = channels_last
        self._dim = -1 if channels_last else -3

    def _check(self, shape: Iterable[int]) -> None:
        sizes = tuple(shape)
        if len(sizes) < 3 or sizes[self._dim] != 3:
            wanted = "[..., H, W, 3]" if self.channels_last else "[..., 3, H, W]"
            cure = "put ToTensorImage ahead of it, or give channels_last=True"
            raise EnvError(f"GrayScale takes frames {wanted}, got shape {sizes}; {cure if sizes[-1:] == (3,) else ''}")

    def _apply_transform(self, value: Tensor) -> Tensor:
        self._check(value.shape)
        if value.dtype == torch.uint8 and value.device.type == "cpu":
            result = torch.empty(self._shape(value.shape), dtype=torch.uint8)
            self._write(value.numpy(), result.numpy())
            return result
        red, green, blue = value.split(1, self._dim)
        if value.dtype == torch.uint8:
            total = red.to(torch.int32) * 77 + green.to(torch.int32) * 150 + blue.to(torch.int32) * 29
            return ((total + 128) >> 8).to(torch.uint8)
        result = 0.2989 * red + 0.587 * green + 0.114 * blue
        return result if value.is_floating_point() else result.round().to(value.dtype)

    def _shape(self, shape: Iterable[int]) -> list[int]:
        sizes = list(shape)
        sizes[self._dim] = 1
        return sizes

    def _write(self, source: np.ndarray, target: np.ndarray) -> None:
        """Bytes, by numpy."""
        planes, out = np.moveaxis(source, self._dim, 0), np.moveaxis(target, self._dim, 0)[0]
        if planes[0].ndim == 2 or planes.shape[-1] * planes.shape[-2] <= _SMALL:
            _gray(planes, out)
            return
        for place in np.ndindex(planes.shape[1:-2]):
            chosen: tuple[Any, ...] = (slice(None), *place)
            _gray(planes[chosen], out[place])

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        self._check(leaf.shape)
        shape = self._shape(leaf.shape)
        if not isinstance(leaf, Bounded) or not dtype_of(leaf).is_floating_point:
            return ranged(leaf, shape=shape)
        low, high = leaf.low.min().item(), leaf.high.max().item()  # the weights sum to 0.9999
        return ranged(leaf, shape=shape, low=min(low, 0.9998 * low), high=max(high, 0.9998 * high))

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Bytes in place; other numbers by torch."""
        for key in self.in_keys:
            if key in before and before[key].dtype != np.uint8:
                return super().row_program(before, after)
        pairs = zip(self.in_keys, self.out_keys, strict=True)
        return entry_program(self, before, after, [(key, out, self._write) for key, out in pairs])


def _gray(planes: np.ndarray, out: np.ndarray) -> None:
    """``planes`` are red, green and blue; 16 bits hold the sum of the products."""
    total, green, blue = (plane.astype(np.uint16) for plane in planes)
    total *= 77
    green *= 150
    blue *= 29
    total += green
    total += blue
    total += 128
    total >>= 8
    out[...] = total
