"""StalenessAwareSampler: prefers rows of recent versions of the policy, and leaves out those that are too old."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_core.buffers import Sampler, Storage
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.keys import Key

__all__ = ["StalenessAwareSampler"]

_ROUNDS = 8


class StalenessAwareSampler(Sampler):
    """Draws row i with weight ``w_i = 1 / (s_i + 1)``, where its staleness s_i is how many versions ago it was written.

    The present version is the newest one that was written, or what :attr:`version` was set to: a learner that has
    updated its weights is ahead of the rows in the buffer. Rows newer than that count as fresh. No row comes twice in a
    batch, unless fewer rows than a batch may be drawn. Each sample comes with "staleness", int64 ``[B]``.

    Args:
        max_staleness: rows with a greater staleness are never drawn; -1 draws all.
        version_key: the entry of the rows that holds the version, one whole number per row, as collectors write it.

    Example:
        >>> from rl_buffers import LazyTensorStorage, ReplayBuffer
        >>> from tensordict import TensorDict
        >>> buffer = ReplayBuffer(
        ...     storage=LazyTensorStorage(10), sampler=StalenessAwareSampler(max_staleness=2), batch_size=4
        ... )
        >>> _ = buffer.extend(TensorDict({"policy_version": torch.tensor([1, 5, 6, 7, 8])}, [5]))
        >>> buffer.sampler.version = 8
        >>> batch, info = buffer.sample(return_info=True)
        >>> sorted(batch["policy_version"].unique().tolist()), int(info["staleness"].max())
        ([6, 7, 8], 2)
    """

    def __init__(self, max_staleness: int = -1, version_key: Key = "policy_version") -> None:
        if max_staleness < -1:
            raise ReplayBufferError(f"max_staleness must be >= 0, or -1 for no limit, got {max_staleness}")
        self.max_staleness, self.version_key = max_staleness, version_key
        self._set: int | None = None
        self.empty()

    def empty(self) -> None:
        """Forget all rows, not the version that was set."""
        self._versions = torch.zeros(0, dtype=torch.int64)
        self._unread: list[Tensor] = []  # slots whose version is still to be read
        self._newest: int | None = None

    @property
    def version(self) -> int | None:
        """The present version; ``None`` before there are rows, where it was not set."""
        return self._newest if self._set is None else self._set

    @version.setter
    def version(self, value: int | None) -> None:
        self._set = None if value is None else int(value)

    def extend(self, index: Tensor) -> None:
        """Take note of newly written rows."""
        if index.numel():
            self._unread.append(index)

    def mark_update(self, index: Tensor) -> None:
        """Take note of rows that were changed in place."""
        self.extend(index)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """`batch_size` slots, int64 ``[B]``, with "staleness", int64 ``[B]``.

        Raises:
            ReplayBufferError: no row is stored, or all are too old.
            KeyMissingError: the rows lack :attr:`version_key`.
        """
        n = len(storage)
        if n == 0:
            raise ReplayBufferError("the storage is empty: add or extend before sampling")
        self._read(storage)
        version = self.version
        assert version is not None
        index = self._draw(n, batch_size, version)
        return index, {"staleness": self._staleness(self._versions[index], version)}

    @staticmethod
    def _staleness(versions: Tensor, version: int) -> Tensor:
        return (version - versions).clamp(min=0)

    def _weights(self, versions: Tensor, version: int) -> Tensor:
        stale = self._staleness(versions, version)
        weights = 1.0 / (stale + 1.0).double()
        return weights if self.max_staleness < 0 else weights.masked_fill_(stale > self.max_staleness, 0.0)

    def _read(self, storage: Storage) -> None:
        """Read the versions of rows that were written since the last sample."""
        if not self._unread:
            return
        index = torch.cat(self._unread)
        found = storage.entry(self.version_key, index)
        if found is None:
            raise KeyMissingError(
                f"the rows have no entry {self.version_key!r} with the policy's version: have the collector write it, "
                "or name another entry with version_key=..."
            )
        versions = found.reshape(index.numel(), -1)[:, 0].to("cpu", torch.int64)
        missing = int(index.max()) + 1 - self._versions.numel()
        if missing > 0:
            more = max(missing, self._versions.numel())
            self._versions = torch.cat([self._versions, torch.zeros(more, dtype=torch.int64)])
        self._versions[index] = versions
        newest = int(versions.max())
        self._newest = newest if self._newest is None else max(newest, self._newest)
        self._unread.clear()

    def _draw(self, n: int, batch_size: int, version: int) -> Tensor:
        """One row after the other, each with a chance in proportion to its weight among the rows that are left."""
        chosen: dict[int, None] = {}
        if n > 16 * batch_size:
            self._draw_some(chosen, n, batch_size, version)
        if len(chosen) < batch_size:
            self._draw_rest(chosen, n, batch_size, version)
        index = torch.tensor(list(chosen))
        if index.numel() < batch_size:  # fewer than a batch may be drawn: all of them, and some again
            weights = self._weights(self._versions[index], version)
            again = torch.multinomial(weights, batch_size - index.numel(), True, generator=self.generator)
            index = torch.cat([index, index[again]])
        return index

    def _draw_some(self, chosen: dict[int, None], n: int, batch_size: int, version: int) -> None:
        """By rejection, which looks at few rows: a uniform one is taken with probability w / (largest w possible)."""
        newest = self._newest if self._newest is not None else version
        largest = 1.0 / (max(0, version - newest) + 1.0)
        for _ in range(_ROUNDS):
            tried = torch.randint(n, (2 * batch_size,), generator=self.generator)
            weights = self._weights(self._versions[tried], version)
            taken = torch.rand(tried.numel(), generator=self.generator, dtype=torch.float64) * largest < weights
            for slot in tried[taken].tolist():
                chosen.setdefault(slot)
                if len(chosen) == batch_size:
                    return

    def _draw_rest(self, chosen: dict[int, None], n: int, batch_size: int, version: int) -> None:
        """By the largest of ``log(u) / w`` over all rows (Efraimidis and Spirakis, 2006), which is the same draw."""
        weights = self._weights(self._versions[:n], version)
        if not bool((weights > 0).any()):
            raise ReplayBufferError(
                f"all {n} rows are too old: the version is {version}, the newest row has {self._newest}, and "
                f"max_staleness={self.max_staleness}. Write newer rows, or raise max_staleness."
            )
        weights[torch.tensor(list(chosen), dtype=torch.int64)] = 0.0
        keys = torch.rand(n, generator=self.generator, dtype=torch.float64).clamp_(min=1e-300).log_().div_(weights)
        count = min(batch_size - len(chosen), int((weights > 0).sum()))
        for slot in keys.topk(count).indices.tolist():
            chosen.setdefault(slot)

    def state_dict(self) -> dict[str, Any]:
        """The versions of the rows, and the present one."""
        unread = torch.cat(self._unread) if self._unread else torch.zeros(0, dtype=torch.int64)
        return {"versions": self._versions, "newest": self._newest, "set": self._set, "unread": unread}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on with the saved versions."""
        self._versions, self._newest, self._set = (
            state_dict["versions"].clone(),
            state_dict["newest"],
            state_dict["set"],
        )
        self._unread = [state_dict["unread"].clone()] if state_dict["unread"].numel() else []
