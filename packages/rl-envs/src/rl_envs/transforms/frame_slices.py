"""Slices of stored steps, and the last step of each with the frames that led to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Transform, registry
from rl_core.buffers import Sampler, Storage
from rl_core.errors import EnvError

__all__ = ["FrameSlices", "LastOfSlices"]

_MASK = ("collector", "mask")


class FrameSlices(Sampler):
    """Draws ``batch_size`` steps, each with the N - 1 before it in its episode: N rows for every row asked for.

    It asks the registry for the slices; rl-buffers has them. Slices are not marked as ends of episodes.

    Args:
        n: rows of a slice.
        batch_size: slices per batch, where the buffer is asked for as many rows.
        **kwargs: of ``SliceSampler``.
    """

    def __init__(self, n: int, batch_size: int, **kwargs: Any) -> None:
        self.n, self.batch_size = n, batch_size
        settings: dict[str, Any] = {
            "span": (True, False),
            "pad_output": True,
            "strict_length": False,
            "truncated_key": None,
            **kwargs,
        }
        self.slices: Sampler = registry.samplers.get("slices")(slice_len=n, **settings)

    @property
    def generator(self) -> torch.Generator | None:
        """Where draws come from."""
        return self.slices.generator

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        self.slices.generator = generator

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Slots of ``batch_size`` slices, int64 ``[batch_size * n]``."""
        return self.slices.sample(storage, batch_size * self.n)

    def complete(self, batch: Any, info: dict[str, Any]) -> Any:
        """Tell rows of short slices from repetitions."""
        return self.slices.complete(batch, info)

    def attach(self, buffer: Any) -> None:
        """Share the buffer's episode table."""
        self.slices.attach(buffer)

    def extend(self, index: Tensor) -> None:
        """Take note of newly written slots."""
        self.slices.extend(index)

    def mark_update(self, index: Tensor) -> None:
        """Take note of changed slots."""
        self.slices.mark_update(index)

    def empty(self) -> None:
        """Start over."""
        self.slices.empty()

    def state_dict(self) -> dict[str, Any]:
        """That of the slices."""
        return self.slices.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take a :meth:`state_dict` back."""
        self.slices.load_state_dict(state_dict)


class LastOfSlices(Transform):
    """Joins frames within slices of N rows, laid end to end, and keeps the last row of each.

    Args:
        frames: the transform that joins them.
        n: rows of a slice.
    """

    def __init__(self, frames: Transform, n: int) -> None:
        super().__init__()
        self.frames, self.n = frames, n

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """``[B * N]`` rows in, ``[B]`` rows out."""
        if tensordict.ndim != 1 or len(tensordict) % self.n:
            raise EnvError(
                f"frames are joined in slices of {self.n} rows laid end to end; the batch has shape "
                f"{tuple(tensordict.batch_size)}. Use the sampler that make_rb_transform_and_sampler gave"
            )
        slices = self.frames(tensordict.reshape(-1, self.n))
        mask = slices.get(_MASK, None)
        real = torch.ones(slices.shape, dtype=torch.bool) if mask is None else mask.reshape(slices.shape)
        last = real.sum(1) - 1
        rows = torch.arange(len(slices), device=last.device)
        return slices[rows, last]
