"""LazyStackStorage: TensorDicts of different shapes, such as token sequences, given back without padding them."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import LazyStackedTensorDict, is_tensor_collection
from torch import Tensor

from rl_buffers.storages.list_storage import ListStorage
from rl_core.errors import ReplayBufferError

__all__ = ["LazyStackStorage"]


class LazyStackStorage(ListStorage):
    """A :class:`ListStorage` whose batches are lazy stacks of copies of the rows.

    An entry of the batch is read where all its rows have one shape, or with ``batch.get(key, as_padded_tensor=True)``
    or ``as_nested_tensor=True``; ``batch.unbind(0)`` gives the rows as they were stored.

    Args:
        max_size: capacity in rows; ``None`` means unlimited.
        compilable: accepted for TorchRL's scripts; it makes no difference here.
        stack_dim: 0: batches have the rows first.
        device: where the rows are kept; default: where they come from.

    >>> from rl_core.buffers import Span
    >>> from tensordict import TensorDict
    >>> storage = LazyStackStorage(3)
    >>> rows = [TensorDict({"tokens": torch.arange(n)}) for n in (2, 3)]
    >>> storage.write(storage.prepare(rows), [Span(0, 2, 0)])
    >>> storage.get(torch.tensor([1, 0])).get("tokens", as_padded_tensor=True)
    tensor([[0, 1, 2],
            [0, 1, 0]])
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        compilable: bool | None = False,
        stack_dim: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        if stack_dim != 0:
            raise ReplayBufferError(
                f"stack_dim={stack_dim}: a buffer's batches have their rows first; use stack_dim=0 and transpose them"
            )
        super().__init__(max_size, compilable=compilable, device=device)

    def get(self, index: Tensor) -> Any:
        """Copies of the rows at `index`, int64 ``[B]``, as a lazily stacked TensorDict ``[B]``."""
        rows = super().get(index)
        for row in rows:
            if not is_tensor_collection(row):
                raise ReplayBufferError(
                    f"a LazyStackStorage gives stacks of TensorDicts, a row is a {type(row).__name__}: use ListStorage"
                )
        if not rows:
            return rows
        return LazyStackedTensorDict(*(row.clone() for row in rows), stack_dim=0)
