"""``FrameRing``: the last frames of every row, kept beside the data, and the base of transforms that write from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, Composite, RowProgram, TensorSpec, Transform, reset_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_path, flat_name
from rl_envs.transforms.entry_transform import map_leaves
from rl_envs.transforms.numpy_rows import entry_rows

__all__ = ["FrameRing", "RingTransform"]

Write = Callable[[int, "np.ndarray | None"], None]


class FrameRing:
    """N frames ``[*B, ...]``, of which each step overwrites the oldest.

    It is memory of its own: what is given out elsewhere never changes with it.

    Args:
        n: how many frames.
        padding_value: what older frames are at the beginning of an episode; None repeats the first frame.
    """

    def __init__(self, n: int, padding_value: float | None = None) -> None:
        self.n, self.padding_value = n, padding_value
        self.frames: list[Tensor] = []
        self._oldest = 0

    def __iter__(self) -> Iterator[Tensor]:
        """From the oldest to the newest."""
        return iter([*self.frames[self._oldest :], *self.frames[: self._oldest]])

    def allocate(self, shape: Iterable[int], dtype: torch.dtype, device: torch.device | None = None) -> bool:
        """Room for frames of this kind; False where there is room already."""
        size = torch.Size(shape)
        if self.frames and self.frames[0].shape == size and self.frames[0].dtype == dtype:
            return False
        self.frames, self._oldest = [torch.zeros(size, dtype=dtype, device=device) for _ in range(self.n)], 0
        return True

    def push(self, frame: Tensor) -> None:
        """The next frame of every row."""
        self.frames[self._oldest].copy_(frame)
        self._oldest = (self._oldest + 1) % self.n

    def begin(self, frame: Tensor, rows: Tensor | None) -> None:
        """The first frame of an episode, in the rows of a bool mask ``[*B]`` or in all of them (None)."""
        if self.allocate(frame.shape, frame.dtype, frame.device):
            rows = None
        newest = self.frames[self._oldest - 1]
        for held in self.frames:
            value: Any = frame if held is newest or self.padding_value is None else self.padding_value
            if rows is None:
                held.copy_(value) if isinstance(value, Tensor) else held.fill_(value)
            else:
                held[rows] = value[rows] if isinstance(value, Tensor) else value

    def state(self) -> Tensor:
        """The frames ``[N, *B, ...]``, the oldest first."""
        return torch.stack(list(self))

    def load(self, state: Tensor) -> None:
        """Take a :meth:`state` back."""
        self.allocate(state.shape[1:], state.dtype, state.device)
        self._oldest = 0
        for held, saved in zip(self.frames, state, strict=True):
            held.copy_(saved)


class RingTransform(Transform):
    """Base of transforms that write a function of each row's last frames; a subclass defines ``_joined``.

    Args:
        in_keys: observations.
        out_keys: where to write.
        n: how many frames.
        padding_value: as in :class:`FrameRing`.
    """

    def __init__(
        self, in_keys: Iterable[Key], out_keys: Iterable[Key] | None, n: int, padding_value: float | None = None
    ) -> None:
        super().__init__(in_keys, out_keys)
        # Entries under "next" are named by those who stack stored data alone.
        self._live = [pair for pair in zip(self.in_keys, self.out_keys, strict=True) if as_path(pair[0])[0] != "next"]
        self._rings = {key: FrameRing(n, padding_value) for key, _ in self._live}

    def _joined(self, frames: list[Tensor]) -> Tensor:
        """What is written, from the frames, the oldest first; not one of the frames itself."""
        raise NotImplementedError(f"{type(self).__name__} must define _joined")

    # ---------------------------------------------------------------- TensorDicts
    def _read(self, key: Key, tensordict: TensorDictBase) -> Tensor:
        value: Tensor | None = tensordict.get(key, None)
        if value is None:
            raise KeyMissingError(self._missing(key, tensordict))
        return value

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, out_key in self._live:
            frame, ring = self._read(key, next_tensordict), self._rings[key]
            if not ring.frames:
                raise EnvError(
                    f"{type(self).__name__} got a step before any reset; it keeps frames from the reset on: reset "
                    "through the environment that has this transform"
                )
            ring.push(frame)
            next_tensordict.set(out_key, self._joined(list(ring)))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        rows = reset_rows(tensordict)
        for key, out_key in self._live:
            ring = self._rings[key]
            ring.begin(self._read(key, tensordict_reset), rows)
            tensordict_reset.set(out_key, self._joined(list(ring)))
        return tensordict_reset

    def _map_spec(self, leaf: TensorSpec) -> TensorSpec:
        """The spec of what :meth:`_joined` gives; by default that of a frame."""
        return leaf.clone()

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The specs of the out keys."""
        keys, out_keys = [key for key, _ in self._live], [out_key for _, out_key in self._live]
        return map_leaves(observation_spec, keys, out_keys, self._map_spec)

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """The new frame into the ring, the ring into the row."""
        bound = []
        for key, out_key in self._live:
            entry_rows(self, before, key)  # names what is missing
            source, ring = before.tensors[key], self._rings[key]
            ring.allocate(source.shape[1:], source.dtype)
            bound.append((ring, source, self._writer(ring, after.tensors[out_key])))

        def step(t: int) -> None:
            for ring, source, write in bound:
                ring.push(source[t + 1])
                write(t + 1, None)

        def reset(t: int, mask: np.ndarray | None) -> None:
            rows = None if mask is None else torch.from_numpy(mask)
            for ring, source, write in bound:
                ring.begin(source[t], rows)
                write(t, mask)

        return RowProgram(step, reset)

    def _writer(self, ring: FrameRing, target: Tensor) -> Write:
        """``write(t, mask)`` puts what :meth:`_joined` gives into row t of a column."""

        def write(t: int, mask: np.ndarray | None) -> None:
            value = self._joined(list(ring))
            if mask is None:
                target[t] = value
            else:
                rows = torch.from_numpy(mask)
                target[t][rows] = value[rows]

        return write

    # ---------------------------------------------------------------- state
    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key, ring in self._rings.items():
            if ring.frames:
                destination[f"{prefix}{flat_name(key, '/')}"] = ring.state()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        unexpected: list[str] = args[3]
        for key, ring in self._rings.items():
            name = f"{prefix}{flat_name(key, '/')}"
            if name in state_dict:
                ring.load(state_dict[name])
                if name in unexpected:
                    unexpected.remove(name)
