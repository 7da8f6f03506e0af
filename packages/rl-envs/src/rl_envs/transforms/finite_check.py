"""``FiniteTensorDictCheck``: stops at the first NaN or infinity, and says where it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, RowProgram, Transform, reset_rows
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path
from rl_envs.transforms.number_rows import number_rows

__all__ = ["FiniteTensorDictCheck"]

_FEW = 64  # up to here a sum of Python numbers is faster than numpy


class FiniteTensorDictCheck(Transform):
    """Raises an EnvError where an observation or a reward is NaN or infinite, naming the key, the row and the step.

    Steps are counted from the last full reset.

    Example:
        >>> from tensordict import TensorDict
        >>> FiniteTensorDictCheck()(TensorDict(x=torch.tensor([0.0, torch.nan]), batch_size=[2]))
        Traceback (most recent call last):
        rl_core.errors.EnvError: 'x' is nan in row 1 of the data...
    """

    def __init__(self) -> None:
        super().__init__()
        self._steps = [0]  # a list, since assigning to an attribute of a module takes 2 us

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        rows = reset_rows(tensordict)
        if rows is None or bool(rows.all()):
            self._steps[0] = 0
        _check(tensordict_reset, self._after_reset(), rows)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        _check(next_tensordict, self._at_step(), None)
        self._steps[0] += 1
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Check every floating-point entry of stored data."""
        _check(tensordict, "of the data", None)
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Looks at every row, from the simulator's side."""
        rewards = [] if self.parent is None else self.parent.reward_keys
        floats = [key for key in (*before.carried, *rewards) if key in before.tensors and before[key].dtype.kind == "f"]
        bound = [(key, int(key in before.carried), before[key], suspicion(before[key])) for key in floats]
        batch_dims, steps = len(before.batch_size), self._steps

        def step(t: int) -> None:
            for key, shift, array, suspicious in bound:
                if suspicious(t + shift):
                    row = torch.from_numpy(array[t + shift : t + shift + 1])[0]
                    _check_leaf(key, row, batch_dims, self._at_step(), None)
            steps[0] += 1

        def reset(t: int, mask: np.ndarray | None) -> None:
            if mask is None or mask.all():
                steps[0] = 0
            rows = None if mask is None else torch.from_numpy(mask)
            for key, shift, array, suspicious in bound:
                if shift and suspicious(t):
                    _check_leaf(key, torch.from_numpy(array[t : t + 1])[0], batch_dims, self._after_reset(), rows)

        return RowProgram(step, reset)

    def _at_step(self) -> str:
        return f"at step {self._steps[0]}"

    def _after_reset(self) -> str:
        return f"after the reset at step {self._steps[0]}"


def suspicion(array: np.ndarray) -> Callable[[int], bool]:
    """``suspicious(t)`` is True where row t holds NaN or infinity, and rarely (a sum overflows) where it does not.

    A sum is finite only where its terms are, and ``x - x`` is 0 only where x is finite.
    """
    numbers, size = number_rows(array), array[0].size
    if numbers is not None:

        def of_number(t: int) -> bool:
            x = numbers[t]
            return bool(x - x != 0.0)

        return of_number
    rows = list(array.reshape(len(array), -1))
    if size <= _FEW:

        def of_few(t: int) -> bool:
            x = sum(rows[t].tolist())
            return bool(x - x != 0.0)

        return of_few
    isfinite = np.isfinite
    return lambda t: not isfinite(rows[t]).all()


def _check(data: TensorDictBase, where: str, rows: Tensor | None) -> None:
    for key in data.keys(True, True):
        _check_leaf(as_key(as_path(key)), data.get(key), data.batch_dims, where, rows)


def _check_leaf(key: Key, value: Any, batch_dims: int, where: str, rows: Tensor | None) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return
    finite = torch.isfinite(value)
    if rows is not None:
        finite = finite | ~rows.reshape(*rows.shape, *(1,) * (value.ndim - rows.ndim))
    if not bool(finite.all()):
        raise _error(key, value, batch_dims, where, finite)


def _error(key: Key, value: Tensor, batch_dims: int, where: str, finite: Tensor | None) -> EnvError:
    finite = torch.isfinite(value) if finite is None else finite
    place = tuple((~finite).nonzero()[0].tolist())
    row = ", ".join(map(str, place[:batch_dims]))
    in_row = f" in row {row}" if row else ""
    return EnvError(
        f"{key!r} is {value[place].item()}{in_row} {where} (entry {list(place[batch_dims:])}). Look at the "
        "simulator's state and the action there; if it is an action that drives it away, bound the policy "
        "(TanhNormal) or clip it"
    )
