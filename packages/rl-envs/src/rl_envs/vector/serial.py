"""``SerialEnv``: N environments in this process as one of batch size ``[N, ...]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core import Columns, EnvBase, RowProgram
from rl_envs.vector.batched import steps_as
from rl_envs.vector.makers import makers_of
from rl_envs.vector.member_rows import MemberRows
from rl_envs.vector.members import Members
from rl_envs.vector.row_by_row import RowByRowEnv, call_or_read, reset_members, step_members
from rl_envs.vector.rows import RowsEnv
from rl_envs.vector.tensor_members import TensorMembers

__all__ = ["SerialEnv"]


class SerialEnv(RowByRowEnv, RowsEnv):
    """Several environments in this process, stepped one after the other as one environment of batch size ``[N, ...]``.

    Environments that write rows (gymnasium's and other numpy simulators, with transforms that have row programs) are
    stepped on columns; others are called on TensorDicts, through which gradients flow. Environments whose specs differ
    give lazy stacks. ``env[i]`` is the i-th environment.

    Args:
        num_workers: the number of environments, N.
        create_env_fn: makes one: a function, an ``EnvRef``, an :class:`EnvCreator` or a name such as
            ``"gym:CartPole-v1"``; or a list with one for each environment.
        create_env_kwargs: arguments for it, or a list with a dictionary for each environment.
        device: where results are moved; None moves nothing. The environments keep their own devices.
        serial_for_single: as of :class:`ParallelEnv`; it and the arguments that follow concern processes, and are
            taken so that one class can stand for the other.
        shared_memory: as of :class:`ParallelEnv`.
        mp_start_method: as of :class:`ParallelEnv`.
        num_threads: as of :class:`ParallelEnv`.
        num_sub_threads: as of :class:`ParallelEnv`.
        envs_per_worker: as of :class:`ParallelEnv`.
        timeout: as of :class:`ParallelEnv`.
        shutdown_timeout: as of :class:`ParallelEnv`.

    Raises:
        EnvError: something was given that makes no environment, or the batch sizes of the environments differ.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> env = SerialEnv(2, CountingEnv, create_env_kwargs=[{"length": 2}, {"length": 3}])
        >>> env.rollout(4, break_when_any_done=False)["observation"].squeeze(-1)
        tensor([[0., 1., 0., 1.],
                [0., 1., 2., 0.]])
    """

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Any,
        *,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        device: torch.device | str | None = None,
        serial_for_single: bool = False,
        shared_memory: bool = True,
        mp_start_method: str | None = None,
        num_threads: int | None = None,
        num_sub_threads: int | None = 1,
        envs_per_worker: int = 1,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
    ) -> None:
        makers = makers_of(type(self).__name__, num_workers, create_env_fn, create_env_kwargs)
        self.members = Members(makers)
        try:
            super().__init__(self.members.describe(), device)
        except BaseException:
            self.members.close()
            raise
        self._tensor_members = TensorMembers(self.members)
        self._writes_rows = (
            self.fits_rows and all(each.rows for each in self.descriptions) and steps_as(self, SerialEnv)
        )

    def __getitem__(self, index: int) -> EnvBase:
        """One of the environments."""
        return self.members.envs[index]

    def _seed_each(self, seeds: Sequence[int]) -> None:
        self.members.seed(seeds)
        self._seeded = True

    # ---------------------------------------------------------------- rows of columns
    @property
    def supports_rows(self) -> bool:
        """Where all environments write rows, and results stay on the CPU."""
        return self._writes_rows and (self.device is None or self.device.type == "cpu")

    def row_program(self, columns: Columns) -> RowProgram:
        """Each environment's own program on its part of the columns."""
        program = MemberRows(self.members, columns).program

        def reset(t: int, mask: Any) -> None:
            self._seed_first_reset()
            program.reset(t, mask)

        return RowProgram(program.step, reset, ahead=program.ahead)

    def _hand_kwargs(self, kwargs: Sequence[Mapping[str, Any]] | None) -> None:
        self.members.reset_kwargs = kwargs

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        reset = RowsEnv._reset if self._writes_rows else RowByRowEnv._reset
        return reset(self, tensordict, **kwargs)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._writes_rows:
            return RowsEnv._step(self, tensordict)
        stepped = None if self.heterogeneous else self._tensor_members.step(tensordict, self.end_groups)
        return RowByRowEnv._step(self, tensordict) if stepped is None else stepped

    def _reset_rows(
        self, requests: Sequence[TensorDictBase | None], kwargs: Sequence[Mapping[str, Any]] | None
    ) -> list[TensorDictBase | None]:
        return reset_members(self.members, requests, kwargs)

    def _step_rows(self, rows: Sequence[TensorDictBase]) -> list[TensorDictBase]:
        return step_members(self.members, rows)

    # ---------------------------------------------------------------- access, checkpoints, life
    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every environment, or read an attribute of it, and list the results."""
        return [call_or_read(env, name, args, kwargs) for env in self.members.envs]

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment."""
        for env, value in zip(self.members.envs, self._values_each(values), strict=True):
            setattr(env, name, value)
        self._tensor_members = TensorMembers(self.members)  # they may be stepped as one no more

    def state_dict(self) -> dict[str, Any]:
        """The states of the environments and their random streams."""
        return self.members.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        """Take a :meth:`state_dict` back; True where every environment goes on with its episode."""
        restored = self.members.load_state_dict(state_dict)
        self._seeded = self.members.seeded
        return restored

    def train(self, mode: bool = True) -> SerialEnv:
        """Let running statistics move (or freeze them) in all environments."""
        super().train(mode)
        for env in self.members.envs:
            env.train(mode)
        return self

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close every environment."""
        if not self.is_closed:
            self.members.close()
        super().close(raise_if_closed=raise_if_closed)
