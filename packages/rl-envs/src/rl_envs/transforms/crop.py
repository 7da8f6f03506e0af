"""``Crop`` and ``CenterCrop``: a rectangle of each frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from rl_core import TensorSpec
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.transforms.entry_transform import EntryTransform

__all__ = ["CenterCrop", "Crop"]


class Crop(EntryTransform):
    """Rows ``top .. top + h - 1`` and columns ``left .. left + w - 1`` of frames ``[..., C, H, W]``.

    Args:
        w: width of the result.
        h: height; default: ``w``.
        top: the first row.
        left: the first column.
        in_keys: frames; default ``["pixels"]``.
        out_keys: where to write them; default: the same keys.

    Example:
        >>> import torch
        >>> Crop(2, 1, top=1)._apply_transform(torch.arange(9).reshape(1, 3, 3))
        tensor([[[3, 4]]])
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        top: int = 0,
        left: int = 0,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.w, self.h, self.top, self.left = int(w), int(w if h is None else h), top, left
        if min(self.w, self.h) < 1 or min(top, left) < 0:
            raise ValueError(f"Crop(w={w}, h={h}, top={top}, left={left}): sizes are at least 1, corners at least 0")

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        """The first row and column."""
        return self.top, self.left

    def _window(self, shape: Iterable[int]) -> Any:
        sizes = tuple(shape)
        if len(sizes) < 2 or sizes[-2] < self.h or sizes[-1] < self.w:
            raise EnvError(
                f"{type(self).__name__}(w={self.w}, h={self.h}) does not fit into a frame of shape {sizes}, read as "
                "[..., H, W]; put ToTensorImage ahead of it where channels stand last"
            )
        top, left = self._corner(sizes[-2], sizes[-1])
        if top + self.h > sizes[-2] or left + self.w > sizes[-1]:
            raise EnvError(
                f"{type(self).__name__} of {self.h} rows from {top} and {self.w} columns from {left} leaves the frame "
                f"of shape {sizes}"
            )
        return ..., slice(top, top + self.h), slice(left, left + self.w)

    def _apply_transform(self, value: Tensor) -> Tensor:
        return value[self._window(value.shape)].contiguous()

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        cropped: TensorSpec = leaf[self._window(leaf.shape)]
        return cropped


class CenterCrop(Crop):
    """The middle ``h`` rows of the middle ``w`` columns of frames ``[..., C, H, W]``.

    The first row is ``round((H - h) / 2)``, the first column likewise.

    Args:
        w: width of the result.
        h: height; default: ``w``.
        in_keys: frames; default ``["pixels"]``.
        out_keys: where to write them; default: the same keys.
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__(w, h, in_keys=in_keys, out_keys=out_keys)

    def _corner(self, height: int, width: int) -> tuple[int, int]:
        return round((height - self.h) / 2), round((width - self.w) / 2)
