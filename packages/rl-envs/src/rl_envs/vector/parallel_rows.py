"""``WorkerRows``: the shared rows of a ParallelEnv, as this process writes and reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, RowProgram
from rl_core.envs.env_specs import EnvSpecs
from rl_core.keys import Key
from rl_envs.vector.pool import WorkerPool
from rl_envs.vector.shared_columns import SharedColumns

__all__ = ["WorkerRows"]


class WorkerRows:
    """Writes actions, has the workers act, and finds results in rows that they have written.

    It knows nothing of the ParallelEnv it belongs to, so that the workers end as soon as that one is forgotten.

    Args:
        pool: the workers.
        shared: their memory.
        env: whose keys are read.
        states: what a step reads beside observations and actions; kept by the workers between steps.
        ahead: whether an environment carries a policy's state, which the policy writes a row ahead.
    """

    def __init__(
        self, pool: WorkerPool, shared: SharedColumns, env: EnvSpecs, states: Sequence[Key], ahead: bool
    ) -> None:
        self.pool, self.shared, self.states, self.ahead = pool, shared, list(states), ahead
        self.tensors: dict[Key, Tensor] = {
            key: torch.from_numpy(array) for key, array in shared.arrays.items() if key not in shared.objects
        }
        self.action_keys, self.reward_keys = list(env.action_keys), list(env.reward_keys)
        self.carried_states = [key for key in env.state_keys if key not in self.states]
        carried = set(shared.carried)
        self.object_results = [key for key in shared.objects if key in carried]
        self.object_inputs = [key for key in (*self.action_keys, *env.state_keys) if key in shared.objects]
        self._batch_dims = len(env.batch_size)
        pool.detail = _ActionTeller({key: shared.arrays[key] for key in self.action_keys})

    # ---------------------------------------------------------------- writing
    def write(self, key: Key, row: int, value: Any) -> None:
        """One entry into its row."""
        if key in self.tensors:
            self.tensors[key][row].copy_(value.detach())
        else:
            self.shared.arrays[key][row] = _objects(value, self.shared.arrays[key].shape[1:])

    def take_states(self, tensordict: TensorDictBase) -> bool:
        """Write the states that a reset is given; whether there are any."""
        found = [(key, tensordict.get(key, None)) for key in self.states]
        for key, value in found:
            if value is not None:
                self.write(key, 0, value)
                self.write(key, 1, value)  # after a step, a worker goes on from this row
        return any(value is not None for _, value in found)

    # ---------------------------------------------------------------- acting
    def step(self) -> None:
        """Step all environments: reads row 0, results lie in row 1 (rewards in row 0)."""
        if not self.object_inputs:
            answers = self.pool.step()
        else:
            arrays, carried = self.shared.arrays, set(self.shared.carried)
            given = [
                {
                    key: (arrays[key][0][envs], arrays[key][1][envs] if key in carried else None)
                    for key in self.object_inputs
                }
                for envs in (slice(lane.envs.start, lane.envs.stop) for lane in self.pool.lanes)
            ]
            answers = self.pool.call("step", [(each,) for each in given])
        if self.object_results:
            self._keep_objects(self.pool.lanes, answers, 1)

    def reset(
        self, mask: np.ndarray | None, kwargs: Sequence[Mapping[str, Any]] | None = None, given: bool = False
    ) -> None:
        """Reset rows; first observations lie in row 0."""
        lanes = self.pool.lanes
        if mask is None:
            self.shared.mask[...] = True
        else:
            self.shared.mask[...] = mask
            lanes = [lane for lane in lanes if mask[lane.envs.start : lane.envs.stop].any()]
        if kwargs is None and not given:
            answers = self.pool.reset(lanes)
        else:
            own = [None if kwargs is None else kwargs[lane.envs.start : lane.envs.stop] for lane in lanes]
            answers = self.pool.call("reset", [(each, given) for each in own], lanes)
        if self.object_results:
            self._keep_objects(lanes, answers, 0)

    def _keep_objects(self, lanes: Sequence[Any], answers: Sequence[Mapping[Key, Any]], row: int) -> None:
        for lane, answer in zip(lanes, answers, strict=True):
            for key, rows in answer.items():
                self.shared.arrays[key][row][lane.envs.start : lane.envs.stop] = rows

    # ---------------------------------------------------------------- columns
    def program(self, columns: Columns) -> RowProgram:
        """The row program on the columns of a batch."""
        arrays, act, ahead = self.shared.arrays, self.step, self.ahead
        actions = [(columns[key], arrays[key][0]) for key in self.action_keys]
        states = [(columns[key], arrays[key]) for key in self.carried_states]
        carried = [(columns[key], arrays[key]) for key in columns.carried]
        results = [(column, rows[1]) for column, rows in carried]
        rewards = [(columns[key], arrays[key][0]) for key in self.reward_keys]

        def step(t: int) -> None:
            for column, row in actions:
                row[...] = column[t]
            for column, rows in states:
                rows[0] = column[t]
                if ahead:
                    rows[1] = column[t + 1]
            act()
            for column, row in results:
                column[t + 1] = row
            for column, row in rewards:
                column[t] = row

        def reset(t: int, mask: np.ndarray | None) -> None:
            self.reset(mask)
            for column, rows in carried:
                if mask is None:
                    column[t] = rows[0]
                else:
                    column[t][mask] = rows[0][mask]

        def keep_states(t: int) -> None:
            for column, _ in states:
                column[t + 1] = column[t]

        return RowProgram(step, reset, ahead=keep_states if ahead else None)


class _ActionTeller:
    """What an environment was doing, for messages."""

    def __init__(self, actions: Mapping[Key, np.ndarray]) -> None:
        self.actions = actions

    def __call__(self, index: int) -> str:
        told = {key: array[0, index].tolist() for key, array in self.actions.items()}
        text = ", ".join(f"{key!r} = {value!r}" for key, value in told.items())
        return f" (its action: {text if len(text) < 200 else text[:200] + '...'})"


def _objects(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Non-tensor data as an array of objects."""
    rows = np.empty(shape, dtype=object)
    listed = value.tolist() if hasattr(value, "tolist") else value
    for index in np.ndindex(*shape):
        found = listed
        for place in index:
            found = found[place]
        rows[index] = found
    return rows
