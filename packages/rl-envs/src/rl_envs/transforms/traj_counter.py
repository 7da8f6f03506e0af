"""``TrajCounter``: numbers episodes."""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, Composite, RowProgram, Transform, Unbounded, reset_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_key, as_path, join
from rl_envs.transforms.end_groups import ends_along_time

__all__ = ["TrajCounter"]


class TrajCounter(Transform):
    """Gives every episode of this environment a number, from 0 on in the order of their resets; int64 ``[*B, 1]``.

    The next number is saved with the transform.

    Args:
        out_key: the number's name.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=2), TrajCounter())
        >>> env.rollout(5, break_when_any_done=False)["traj_count"].flatten()
        tensor([0, 0, 1, 1, 2])
    """

    following: Tensor

    def __init__(self, out_key: Key = "traj_count") -> None:
        super().__init__()
        self.out_keys = [as_key(as_path(out_key))]
        self.register_buffer("following", torch.zeros((), dtype=torch.int64))

    def _take(self, rows: Tensor) -> Tensor:
        """The numbers of the rows of a mask ``[*B]`` that begin; 0 elsewhere."""
        order = rows.flatten().long().cumsum(0).reshape(rows.shape) - 1
        numbers = torch.where(rows, order + self.following.to(rows.device), 0)
        self.following += int(rows.sum())
        return numbers

    # ---------------------------------------------------------------- specs
    def _add(self, spec: Composite) -> Composite:
        spec.set(self.out_keys[0], Unbounded(shape=(*spec.shape, 1), dtype=torch.int64, device=spec.device))
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the number."""
        if self.out_keys[0] in observation_spec:
            raise EnvError(f"the environment already has {self.out_keys[0]!r}; give this TrajCounter another out_key")
        return self._add(observation_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """A step reads the number."""
        return self._add(state_spec)

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        rows = reset_rows(tensordict)
        if rows is None:
            rows = torch.ones(tensordict_reset.batch_size, dtype=torch.bool, device=tensordict_reset.device)
        return tensordict_reset.set(self.out_keys[0], self._take(rows).unsqueeze(-1))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        number = tensordict.get(self.out_keys[0], None)
        if number is None:
            raise KeyMissingError(
                f"TrajCounter needs {self.out_keys[0]!r} at the root; reset through the TransformedEnv that has the "
                "TrajCounter (td = env.reset(), or env.reset(td)), or keep the key in what is stepped"
            )
        return next_tensordict.set(self.out_keys[0], number)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Number the episodes of stored steps ``[*B, T]``, row after row; every call goes on from the last one."""
        _, ended, dim = next(iter(ends_along_time(tensordict, type(self).__name__)))
        done = ended.reshape(*tensordict.shape, -1).any(-1)
        begins = torch.cat([torch.ones_like(done.narrow(dim, 0, 1)), done.narrow(dim, 0, done.shape[dim] - 1)], dim)
        rows_first = begins.movedim(dim, -1)
        order = rows_first.flatten().long().cumsum(0).reshape(rows_first.shape) - 1
        numbers = (order + self.following.to(order.device)).movedim(-1, dim).unsqueeze(-1)
        self.following += int(begins.sum())
        tensordict.set(self.out_keys[0], numbers)
        return tensordict.set(join("next", self.out_keys[0]), numbers.clone())

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """A row's number is that of the row before; a reset gives the next ones."""
        numbers = after[self.out_keys[0]]
        batch = torch.Size(numbers.shape[1:-1])

        def step(t: int) -> None:
            numbers[t + 1] = numbers[t]

        def reset(t: int, mask: np.ndarray | None) -> None:
            rows = torch.ones(batch, dtype=torch.bool) if mask is None else torch.from_numpy(mask)
            taken = self._take(rows).unsqueeze(-1).numpy()
            if mask is None:
                numbers[t] = taken
            else:
                numbers[t][mask] = taken[mask]

        return RowProgram(step, reset)
