"""Whole trajectories from batches that cut them: pieces wait until their end has come."""

from __future__ import annotations

from typing import Any, cast

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.errors import CollectorError
from rl_core.keys import Key, join

__all__ = ["EpisodeBatcher", "flat_trajectories", "padded_trajectories"]

_IDS = ("collector", "traj_ids")


class EpisodeBatcher:
    """Takes batches ``[*B, T]`` with trajectory ids, gives trajectories that have ended, in the order of their ends.

    Args:
        done_key: the end flag at the root of "next", without "next".
    """

    def __init__(self, done_key: Key = "done") -> None:
        self.done_key = join("next", done_key)
        self.open: dict[int, list[TensorDictBase]] = {}
        self.ended: list[TensorDictBase] = []

    def add(self, batch: TensorDictBase) -> None:
        """Take a batch; steps whose id is negative do not count."""
        time = batch.shape[-1]
        flat = batch.reshape(-1, time)
        ids: Tensor = flat.get(_IDS).cpu()
        done = flat.get(self.done_key).reshape(len(ids), time, -1).any(-1).cpu()
        finished: list[tuple[int, int, int]] = []
        for row in range(len(ids)):
            numbers, counts = torch.unique_consecutive(ids[row], return_counts=True)
            stop = 0
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                start, stop = stop, stop + count
                if number >= 0:
                    self.open.setdefault(number, []).append(flat[row, start:stop])
                    if bool(done[row, stop - 1]):
                        finished.append((stop, row, number))
        for _, _, number in sorted(finished):
            pieces = self.open.pop(number)
            whole = _joined(pieces) if len(pieces) > 1 else pieces[0]
            self.ended.append(whole)

    def drop(self, keep: Tensor) -> None:
        """Forget the pieces of trajectories that were broken off by a reset: all but those whose id is in `keep`."""
        kept = set(keep.tolist())
        self.open = {number: pieces for number, pieces in self.open.items() if number in kept}

    def take(self, count: int) -> list[TensorDictBase]:
        """Up to so many trajectories, ``[T_i]`` each."""
        taken, self.ended = self.ended[:count], self.ended[count:]
        return taken

    def state_dict(self) -> dict[str, Any]:
        """The trajectories that wait, as plain data."""
        return {
            "open": {
                str(number): [piece.to_dict() | {"steps": len(piece)} for piece in pieces]
                for number, pieces in self.open.items()
            },
            "ended": [whole.to_dict() | {"steps": len(whole)} for whole in self.ended],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        self.open = {int(number): [_rows(piece) for piece in pieces] for number, pieces in state_dict["open"].items()}
        self.ended = [_rows(whole) for whole in state_dict["ended"]]


def _rows(data: dict[str, Any]) -> TensorDictBase:
    entries = {name: value for name, value in data.items() if name != "steps"}
    return TensorDict.from_dict(entries, batch_size=[data["steps"]])


def flat_trajectories(trajectories: list[TensorDictBase]) -> TensorDictBase:
    """Trajectories one after the other: ``[sum T_i]``."""
    joined = _joined(trajectories)
    joined.names = ["time"]
    return joined


def padded_trajectories(trajectories: list[TensorDictBase]) -> TensorDictBase:
    """One row per trajectory, zeros after its end: ``[n, T_max]`` with ``("collector", "mask")``."""
    if not trajectories:
        raise CollectorError("there is no trajectory to pad")
    lengths = torch.tensor([len(one) for one in trajectories])
    longest = int(lengths.max())
    device = trajectories[0].device
    rows = [one if len(one) == longest else _padded(one, longest) for one in trajectories]
    stacked = cast("TensorDictBase", torch.stack(cast("Any", rows)))
    mask = torch.arange(longest) < lengths.unsqueeze(-1)
    stacked.set(("collector", "mask"), mask if device is None else mask.to(device))
    stacked.names = [None, "time"]
    return stacked


def _padded(trajectory: TensorDictBase, length: int) -> TensorDictBase:
    zeros = trajectory[:1].expand(length - len(trajectory)).clone().zero_()
    return _joined([trajectory, zeros])


def _joined(pieces: list[TensorDictBase]) -> TensorDictBase:
    return cast("TensorDictBase", torch.cat(cast("Any", pieces)))
