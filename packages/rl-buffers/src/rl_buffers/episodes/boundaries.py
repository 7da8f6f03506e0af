"""What ends an episode: end flags among the rows, a trajectory's number that changes, or signals given from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rl_buffers.episodes.arrays import OPENS
from rl_core.buffers import Storage
from rl_core.errors import KeyMissingError, ReplayBufferError
from rl_core.keys import Key, as_key, as_path

__all__ = ["Boundaries"]

_TRAJECTORY_KEYS: tuple[Key, ...] = (("collector", "traj_ids"), "episode")
_END_KEY: Key = ("next", "done")


class Boundaries:
    """Reads, for rows of a storage, whether an episode ends or begins with them.

    With nothing given, both a trajectory's number (("collector", "traj_ids") or "episode") and ("next", "done") count,
    as far as the rows have them; otherwise only what is given.

    Args:
        end_key: an entry that is true in the last row of an episode, bool ``[B, 1]``; with several values per row
            (agents) all must be true.
        end_keys: several such entries; any of them ends an episode.
        traj_key: an entry that changes from one episode to the next.
        ends: end flags by slot, bool ``[rows]``, for data that do not hold them.
        trajectories: episode numbers by slot, ``[rows]``.

    Raises:
        ReplayBufferError: more than one of these is given.
    """

    def __init__(
        self,
        *,
        end_key: Key | None = None,
        end_keys: Sequence[Key] | None = None,
        traj_key: Key | None = None,
        ends: Tensor | None = None,
        trajectories: Tensor | None = None,
    ) -> None:
        given = {
            "end_key": end_key,
            "end_keys": end_keys,
            "traj_key": traj_key,
            "ends": ends,
            "trajectories": trajectories,
        }
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise ReplayBufferError(f"episodes end by one rule, got {' and '.join(named)}: give one of them")
        self.end_keys = [_plain(key) for key in end_keys] if end_keys is not None else []
        if end_key is not None:
            self.end_keys = [_plain(end_key)]
        self.traj_key = None if traj_key is None else _plain(traj_key)
        self._ends = None if ends is None else ends.detach().cpu().bool().reshape(ends.shape[0], -1).all(-1)
        self._trajectories = None if trajectories is None else trajectories.detach().cpu()
        self.automatic = not named
        self._resolved = not self.automatic
        self._end_found = self._traj_found = True

    @property
    def name(self) -> tuple[object, ...]:
        """Equal for rules that give equal tables of one storage."""
        if self.automatic:
            return ("automatic",)
        signals = self._ends if self._ends is not None else self._trajectories
        return (tuple(self.end_keys), self.traj_key, None if signals is None else id(signals))

    def marks(self, storage: Storage, slots: Tensor, before: Callable[[Tensor], Tensor]) -> Tensor:
        """The CLOSES and OPENS marks of rows.

        Args:
            storage: where the rows are.
            slots: filled slots, int64 ``[B]``.
            before: gives the slot before each in its lane, -1 where that is not filled.

        Returns:
            uint8 ``[B]``.

        Raises:
            KeyMissingError: the rows lack the entry.
        """
        self._resolve(storage)
        marks: Tensor | None = None
        for key in self.end_keys:
            flags = _flags(self._read(storage, key, slots))
            marks = flags if marks is None else marks | flags
        if self._ends is not None:
            marks = _given(self._ends, slots, "ends").view(torch.uint8)
        if self.traj_key is not None or self._trajectories is not None:
            opens = self._opens(storage, slots, before(slots))
            marks = opens if marks is None else marks | opens
        return torch.zeros(slots.numel(), dtype=torch.uint8) if marks is None else marks

    def _opens(self, storage: Storage, slots: Tensor, before: Tensor) -> Tensor:
        known = before >= 0
        now, previous = self._numbers(storage, slots), self._numbers(storage, torch.where(known, before, slots))
        other = (now != previous).reshape(slots.numel(), -1).any(-1)
        return (known & other).view(torch.uint8) * OPENS

    def _numbers(self, storage: Storage, slots: Tensor) -> Tensor:
        if self._trajectories is not None:
            return _given(self._trajectories, slots, "trajectories")
        assert self.traj_key is not None
        return self._read(storage, self.traj_key, slots)

    def _resolve(self, storage: Storage) -> None:
        """Find out which of the usual entries the rows have, at the first rows."""
        if self._resolved:
            return
        probe = torch.zeros(1, dtype=torch.int64)
        self.traj_key = next((key for key in _TRAJECTORY_KEYS if storage.entry(key, probe) is not None), None)
        self.end_keys = [_END_KEY] if storage.entry(_END_KEY, probe) is not None else []
        if self.traj_key is None and not self.end_keys:
            raise KeyMissingError(
                f"the rows hold neither {_END_KEY!r} nor {' nor '.join(map(repr, _TRAJECTORY_KEYS))}, so nothing tells "
                "where an episode ends: name an entry with end_key=... or traj_key=..., or give ends=..."
            )
        self._resolved = True

    @staticmethod
    def _read(storage: Storage, key: Key, slots: Tensor) -> Tensor:
        found = storage.entry(key, slots)
        if found is None:
            raise KeyMissingError(
                f"the rows have no {key!r}, which is to tell where episodes end: name another entry with end_key=... "
                "or traj_key=..."
            )
        return found.cpu()


def _plain(key: Key) -> Key:
    return as_key(as_path(key))


def _flags(value: Tensor) -> Tensor:
    """CLOSES where all flags of a row are true; a bool is one byte, 0 or 1."""
    flags = value if value.dtype == torch.bool else value != 0
    if flags.numel() != value.shape[0]:
        flags = flags.reshape(value.shape[0], -1).all(-1)
    return flags.reshape(-1).view(torch.uint8)


def _given(signals: Tensor, slots: Tensor, name: str) -> Tensor:
    if slots.numel() and int(slots.max()) >= signals.shape[0]:
        raise ReplayBufferError(
            f"{name} has {signals.shape[0]} rows, the storage holds a row at slot {int(slots.max())}: give one value "
            "per row of the storage's capacity"
        )
    return signals.index_select(0, slots)
