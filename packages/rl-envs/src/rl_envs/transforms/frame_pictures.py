"""Pictures of observed frames: bytes with channels first, cropped, of a batch laid out as a grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from rl_core.errors import EnvError

__all__ = ["grid_of", "picture_of"]


def picture_of(frame: Any, crop: int | None = None) -> np.ndarray:
    """A frame (or a batch of them) as bytes, colours first.

    Args:
        frame: ``[..., C, H, W]`` or ``[..., H, W, C]``, C = 3 or 1, bytes or floats in 0 .. 1.
        crop: keep the middle square of that size.

    Returns:
        uint8 ``[..., 3, H, W]``.

    Raises:
        EnvError: it is no picture.
    """
    array = np.asarray(frame.detach().cpu() if isinstance(frame, Tensor) else frame)
    if array.ndim >= 3 and array.shape[-1] in (1, 3) and array.shape[-3] not in (1, 3):
        array = np.moveaxis(array, -1, -3)
    if array.ndim < 3 or array.shape[-3] not in (1, 3):
        raise EnvError(
            f"VideoRecorder takes frames [..., 3, H, W] or [..., H, W, 3] (or one channel), got shape {array.shape}; "
            "put it ahead of transforms that stack frames"
        )
    if array.dtype != np.uint8:
        scaled = array * 255.0 if array.dtype.kind == "f" else array
        array = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    if crop is not None:
        top, left = ((size - crop) // 2 for size in array.shape[-2:])
        array = array[..., max(top, 0) : max(top, 0) + crop, max(left, 0) : max(left, 0) + crop]
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:-3], 3, *array.shape[-2:])))


def grid_of(pictures: np.ndarray) -> np.ndarray:
    """N pictures ``[N, 3, H, W]`` as one, in rows of ``ceil(sqrt(N))``; places left over are black.

    >>> grid_of(np.ones((5, 3, 2, 4), dtype=np.uint8)).shape
    (3, 4, 12)
    """
    count, channels, height, width = pictures.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    padded = np.zeros((rows * columns, channels, height, width), dtype=np.uint8)
    padded[:count] = pictures
    tiled = padded.reshape(rows, columns, channels, height, width).transpose(2, 0, 3, 1, 4)
    return tiled.reshape(channels, rows * height, columns * width)
