"""``EnvPoolEnv`` and ``EnvPoolWrapper``: batches of environments that EnvPool steps in C++ threads."""

from __future__ import annotations

from typing import Any

import torch

from rl_core import Columns, RowProgram
from rl_core.errors import EnvError
from rl_core.registry import unknown_id
from rl_envs.envpool.library import envpool_module
from rl_envs.envpool.pool import PoolVector
from rl_envs.envpool.rows import pool_program
from rl_envs.gym.env import GymWrapper

__all__ = ["EnvPoolEnv", "EnvPoolWrapper", "MultiThreadedEnv", "MultiThreadedEnvWrapper"]


class EnvPoolWrapper(GymWrapper):
    """A synchronous pool, from ``envpool.make_gymnasium``, as one environment of batch size ``[N]``.

    Observations, actions, rewards and infos are as in :class:`rl_envs.GymWrapper`. Ended rows are reset by themselves,
    so that no step is spent on it and ``("next", observation)`` is the true last one. EnvPool is seeded where a pool is
    made, so a pool that was made elsewhere refuses ``set_seed``.

    Args:
        env: the pool; it is closed with this environment.
        categorical_action_encoding: write choices as numbers instead of one-hot vectors.
        device: where tensors are moved; None leaves them on the CPU.

    Raises:
        EnvError: the pool is asynchronous (``batch_size``), or of another interface than gymnasium's.

    Weng et al., 2022, EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine, arXiv:2206.10558.
    """

    def __init__(
        self,
        env: Any,
        categorical_action_encoding: bool = False,
        *,
        device: torch.device | str | None = None,
        allow_done_after_reset: bool = False,
    ) -> None:
        vector = env if isinstance(env, PoolVector) else PoolVector(env)
        super().__init__(
            vector, categorical_action_encoding, device=device, allow_done_after_reset=allow_done_after_reset
        )
        self.name = vector.name

    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the pool to columns."""
        return pool_program(self, columns)

    def _set_seed(self, seed: int) -> None:
        """The next reset makes the pool anew, with this seed."""
        if self._env.given:
            raise EnvError(
                f"EnvPool takes a seed where a pool is made: envpool.make_gymnasium({self.name!r}, seed={seed}, ...), "
                "or EnvPoolEnv(name, num_envs=N), which makes it for you"
            )
        super()._set_seed(seed)


class EnvPoolEnv(EnvPoolWrapper):
    """A pool by the name of its task.

    Args:
        env_name: the task, for example "Pong-v5".
        num_envs: how many environments, at least 1.
        categorical_action_encoding: as in :class:`EnvPoolWrapper`.
        device: as in :class:`EnvPoolWrapper`.
        **pool_kwargs: for ``envpool.make_gymnasium``: ``num_threads``, ``max_episode_steps``, ``frame_skip`` ...

    Raises:
        UnknownNameError: no such task.
        PluginNotInstalledError: EnvPool is not installed.
    """

    def __init__(
        self,
        env_name: str,
        num_envs: int = 1,
        categorical_action_encoding: bool = False,
        *,
        device: torch.device | str | None = None,
        **pool_kwargs: Any,
    ) -> None:
        if num_envs < 1:
            raise EnvError(f"EnvPool steps at least one environment; got num_envs={num_envs}")
        if "batch_size" in pool_kwargs:
            raise EnvError("a batch needs all environments at every step; leave batch_size out")
        known = envpool_module().list_all_envs()
        if env_name not in known:
            raise unknown_id("envpool", env_name, known)
        super().__init__(PoolVector(env_name, num_envs, pool_kwargs), categorical_action_encoding, device=device)


class MultiThreadedEnvWrapper(EnvPoolWrapper):
    """:class:`EnvPoolWrapper` under its older name."""


class MultiThreadedEnv(EnvPoolEnv):
    """:class:`EnvPoolEnv` under its older name and arguments.

    Args:
        num_workers: how many environments.
        env_name: the task.
        create_env_kwargs: for ``envpool.make_gymnasium``.
        categorical_action_encoding: as in :class:`EnvPoolWrapper`.
        device: as in :class:`EnvPoolWrapper`.
    """

    def __init__(
        self,
        num_workers: int,
        env_name: str,
        *,
        create_env_kwargs: dict[str, Any] | None = None,
        categorical_action_encoding: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(env_name, num_workers, categorical_action_encoding, device=device, **(create_env_kwargs or {}))
