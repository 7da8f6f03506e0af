"""``Answers``: what is under way in an asynchronous pool, and what came back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.envs.columns import nest
from rl_core.errors import EnvError
from rl_core.keys import Key, join
from rl_envs.envpool.rows import Wires
from rl_envs.gym.spaces import Leaf

__all__ = ["Answers"]

_METHODS = ("", "reset", "step", "step_and_maybe_reset")
_FLAGS = ("done", "terminated", "truncated")


class Answers:
    """Sends to the C++ methods of a pool, and sorts what they give by what was asked for.

    Args:
        wires: the pool's.
        leaves: of its observations.
        count: how many environments it has.
        answered: how many it answers at a time.

    Attributes:
        busy: for each environment what was sent and not taken yet, by its place in the methods; 0: nothing.
    """

    def __init__(self, wires: Wires, leaves: Sequence[Leaf], count: int, answered: int) -> None:
        self.wires, self.answered = wires, answered
        self.busy = np.zeros(count, dtype=np.int8)
        self._inside = np.zeros(count, dtype=bool)
        self._under_way = 0
        self._resets_after = np.zeros(count, dtype=bool)
        self._leaves = [(leaf.key, wires.observations[leaf.path], leaf.encoder(), leaf.spec.dtype) for leaf in leaves]
        self._given: dict[Key, Tensor] = {}  # rows of all environments, written when they are sent
        self._ended: dict[Key, Tensor] = {}  # what ended episodes end with, until their resets come back
        self._ready: dict[str, list[list[TensorDictBase]]] = {method: [] for method in _METHODS[1:]}

    # ---------------------------------------------------------------- sending
    def reset(self, rows: np.ndarray) -> None:
        """Begin episodes."""
        self._occupy("reset", rows)
        self._inside[rows] = False
        self.wires.reset(rows)

    def step(self, method: str, rows: np.ndarray, action: np.ndarray, given: TensorDictBase) -> None:
        """Begin steps, and keep what came with the actions."""
        outside = rows[~self._inside[rows]]
        if len(outside) and not self.busy[outside[0]]:
            raise EnvError(
                f"environment {outside[0]} is not inside an episode; reset it first: async_reset_send(env_index="
                f"[{outside[0]}]); async_step_and_maybe_reset_send resets what ends by itself"
            )
        leaves = {key: given.get(key) for key in given.keys(True, True)}
        if self._given and leaves.keys() != self._given.keys() and self.busy.any():
            raise EnvError(
                f"the entries {sorted(map(str, leaves))} were sent while others are under way with "
                f"{sorted(map(str, self._given))}; send the same entries for all environments"
            )
        self._occupy(method, rows)
        if leaves.keys() != self._given.keys():
            self._given = {key: leaf.new_zeros(len(self.busy), *leaf.shape[1:]) for key, leaf in leaves.items()}
        index = torch.from_numpy(rows.astype(np.int64))
        for key, leaf in leaves.items():
            self._given[key].index_copy_(0, index, leaf.detach())
        self.wires.send(action, rows)

    def _occupy(self, method: str, rows: np.ndarray) -> None:
        taken = rows[self.busy[rows] > 0]
        if len(taken):
            doing = _METHODS[self.busy[taken[0]]]
            raise EnvError(f"environment {taken[0]} still has a {doing} to do; take it with async_{doing}_recv first")
        self.busy[rows] = _METHODS.index(method)
        self._under_way += len(rows)

    # ---------------------------------------------------------------- receiving
    def take(self, method: str, least: int, wanted: np.ndarray | None, most: int | None) -> list[TensorDictBase]:
        """Results of a method: of at least so many environments, or of those that are wanted."""
        due = self.busy == _METHODS.index(method)
        if np.count_nonzero(due if wanted is None else due[wanted]) < least:
            raise EnvError(
                f"async_{method}_recv asks for {least} results and {np.count_nonzero(due)} are on their way "
                f"(environments {np.flatnonzero(due).tolist()}); send with async_{method}_send first"
            )
        while True:
            found = self._matching(method, wanted)
            if found is not None and len(found) >= least:
                break
            self._listen(method, least)
        chosen, every = found[:most], self._merged(method)
        rest = torch.ones(len(every[0]), dtype=torch.bool)
        rest[chosen] = False
        self._ready[method] = [[data[rest] for data in every]] if bool(rest.any()) else []
        taken = [data[chosen] for data in every]
        self.busy[taken[0]["env_index"].numpy()] = 0
        return taken

    def _merged(self, method: str) -> list[TensorDictBase]:
        pieces = self._ready[method]
        if len(pieces) > 1:
            merged: list[Any] = [torch.cat(list(parts)) for parts in zip(*pieces, strict=True)]
            pieces[:] = [merged]
        return pieces[0]

    def _matching(self, method: str, wanted: np.ndarray | None) -> Tensor | None:
        """The places of the results that are asked for among those that are ready."""
        if not self._ready[method]:
            return None
        index = self._merged(method)[0]["env_index"]
        if wanted is None:
            return torch.arange(len(index))
        return torch.isin(index, torch.from_numpy(wanted.astype(np.int64))).nonzero()[:, 0]

    def _listen(self, method: str, least: int) -> None:
        """Wait for one answer of the pool and sort its rows."""
        if self._under_way < self.answered:
            raise EnvError(
                f"async_{method}_recv waits for {least} results, but EnvPool answers {self.answered} environments at a "
                f"time and only {self._under_way} are under way; send to more of them first, or make the pool with a "
                "smaller batch_size"
            )
        state = self.wires.recv()
        rows = np.array(state[self.wires.env_id])
        self._under_way -= len(rows)
        asked, after = self.busy[rows], self._resets_after[rows]
        over = np.array(state[self.wires.done]) & ~after & (asked != _METHODS.index("reset"))
        self._inside[rows] = ~over
        entries = self._entries(state)
        begun, stepped, going_on = ((asked == place) & ~after for place in range(1, len(_METHODS)))
        if begun.any():
            self._ready["reset"].append([self._root(rows[begun], _rows_of(entries, begun, self._roots()))])
        if stepped.any():
            self._ready["step"].append([self._stepped(rows[stepped], _rows_of(entries, stepped))])
        self._go_on(rows, going_on & ~over, going_on & over, entries)
        if after.any():
            self._after_resets(rows[after], _rows_of(entries, after, self._roots()))

    def _go_on(self, rows: np.ndarray, running: np.ndarray, over: np.ndarray, entries: dict[Key, Tensor]) -> None:
        """Steps that may be followed by a reset: those without one are ready."""
        if running.any():
            stepped = self._stepped(rows[running], _rows_of(entries, running))
            following = self._root(rows[running], _rows_of(entries, running, self._roots()))
            self._ready["step_and_maybe_reset"].append([stepped, following])
        if not over.any():
            return
        ended, index = np.ascontiguousarray(rows[over]), torch.from_numpy(rows[over].astype(np.int64))
        if not self._ended:
            self._ended = {key: leaf.new_zeros(len(self.busy), *leaf.shape[1:]) for key, leaf in entries.items()}
        for key, leaf in _rows_of(entries, over).items():
            self._ended[key].index_copy_(0, index, leaf)
        self._resets_after[ended] = True
        self._under_way += len(ended)
        self.wires.reset(ended)

    def _after_resets(self, rows: np.ndarray, roots: dict[Key, Tensor]) -> None:
        """Resets that followed ends: their steps are ready, with the true last observations."""
        index = torch.from_numpy(rows.astype(np.int64))
        last = {key: leaf.index_select(0, index) for key, leaf in self._ended.items()}
        self._resets_after[rows] = False
        self._ready["step_and_maybe_reset"].append([self._stepped(rows, last), self._root(rows, roots)])

    # ---------------------------------------------------------------- results
    def _entries(self, state: list[np.ndarray]) -> dict[Key, Tensor]:
        found: dict[Key, Tensor] = {}
        for key, place, encode, dtype in self._leaves:
            native = state[place] if encode is None else encode(state[place])
            found[key] = torch.tensor(native, dtype=dtype)
        found["reward"] = torch.tensor(state[self.wires.reward], dtype=torch.float32)[:, None]
        done, cut = np.array(state[self.wires.done]), np.array(state[self.wires.truncated])
        for name, flag in zip(_FLAGS, (done | cut, done & ~cut, cut), strict=True):
            found[name] = torch.from_numpy(flag)[:, None]
        return found

    def _roots(self) -> list[Key]:
        return [key for key, *_ in self._leaves]

    def _root(self, rows: np.ndarray, roots: dict[Key, Tensor]) -> TensorDictBase:
        never = torch.zeros(len(rows), 1, dtype=torch.bool)
        return _indexed(rows, {**roots, **{name: never.clone() for name in _FLAGS}})

    def _stepped(self, rows: np.ndarray, entries: dict[Key, Tensor]) -> TensorDictBase:
        index = torch.from_numpy(rows.astype(np.int64))
        given = {key: leaf.index_select(0, index) for key, leaf in self._given.items()}
        return _indexed(rows, {**given, **{join("next", key): leaf for key, leaf in entries.items()}})


def _rows_of(entries: dict[Key, Tensor], mask: np.ndarray, keys: Sequence[Key] | None = None) -> dict[Key, Tensor]:
    places = torch.from_numpy(np.flatnonzero(mask))
    return {key: entries[key].index_select(0, places) for key in (entries if keys is None else keys)}


def _indexed(rows: np.ndarray, leaves: dict[Key, Any]) -> TensorDictBase:
    leaves["env_index"] = torch.from_numpy(rows.astype(np.int64))
    data: TensorDictBase = nest(leaves, torch.Size([len(rows)]))
    return data
