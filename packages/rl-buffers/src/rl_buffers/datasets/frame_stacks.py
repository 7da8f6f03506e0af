"""FrameStackStorage: each frame is kept once, and stacks of frames are built by index when rows are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.storages.tensor_storage import TensorStorage
from rl_core.buffers import Block, Span, Storage
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.keys import Key, as_path

__all__ = ["FrameStackStorage"]

_OBSERVATION, _NEXT = ("observation",), ("next", "observation")


class FrameStackStorage(Storage):
    """Rows whose "observation" and ("next", "observation") are the last frames of their episode so far, for reading.

    Frames before an episode's first are zeros. A stack of 4 with its next one takes the memory of one frame, not 8.

    Args:
        rows: the other entries, ``[T]``.
        frames: ``[F, H, W]``; those of an episode are consecutive.
        place: which frame a row's observation ends with, int64 ``[T]``.
        next_place: the same of its next observation.
        first: the first frame of its episode.
        stack: how many frames an observation holds.

    >>> from tensordict import TensorDict
    >>> numbers = torch.arange(3)
    >>> storage = FrameStackStorage(
    ...     TensorDict({"action": numbers}, [3]),
    ...     frames=torch.arange(1, 5).reshape(4, 1, 1),
    ...     place=numbers,
    ...     next_place=numbers + 1,
    ...     first=torch.zeros(3, dtype=torch.int64),
    ...     stack=2,
    ... )
    >>> rows = storage.get(torch.tensor([0, 2]))
    >>> rows["observation"].flatten(1).tolist(), rows["next", "observation"].flatten(1).tolist()
    ([[0, 1], [2, 3]], [[1, 2], [3, 4]])
    """

    ndim = 1

    def __init__(
        self, rows: TensorDictBase, *, frames: Tensor, place: Tensor, next_place: Tensor, first: Tensor, stack: int
    ) -> None:
        if stack < 1:
            raise ReplayBufferError(f"a stack holds at least one frame, got {stack}")
        self._rows = TensorStorage(rows)
        self._frames, self._place, self._next, self._first = frames, place, next_place, first
        self.stack = stack
        self.max_size = self._rows.max_size

    def get(self, index: Tensor) -> Any:
        """Copies of the rows at `index`, a TensorDict ``[B]`` with stacks ``[B, stack, H, W]``."""
        rows = self._rows.get(index)
        rows.set(_OBSERVATION[0], self._stacks(self._place, index))
        rows.set(_NEXT, self._stacks(self._next, index))
        return rows

    def entry(self, key: Key, index: Tensor) -> Tensor | None:
        """Copies of one entry of the rows at `index`."""
        path = as_path(key)
        if path in (_OBSERVATION, _NEXT):
            self._rows.entry(("collector", "traj_ids"), index)  # checks the slots
            return self._stacks(self._place if path == _OBSERVATION else self._next, index)
        return self._rows.entry(key, index)

    def _stacks(self, place: Tensor, index: Tensor) -> Tensor:
        last, first = place.index_select(0, index).unsqueeze(-1), self._first.index_select(0, index).unsqueeze(-1)
        wanted = last + torch.arange(1 - self.stack, 1)
        found = self._frames.index_select(0, wanted.maximum(first).flatten())
        stacks = found.view(*wanted.shape, *self._frames.shape[1:])
        before = wanted < first
        if bool(before.any()):
            stacks[before] = 0
        return stacks

    def __len__(self) -> int:
        return len(self._rows)

    def prepare(self, data: Any, row_dims: int | None = None) -> Block:
        """Always an error."""
        self._refuse()

    def write(self, block: Block, spans: Sequence[Span]) -> None:
        """Always an error."""
        self._refuse()

    def set(self, index: Tensor, data: Any) -> None:
        """Always an error."""
        self._refuse()

    def empty(self) -> None:
        """Always an error."""
        self._refuse()

    @staticmethod
    def _refuse() -> NoReturn:
        raise ReplayBufferError(
            "rows that share their frames are for reading: copy them into another buffer (other.extend(buffer[:1000]))"
        )

    def _parts(self) -> dict[str, Tensor]:
        return {"frames": self._frames, "place": self._place, "next_place": self._next, "first": self._first}

    def state_dict(self) -> dict[str, Any]:
        """The rows and the frames (views, not copies)."""
        return {"kind": "FrameStackStorage", "stack": self.stack, "rows": self._rows.state_dict(), **self._parts()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over rows and frames as copies."""
        if state_dict.get("kind") != "FrameStackStorage" or state_dict["stack"] != self.stack:
            raise CheckpointError(
                f"the state is of a {state_dict.get('kind')} with stacks of {state_dict.get('stack')}, this is a "
                f"FrameStackStorage with stacks of {self.stack}: create it as the saved one was"
            )
        self._rows.load_state_dict(state_dict["rows"])
        self._frames, self._place, self._next, self._first = (state_dict[name].clone() for name in self._parts())
