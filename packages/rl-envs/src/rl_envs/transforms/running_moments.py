"""Running means and variances of several entries, as one named state that processes may share."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core.errors import EnvError
from rl_envs.transforms.shared_numbers import SharedNumbers

__all__ = ["NormState", "RunningMoments"]


class RunningMoments:
    """Mean and variance of a stream in which an update counts ``decay`` times as much as the one after it.

    With weights ``w <- decay w + m`` for m new rows these are the moments of decayed sums ``S <- decay S + sum(x)``,
    computed as differences from the mean, so that no digits are lost where the mean is large (Chan, Golub & LeVeque,
    1983, "Algorithms for computing the sample variance").

    Args:
        memory: float64 ``[1 + 2 n]`` for the weight, the mean and the weighted sum of squared differences.
        shape: of one value, n numbers.
    """

    def __init__(self, memory: np.ndarray, shape: tuple[int, ...]) -> None:
        n = math.prod(shape)
        self.memory, self.shape = memory, shape
        self.mean = memory[1 : 1 + n].reshape(shape)
        self.spread = memory[1 + n : 1 + 2 * n].reshape(shape)

    @property
    def weight(self) -> float:
        """How many rows the statistics stand for."""
        return float(self.memory[0])

    def update(self, rows: np.ndarray, decay: float) -> None:
        """Count rows ``[m, *shape]``."""
        m = len(rows)
        if not m:
            return
        rows = rows.astype(np.float64)
        mean = np.add.reduce(rows, 0)
        mean /= m
        rows -= mean
        np.multiply(rows, rows, rows)
        old = decay * self.memory[0]
        total = old + m
        self.memory[0] = total
        mean -= self.mean
        self.mean += mean * (m / total)
        mean *= mean
        mean *= old * m / total
        self.spread *= decay
        self.spread += mean
        self.spread += np.add.reduce(rows, 0)

    def variance(self) -> np.ndarray:
        """The variance (of the population); 0 before anything was counted."""
        return self.spread / max(self.memory[0], 1e-300)


class NormState:
    """The statistics of several entries by name.

    Args:
        shapes: of one value of each entry, where they are known.
    """

    def __init__(self, shapes: Mapping[str, Iterable[int]] | None = None) -> None:
        self.entries: dict[str, RunningMoments] = {}
        self._shared: SharedNumbers | None = None
        for name, shape in (shapes or {}).items():
            self.entry(name, tuple(shape))

    def entry(self, name: str, shape: tuple[int, ...]) -> RunningMoments:
        """The statistics of an entry, made at their first use.

        Raises:
            EnvError: values of the entry have another shape than those counted so far.
        """
        found = self.entries.get(name)
        if found is None:
            if self._shared is not None:
                raise EnvError(
                    f"the shared statistics are of {', '.join(self.entries)}, not of {name!r}; make them with it"
                )
            found = self.entries[name] = RunningMoments(np.zeros(1 + 2 * math.prod(shape)), shape)
        if found.shape != shape:
            raise EnvError(
                f"the statistics of {name!r} have shape {found.shape}, the values now {shape}; one transform counts "
                "entries of one shape"
            )
        return found

    @property
    def is_shared(self) -> bool:
        """Whether other processes may count into it."""
        return self._shared is not None

    def locked(self) -> AbstractContextManager[None]:
        """Where it is shared, nobody else changes it meanwhile."""
        return nullcontext() if self._shared is None else self._shared.locked()

    def share(self) -> NormState:
        """Move the statistics to memory that processes share; what holds the object goes on with them."""
        if self._shared is None:
            size = sum(len(entry.memory) for entry in self.entries.values())
            if not size:
                raise EnvError(
                    "there are no statistics to share yet; name the entries and shapes, or take a step first"
                )
            self._shared = SharedNumbers(size)
            start = 0
            for name, entry in list(self.entries.items()):
                memory = self._shared.numbers[start : start + len(entry.memory)]
                memory[:] = entry.memory
                self.entries[name] = RunningMoments(memory, entry.shape)
                start += len(entry.memory)
        return self

    # ---------------------------------------------------------------- as tensors
    def tensors(self) -> dict[str, Tensor]:
        """``NAME.count``, ``NAME.loc`` and ``NAME.var`` of every entry, float64 copies."""
        found: dict[str, Tensor] = {}
        with self.locked():
            for name, entry in self.entries.items():
                found[f"{name}.count"] = torch.tensor(entry.weight, dtype=torch.float64)
                found[f"{name}.loc"] = torch.from_numpy(entry.mean.copy())
                found[f"{name}.var"] = torch.from_numpy(np.asarray(entry.variance()))
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take :meth:`tensors` back, into the memory that there is."""
        with self.locked():
            for full, count in tensors.items():
                name, what = full.rsplit(".", 1)
                if what != "count":
                    continue
                loc, var = tensors[f"{name}.loc"].double().cpu(), tensors[f"{name}.var"].double().cpu()
                entry = self.entry(name, tuple(loc.shape))
                entry.memory[0] = float(count)
                entry.mean[...] = loc.numpy()
                entry.spread[...] = var.numpy() * float(count)

    # ---------------------------------------------------------------- copies
    def __getstate__(self) -> dict[str, Any]:
        """A pickle shares what is shared, and copies the rest."""
        shapes = {name: entry.shape for name, entry in self.entries.items()}
        if self._shared is not None:
            return {"shapes": shapes, "shared": self._shared}
        return {"shapes": shapes, "memory": [entry.memory for entry in self.entries.values()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.entries, self._shared, start = {}, state.get("shared"), 0
        for place, (name, shape) in enumerate(state["shapes"].items()):
            size = 1 + 2 * math.prod(shape)
            memory = state["memory"][place] if self._shared is None else self._shared.numbers[start : start + size]
            self.entries[name] = RunningMoments(memory, shape)
            start += size

    def __deepcopy__(self, memo: dict[int, Any]) -> NormState:
        """A state of its own with the same numbers, not shared."""
        own = NormState()
        memo[id(self)] = own
        with self.locked():
            for name, entry in self.entries.items():
                own.entries[name] = RunningMoments(copy.copy(entry.memory), entry.shape)
        return own
