"""``Resize``: frames of another size."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rl_core import TensorSpec, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_envs.transforms.entry_transform import EntryTransform, ranged

__all__ = ["Resize"]

_MODES = ("bilinear", "bicubic", "nearest", "nearest-exact")
_SMOOTH = ("bilinear", "bicubic")


class Resize(EntryTransform):
    """Interpolates frames to ``h`` rows of ``w`` pixels.

    "bilinear" and "bicubic" are antialiased: a smaller frame averages over all pixels under a kernel that is as many
    times wider as the frame shrinks, as in ``torch.nn.functional.interpolate(..., antialias=True)`` and so in
    torchvision's ``resize``. "nearest" and "nearest-exact" take single pixels. Bytes stay bytes, rounded in fixed
    point, which may differ by 1 from a computation in floats; other integers are rounded from floats.

    Args:
        w: width of the result.
        h: height; default: ``w``.
        interpolation: "bilinear", "bicubic", "nearest" or "nearest-exact".
        in_keys: frames ``[..., C, H, W]``; default ``["pixels"]``.
        out_keys: where to write them; default: the same keys.
        channels_last: frames are ``[..., H, W, C]``; for bytes of three channels that is the fastest order.

    Example:
        >>> image = torch.tensor([[[0.0, 2.0], [4.0, 6.0]]])
        >>> Resize(1, 1)._apply_transform(image)
        tensor([[[3.]]])
    """

    def __init__(
        self,
        w: int,
        h: int | None = None,
        interpolation: str = "bilinear",
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        *,
        channels_last: bool = False,
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        self.w, self.h = int(w), int(w if h is None else h)
        if self.w < 1 or self.h < 1:
            raise ValueError(f"Resize(w={w}, h={h}) asks for a frame without pixels; both are at least 1")
        if interpolation not in _MODES:
            raise ValueError(f"interpolation must be one of {', '.join(map(repr, _MODES))}, got {interpolation!r}")
        self.interpolation, self.channels_last = interpolation, channels_last

    def _apply_transform(self, value: Tensor) -> Tensor:
        if value.ndim < 3:
            raise EnvError(
                f"Resize takes frames [..., C, H, W], got shape {tuple(value.shape)}; put ToTensorImage ahead of it, "
                "or name the frames with in_keys=[...]"
            )
        lead = value.shape[:-3]
        images = value.reshape(-1, *value.shape[-3:])
        if self.channels_last:
            images = images.permute(0, 3, 1, 2)
        if value.dtype == torch.uint8 and images.shape[1] == 1 and value.device.type == "cpu":
            result = self._single_channel(images)
        elif value.dtype == torch.uint8 or value.is_floating_point():
            result = self._interpolate(images)
        else:
            result = self._interpolate(images.to(torch.get_default_dtype())).round().to(value.dtype)
        if self.channels_last:
            result = result.permute(0, 2, 3, 1)
        return result.reshape(*lead, *result.shape[1:])

    def _interpolate(self, images: Tensor) -> Tensor:
        """``[N, C, H, W]`` in its new size."""
        return F.interpolate(
            images, size=(self.h, self.w), mode=self.interpolation, antialias=self.interpolation in _SMOOTH
        )

    def _single_channel(self, images: Tensor) -> Tensor:
        """Bytes of one channel, four frames at a time as if they were the channels of one, as torch is fastest on."""
        count, _, height, width = images.shape
        frames = images.reshape(count, height, width).numpy()
        packed = np.zeros((-(-count // 4), height, width, 4), dtype=np.uint8)
        for channel in range(4):
            chosen = frames[channel::4]
            packed[: len(chosen), ..., channel] = chosen
        small = self._interpolate(torch.from_numpy(packed).permute(0, 3, 1, 2))
        return small.reshape(-1, 1, self.h, self.w)[:count]

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        sizes = list(leaf.shape)
        rows = len(sizes) - (3 if self.channels_last else 2)
        sizes[rows : rows + 2] = [self.h, self.w]
        if self.interpolation == "bicubic" and leaf.dtype != torch.uint8:  # overshoots
            return Unbounded(shape=sizes, dtype=leaf.dtype, device=leaf.device)
        return ranged(leaf, shape=sizes)
