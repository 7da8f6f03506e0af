"""``FiniteTensorDictCheck``: stops at the first NaN or infinity, and says where it came from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, RowProgram, Transform, reset_rows
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path

__all__ = ["FiniteTensorDictCheck"]


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
        self._steps = 0

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        rows = reset_rows(tensordict)
        if rows is None or bool(rows.all()):
            self._steps = 0
        _check(tensordict_reset, f"after the reset at step {self._steps}", rows)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        _check(next_tensordict, f"at step {self._steps}", None)
        self._steps += 1
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
        """A dot product with zeros per row: it is NaN where anything is not finite, and costs one BLAS call."""
        bound = []
        rewards = [] if self.parent is None else self.parent.reward_keys
        for key in (*before.carried, *rewards):
            if key in before.tensors and before[key].dtype.kind == "f":
                flat = list(before[key].reshape(len(before[key]), -1))
                bound.append((key, int(key in before.carried), flat, np.zeros_like(flat[0])))
        batch, is_nan = before.batch_size, math.isnan
        carried_bound = [part for part in bound if part[1]]

        def step(t: int) -> None:
            for key, shift, rows, zeros in bound:
                if is_nan(rows[t + shift].dot(zeros)):
                    value = torch.from_numpy(before[key][t + shift])
                    raise _error(key, value, len(batch), f"at step {self._steps}", None)
            self._steps += 1

        def reset(t: int, mask: np.ndarray | None) -> None:
            if mask is None:
                self._steps = 0
            for key, _, rows, zeros in carried_bound:
                if is_nan(rows[t].dot(zeros)):
                    chosen = None if mask is None else torch.from_numpy(mask)
                    where = f"after the reset at step {self._steps}"
                    _check_leaf(key, torch.from_numpy(before[key][t]), len(batch), where, chosen)

        return RowProgram(step, reset)


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
