"""RowTransform: changes sampled rows with the help of other rows of the buffer, before all other transforms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensordict import TensorDictBase
from torch import Tensor

from rl_buffers.episodes.boundaries import Boundaries
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.keys import Key
from rl_core.transforms import Compose, Transform

if TYPE_CHECKING:
    from rl_buffers.buffer import ReplayBuffer

__all__ = ["RowTransform", "next_node", "row_transforms", "stored_entry"]


class RowTransform(Transform):
    """A transform of a buffer's samples that looks up rows of the same episodes.

    It is given to a buffer as any transform (``transform=``, ``append_transform``). The buffer runs it on the rows as
    they are stored, while no other thread can write, and runs the other transforms afterwards; nothing is kept between
    samples, and nothing is changed in the storage.

    Args:
        boundaries: what ends an episode.
    """

    def __init__(self, boundaries: Boundaries) -> None:
        super().__init__()
        self.boundaries = boundaries

    @abstractmethod
    def relabel(self, batch: TensorDictBase, slots: Tensor, buffer: ReplayBuffer) -> TensorDictBase:
        """Change a batch of copies.

        Args:
            batch: the rows at `slots`, a TensorDict ``[B]``.
            slots: int64 ``[B]``.
            buffer: where they are from.
        """

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The batch as it is: its rows were relabelled when they were drawn."""
        return tensordict


def row_transforms(transforms: Iterable[Transform]) -> list[RowTransform]:
    """All RowTransforms in a Compose, however deep, in their order."""
    found: list[RowTransform] = []
    for transform in transforms:
        if isinstance(transform, RowTransform):
            found.append(transform)
        elif isinstance(transform, Compose):
            found += row_transforms(transform)
    return found


def next_node(batch: TensorDictBase, name: str) -> TensorDictBase:
    """The batch's "next".

    Raises:
        ReplayBufferError: the rows are no TensorDicts, or have no "next"; the text says that `name` needs it.
    """
    nxt = batch.get("next", None) if isinstance(batch, TensorDictBase) else None
    if not isinstance(nxt, TensorDictBase):
        raise ReplayBufferError(f"{name} needs TensorDict rows with a 'next'; the batch is {_described(batch)}")
    return nxt


def _described(batch: object) -> str:
    if not isinstance(batch, TensorDictBase):
        return f"a {type(batch).__name__}"
    return f"a TensorDict with {', '.join(repr(key) for key in batch.keys(True, True))}"


def stored_entry(buffer: ReplayBuffer, key: Key, slots: Tensor, like: Tensor | None = None) -> Tensor:
    """One entry of stored rows, ``[B, ...]``, on the device of `like`.

    Raises:
        KeyMissingError: the rows have no such entry.
    """
    value = buffer.storage.entry(key, slots)
    if value is None:
        raise KeyMissingError(f"the rows of this buffer have no tensor entry {key!r}: name the one that is meant")
    return value if like is None else value.to(like.device)
