"""``ParallelEnv``: N environments in worker processes as one of batch size ``[N, ...]``."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core import Columns, RowProgram
from rl_core.envs.array_env import stage_leaves
from rl_core.envs.columns import nest, object_row
from rl_core.envs.env_specs import leaf_specs
from rl_core.envs.partial_reset import reset_request
from rl_core.keys import Key, join
from rl_envs.vector.batched import steps_as
from rl_envs.vector.makers import makers_of
from rl_envs.vector.parallel_parts import WorkerParts, can_share_parts
from rl_envs.vector.parallel_rows import WorkerRows
from rl_envs.vector.pool import Lane, WorkerPool
from rl_envs.vector.row_by_row import RowByRowEnv
from rl_envs.vector.serial import SerialEnv
from rl_envs.vector.shared_columns import lay_out
from rl_envs.vector.wire import from_wire, to_wire

__all__ = ["ParallelEnv"]


class ParallelEnv(RowByRowEnv):
    """Several environments in worker processes, stepped at once as one environment of batch size ``[N, ...]``.

    Workers write their rows in place into memory shared with this process; a step sends one byte to each worker and
    waits for one byte, blocking in the kernel; environments whose shapes differ (which give lazy stacks) have rows of
    their own there. Entries that are no tensors, or whose shapes are not known in advance, travel over the line
    instead. The same seed gives the same numbers as :class:`SerialEnv`.

    A worker's exception is raised here as a :class:`WorkerError` with the environment's index, what it was doing and
    its traceback; so is the end of a process. All workers are ended then.

    Args:
        num_workers: the number of environments, N.
        create_env_fn: makes one: a function, an ``EnvRef``, an :class:`EnvCreator` or a name such as
            ``"gym:CartPole-v1"``; or a list with one for each environment. It is called in the worker; functions that
            cannot be imported by name there (lambdas) need cloudpickle, or ``mp_start_method="fork"``.
        create_env_kwargs: arguments for it, or a list with a dictionary for each environment.
        envs_per_worker: how many environments share a process.
        shared_memory: False sends everything over the line.
        mp_start_method: "spawn" (default) starts a new Python, which loads the libraries and forks itself for each
            worker; the main script is not imported again. "fork" copies this process in milliseconds, and is only safe
            while no other thread of it holds a lock and no environment uses an accelerator. "forkserver" is "spawn".
        device: where results are moved; None moves nothing. The environments keep their own devices.
        serial_for_single: make a :class:`SerialEnv` instead where N is 1.
        num_threads: taken for compatibility; this process's threads are left alone.
        num_sub_threads: torch's threads in each worker; None leaves them alone.
        timeout: seconds that a construction, a reset, a step or a call may take; None waits for ever.
        shutdown_timeout: seconds for workers to close their environments and leave; then they are killed.

    Raises:
        WorkerError: an environment could not be made.
        EnvError: something was given that makes no environment, or that cannot be sent to a worker.

    Example:
        >>> env = ParallelEnv(2, "gym:CartPole-v1", mp_start_method="fork")
        >>> env.rollout(20, break_when_any_done=False).batch_size
        torch.Size([2, 20])
        >>> env.close()
    """

    def __new__(cls, *args: Any, serial_for_single: bool = False, **kwargs: Any) -> Any:
        """A SerialEnv where that was asked for."""
        count = args[0] if args else kwargs.get("num_workers")
        if serial_for_single and count == 1:
            return SerialEnv(*args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Any,
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        envs_per_worker: int = 1,
        shared_memory: bool = True,
        mp_start_method: str | None = None,
        device: torch.device | str | None = None,
        serial_for_single: bool = False,
        num_threads: int | None = None,
        num_sub_threads: int | None = 1,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
    ) -> None:
        name = type(self).__name__
        makers = makers_of(name, num_workers, create_env_fn, create_env_kwargs)
        if envs_per_worker < 1:
            raise ValueError(f"envs_per_worker is the number of environments in a process, >= 1; got {envs_per_worker}")
        self.pool = WorkerPool(
            f"{name}({num_workers})",
            makers,
            envs_per_worker=envs_per_worker,
            method=mp_start_method,
            threads=num_sub_threads,
            timeout=timeout,
            shutdown_timeout=shutdown_timeout,
        )
        self._ending = weakref.finalize(self, self.pool.close)
        self.worker_rows: WorkerRows | None = None
        self._worker_parts: WorkerParts | None = None
        self._writes_rows = False
        self.num_processes = len(self.pool.lanes)
        try:
            super().__init__(self.pool.descriptions, device)
            if shared_memory and steps_as(self, ParallelEnv):
                if self.sharable:
                    self._share()
                elif self.heterogeneous and can_share_parts(self._shells()):
                    self._worker_parts = WorkerParts(self.pool, self._shells())
        except BaseException:
            self.pool.close(why="its construction failed")
            raise

    def _share(self) -> None:
        """Put the rows into shared memory."""
        leaves = {key: (key, spec, carried) for key, (spec, carried) in stage_leaves(self).items()}
        states = {key: (key, spec, True) for key, spec in leaf_specs(self.state_spec).items() if key not in leaves}
        shared, ahead = self.pool.share(lay_out([*leaves.values(), *states.values()]), tuple(self.batch_size))
        self.worker_rows = WorkerRows(self.pool, shared, self, list(states), ahead)
        # As SerialEnv, this one is stepped on columns where its environments are: they draw random actions in one order
        self._writes_rows = self.fits_rows and all(each.rows for each in self.descriptions)

    def _seed_each(self, seeds: Sequence[int]) -> None:
        self.pool.call("seed", [(seeds[lane.envs.start : lane.envs.stop],) for lane in self.pool.lanes])
        self._seeded = True

    # ---------------------------------------------------------------- shared rows
    @property
    def supports_rows(self) -> bool:
        """Where all environments write rows, they are shared, and results stay on the CPU."""
        return self._writes_rows and (self.device is None or self.device.type == "cpu")

    def row_program(self, columns: Columns) -> RowProgram:
        """Actions from the columns into shared memory, and results back."""
        if self.worker_rows is None:
            return super().row_program(columns)
        program, this = self.worker_rows.program(columns), weakref.ref(self)

        def reset(t: int, mask: Any) -> None:
            env = this()
            if env is not None:
                env._seed_first_reset()
            program.reset(t, mask)

        return RowProgram(program.step, reset, ahead=program.ahead)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        rows = self.worker_rows
        if rows is None:
            return super()._reset(tensordict, **kwargs)
        self._seed_first_reset()
        each = self._kwargs_each(kwargs)
        request = reset_request(tensordict, self.end_groups)
        asked = None if request is None else request.rows(len(self.batch_size))
        mask = None if asked is None or bool(asked.all()) else asked.cpu().numpy()
        given = tensordict is not None and rows.take_states(tensordict)
        rows.reset(mask, each, given)
        return self._result(rows, 0, [*self.observation_keys, *rows.states])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        rows = self.worker_rows
        if rows is None:
            return super()._step(tensordict)
        for key in self.state_keys:
            value = tensordict.get(key, None)
            if value is not None:
                following = tensordict.get(join("next", key), None)
                rows.write(key, 0, value)
                rows.write(key, 1, value if following is None else following)
        for key in self.action_keys:
            rows.write(key, 0, tensordict.get(key))
        rows.step()
        result = self._result(rows, 1, [*self.observation_keys, *self._flags()])
        for key in self.reward_keys:
            result.set(key, self._leaf_at(rows, key, 0))
        return result

    def _flags(self) -> list[Key]:
        flags = [(group.terminated, group.truncated) for group in self.end_groups]
        return self._derive("flags", lambda: [key for pair in flags for key in pair if key is not None])

    def _leaf_at(self, rows: WorkerRows, key: Key, row: int) -> Any:
        tensor = rows.tensors.get(key)
        if tensor is None:
            return object_row(rows.shared.arrays[key][row], self.batch_size)
        return tensor[row].clone() if self.device is None else tensor[row].to(self.device, copy=True)

    def _result(self, rows: WorkerRows, row: int, keys: Sequence[Key]) -> TensorDictBase:
        return nest({key: self._leaf_at(rows, key, row) for key in keys}, self.batch_size, self.device)

    # ---------------------------------------------------------------- rows of TensorDicts
    def _reset_rows(
        self, requests: Sequence[TensorDictBase | None], kwargs: Sequence[Mapping[str, Any]] | None
    ) -> list[TensorDictBase | None]:
        if self._worker_parts is not None:
            return self._worker_parts.reset_rows(requests, kwargs)
        lanes = [lane for lane in self.pool.lanes if any(requests[index] is not None for index in lane.envs)]
        arguments = [(to_wire(_of(requests, lane)), None if kwargs is None else _of(kwargs, lane)) for lane in lanes]
        fresh: list[TensorDictBase | None] = [None] * self.num_workers
        for lane, rows in zip(lanes, self.pool.call("reset_rows", arguments, lanes), strict=True):
            fresh[lane.envs.start : lane.envs.stop] = from_wire(rows)
        return fresh

    def _step_rows(self, rows: Sequence[TensorDictBase]) -> list[TensorDictBase]:
        if self._worker_parts is not None:
            return self._worker_parts.step_rows(rows)
        arguments = [(to_wire(_of(rows, lane)),) for lane in self.pool.lanes]
        found = self.pool.call("step_rows", arguments)
        return [row for rows in found for row in from_wire(rows) if row is not None]

    # ---------------------------------------------------------------- access, checkpoints, life
    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every environment, or read an attribute of it, and list the results."""
        found = self.pool.call("call", [(name, args, kwargs)] * self.num_processes)
        return [result for results in found for result in results]

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment."""
        each = self._values_each(values)
        self.pool.call("set_attr", [(name, _of(each, lane)) for lane in self.pool.lanes])

    def state_dict(self) -> dict[str, Any]:
        """The states of the environments and their random streams."""
        return {"workers": self.pool.call("state_dict", [()] * self.num_processes)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        """Take a :meth:`state_dict` back; True where every environment goes on with its episode."""
        states = state_dict["workers"]
        self._seeded = all(state["seeded"] for state in states)
        return all(self.pool.call("load_state_dict", [(state,) for state in states]))

    def train(self, mode: bool = True) -> ParallelEnv:
        """Let running statistics move (or freeze them) in all environments."""
        super().train(mode)
        self.pool.call("train", [(mode,)] * self.num_processes)
        return self

    def close(self, *, raise_if_closed: bool = False) -> None:
        """End all workers."""
        self.pool.close()
        self._ending.detach()
        super().close(raise_if_closed=raise_if_closed)

    def _check_open(self) -> None:
        self.pool._check_open()
        super()._check_open()


def _of(each: Sequence[Any], lane: Lane) -> list[Any]:
    """The entries of a worker's environments."""
    return list(each[lane.envs.start : lane.envs.stop])
