"""``ArrayEnv``: an environment whose simulator speaks numpy and writes rows of columns in place.

It defines one method, :meth:`ArrayEnv.row_program`; ``_reset`` and ``_step`` on TensorDicts follow from it. Rollouts
and collectors bind the program to the columns of a whole batch and then need no container per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core.envs.base import EnvBase
from rl_core.envs.columns import Columns, RowProgram, nest, object_row
from rl_core.envs.env_specs import EnvSpecs, leaf_specs
from rl_core.envs.partial_reset import reset_rows
from rl_core.keys import Key
from rl_core.specs import TensorSpec

__all__ = ["ArrayEnv", "allocate", "stage_leaves"]


def stage_leaves(specs: EnvSpecs) -> dict[Key, tuple[TensorSpec, bool]]:
    """Every leaf of an environment's columns: key -> (spec, carried)."""
    leaves: dict[Key, tuple[TensorSpec, bool]] = {}
    for full, carried in (
        (specs.observation_spec, True),
        (specs.full_done_spec, True),
        (specs.full_action_spec, False),
        (specs.full_reward_spec, False),
    ):
        leaves.update({key: (leaf, carried) for key, leaf in leaf_specs(full).items()})
    return leaves


def allocate(specs: EnvSpecs, n_steps: int) -> Columns:
    """Columns for ``n_steps`` steps of an environment."""
    columns = Columns(n_steps, specs.batch_size)
    for key, (spec, carried) in stage_leaves(specs).items():
        columns.add(key, spec, carried=carried)
    return columns


class ArrayEnv(EnvBase):
    """Base of environments over numpy simulators; subclasses define :meth:`row_program`."""

    @property
    def supports_rows(self) -> bool:
        """On the CPU, unless the simulator resets itself."""
        return (self.device is None or self.device.type == "cpu") and not self.auto_reset

    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the simulator to columns.

        The program's ``step`` writes every observation and reward leaf and, for the end flags, ``terminated`` and
        (where the done spec has it) ``truncated``; ``done`` follows from them. ``reset`` writes the observations.
        """
        raise NotImplementedError(f"{type(self).__name__} must define row_program(self, columns) -> RowProgram")

    def _bound(self) -> tuple[Columns, RowProgram]:
        """Columns of one step with the program bound to them, for the TensorDict interface."""

        def bind() -> tuple[Columns, RowProgram]:
            columns = allocate(self, 1)
            return columns, self.row_program(columns)

        return self._derive("bound", bind)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        columns, program = self._bound()
        rows = reset_rows(tensordict)
        mask = None if rows is None or bool(rows.all()) else rows.cpu().numpy()
        if kwargs:
            self._reset_options(**kwargs)
        program.reset(0, mask)
        return self._read(columns, 0, {key: columns[key] for key in self.observation_keys})

    def _reset_options(self, **kwargs: Any) -> None:
        """Take keyword arguments of ``reset`` for the reset that follows."""
        raise TypeError(f"{type(self).__name__}.reset takes no keyword arguments, got {', '.join(kwargs)}")

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        columns, program = self._bound()
        for key in self.action_keys:
            action = tensordict.get(key)
            columns[key][0] = (
                action.detach().cpu().numpy() if isinstance(action, torch.Tensor) else _payload(action, self.batch_size)
            )
        program.step(0)
        result = self._read(columns, 1, {key: columns[key] for key in self.observation_keys})
        for group in self.end_groups:
            for flag in (group.terminated, group.truncated):
                if flag is not None:
                    result.set(flag, self._leaf(columns, flag, 1))
        for key in self.reward_keys:
            result.set(key, self._leaf(columns, key, 0))
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Without the program that is bound to columns of this process."""
        return {**self.__dict__, "_derived": {}}

    def _leaf(self, columns: Columns, key: Key, row: int) -> Any:
        if key in columns.tensors:
            value = columns.tensors[key][row].clone()
            return value if self.device is None else value.to(self.device)
        return object_row(columns[key][row], self.batch_size)

    def _read(self, columns: Columns, row: int, leaves: Mapping[Key, np.ndarray]) -> TensorDictBase:
        return nest({key: self._leaf(columns, key, row) for key in leaves}, self.batch_size, self.device)


def _payload(value: Any, batch_size: torch.Size) -> Any:
    return value.tolist() if len(batch_size) else getattr(value, "data", value)
