"""``RowsEnv``: a batch that is stepped on columns, and its TensorDict interface on columns of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl_core import ArrayEnv
from rl_core.envs.partial_reset import reset_request
from rl_core.keys import join
from rl_envs.vector.batched import BatchedEnv

__all__ = ["RowsEnv"]


class RowsEnv(ArrayEnv, BatchedEnv):
    """The part of a batch that its runners on columns and its TensorDict interface share."""

    def _hand_kwargs(self, kwargs: Sequence[Mapping[str, Any]] | None) -> None:
        """Keep the arguments of the reset that follows, by environment; None where there are none."""
        raise NotImplementedError

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        columns, program = self._bound()
        request = reset_request(tensordict, self.end_groups)
        rows = None if request is None else request.rows(len(self.batch_size))
        mask = None if rows is None or bool(rows.all()) else rows.cpu().numpy()
        self._hand_kwargs(self._kwargs_each(kwargs))
        try:
            program.reset(0, mask)
        finally:
            self._hand_kwargs(None)
        return self._read(columns, 0, {key: columns[key] for key in self.observation_keys})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        columns, _ = self._bound()
        for key in self.state_keys:
            value, following = tensordict.get(key, None), tensordict.get(join("next", key), None)
            target = columns.tensors.get(key)
            if isinstance(value, Tensor) and target is not None:
                target[0].copy_(value)
                target[1].copy_(value if following is None else following)
        return super()._step(tensordict)
