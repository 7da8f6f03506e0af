"""``EnvPoolAsync``: EnvPool's asynchronous mode, which answers with those environments that are done first."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import TensorSpec
from rl_core.errors import EnvError
from rl_envs.envpool.answers import Answers
from rl_envs.envpool.env import EnvPoolEnv
from rl_envs.envpool.library import envpool_module
from rl_envs.envpool.rows import Wires
from rl_envs.gym.spaces import composite

__all__ = ["EnvPoolAsync"]


class EnvPoolAsync:
    """A pool of N environments of which ``batch_size`` are answered at a time, whichever are done first.

    It is used as :class:`rl_envs.AsyncEnvPool` is: ``async_step_send(td, env_index)`` begins steps and returns at once;
    ``async_step_recv()`` waits for results and tells in "env_index" (int64) whose each row is. All specs are those of
    one environment. A whole batch cannot be stepped at once: that is what :class:`rl_envs.EnvPoolEnv` is for.

    EnvPool answers exactly ``batch_size`` environments at a time and waits for them without a time limit, so at least
    as many must be under way when results are asked for. Ended environments are reset by
    ``async_step_and_maybe_reset_send``, whose result comes when the reset is done too, or by ``async_reset_send``; no
    step is spent on it.

    Args:
        env_name: the task, for example "Pong-v5".
        num_envs: N.
        batch_size: how many are answered at a time, 1 to N.
        categorical_action_encoding: write choices as numbers instead of one-hot vectors.
        device: where results are moved; None leaves them on the CPU.
        **pool_kwargs: for ``envpool.make_gymnasium``: ``num_threads``, ``max_episode_steps``, ``frame_skip`` ...

    Raises:
        EnvError: the sizes do not fit, or the task's actions are nested.
        UnknownNameError: no such task.
        PluginNotInstalledError: EnvPool is not installed.

    Weng et al., 2022, EnvPool: A Highly Parallel Reinforcement Learning Environment Execution Engine, section 3,
    arXiv:2206.10558.
    """

    def __init__(
        self,
        env_name: str,
        num_envs: int,
        batch_size: int,
        categorical_action_encoding: bool = False,
        *,
        device: torch.device | str | None = None,
        **pool_kwargs: Any,
    ) -> None:
        if not 1 <= batch_size <= num_envs:
            raise EnvError(f"batch_size is a number from 1 to num_envs={num_envs}; got {batch_size}")
        facts = EnvPoolEnv(env_name, 1, categorical_action_encoding, **pool_kwargs)
        if len(facts.action_leaves) != 1 or facts.action_leaves[0].path:
            raise EnvError(
                f"the actions of {env_name} are nested, which is not supported in EnvPool's asynchronous mode"
            )
        self.name, self.num_workers, self.answered = env_name, num_envs, batch_size
        self.device = None if device is None else torch.device(device)
        self.kwargs = pool_kwargs
        one = torch.Size([])
        self.observation_spec = composite(facts.observation_leaves, one)
        self.action_spec: TensorSpec = facts.action_leaves[0].spec
        self.reward_spec, self.done_spec = facts.reward_spec[0], facts.done_spec[0]
        self.observation_leaves = facts.observation_leaves
        self._native_action = facts.action_leaves[0].decoder(True)
        self._pool: Any = None
        self._seed: int | None = None
        self._answers: Answers | None = None
        self.is_closed = False

    # ---------------------------------------------------------------- sending
    def async_reset_send(self, tensordict: TensorDictBase | None = None, env_index: Any = None) -> None:
        """Begin to reset environments.

        Args:
            tensordict: only its entry "env_index" is read.
            env_index: a number or a list; default: the entry "env_index", else all of them.

        Raises:
            EnvError: one of them still has something to do, or only some are reset after :meth:`set_seed`.
        """
        rows = self._rows(tensordict, env_index)
        self._begin(len(rows)).reset(rows)

    def async_step_send(self, tensordict: TensorDictBase, env_index: Any = None) -> None:
        """Begin to step environments.

        Args:
            tensordict: one row for each, with "action"; its other entries come back with the result.
            env_index: as of :meth:`async_reset_send`.

        Raises:
            EnvError: one of them still has something to do, or is not inside an episode.
        """
        self._step_send("step", tensordict, env_index)

    def async_step_and_maybe_reset_send(self, tensordict: TensorDictBase, env_index: Any = None) -> None:
        """Begin to step environments, and to reset them where they end; as :meth:`async_step_send`."""
        self._step_send("step_and_maybe_reset", tensordict, env_index)

    def _step_send(self, method: str, tensordict: TensorDictBase, env_index: Any) -> None:
        rows = self._rows(tensordict, env_index)
        given = tensordict if tensordict.batch_dims else tensordict.unsqueeze(0)
        if given.batch_size[0] != len(rows):
            raise EnvError(
                f"the TensorDict has batch size {tuple(tensordict.batch_size)} for {len(rows)} environments "
                f"(env_index={rows.tolist()}); give one row for each"
            )
        if self._answers is None:
            raise EnvError(f"{self.name} was stepped before its first reset; send async_reset_send() first")
        action = given.get("action", None)
        expected = (len(rows), *self.action_spec.shape)
        if action is None or tuple(action.shape) != expected:
            found = "none" if action is None else f"one of shape {tuple(action.shape)}"
            raise EnvError(
                f"'action' is expected with shape {expected}; there is {found}. Policies write it, or rand_action"
            )
        native = self._native_action(action.detach().cpu().numpy())
        self._answers.step(method, rows, native, given.exclude("env_index"))

    def _rows(self, tensordict: TensorDictBase | None, env_index: Any) -> np.ndarray:
        if env_index is None and tensordict is not None:
            env_index = tensordict.get("env_index", None)
        if env_index is None:
            return np.arange(self.num_workers, dtype=np.int32)
        given = env_index.cpu().numpy() if isinstance(env_index, Tensor) else env_index
        rows = np.asarray(given, dtype=np.int32).reshape(-1)
        outside = rows[(rows < 0) | (rows >= self.num_workers)]
        if len(outside):
            raise EnvError(
                f"env_index {outside[0]} is not one of the {self.num_workers} environments, 0 to {self.num_workers - 1}"
            )
        if len(np.unique(rows)) != len(rows):
            raise EnvError(f"env_index names an environment twice: {rows.tolist()}")
        return rows

    # ---------------------------------------------------------------- receiving
    def async_reset_recv(
        self, min_get: int = 1, env_index: Any = None, *, max_get: int | None = None
    ) -> TensorDictBase:
        """Take finished resets.

        Args:
            min_get: wait for so many at least.
            env_index: wait for these environments instead.
            max_get: take so many at most; default: all that are ready.

        Returns:
            TensorDict ``[k]`` with "env_index".

        Raises:
            EnvError: fewer are under way than are asked for, or than EnvPool answers at a time.
        """
        return self._recv("reset", min_get, env_index, max_get)[0]

    def async_step_recv(self, min_get: int = 1, env_index: Any = None, *, max_get: int | None = None) -> TensorDictBase:
        """Take finished steps: what was sent, with "next"; as :meth:`async_reset_recv`."""
        return self._recv("step", min_get, env_index, max_get)[0]

    def async_step_and_maybe_reset_recv(
        self, min_get: int = 1, env_index: Any = None, *, max_get: int | None = None
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Take finished steps and the environment's part of the roots that follow; as :meth:`async_reset_recv`."""
        stepped, following = self._recv("step_and_maybe_reset", min_get, env_index, max_get)
        return stepped, following

    def _recv(self, method: str, min_get: int, env_index: Any, max_get: int | None) -> list[TensorDictBase]:
        if self._answers is None:
            raise EnvError(f"nothing is under way in {self.name}; send async_reset_send() first")
        wanted = None if env_index is None else self._rows(None, env_index)
        least = min_get if wanted is None else len(wanted)
        if least < 1 or (max_get is not None and max_get < least):
            raise ValueError(f"min_get is at least 1 and at most max_get; got {least} and {max_get}")
        taken = self._answers.take(method, least, wanted, max_get)
        return taken if self.device is None else [data.to(self.device) for data in taken]

    # ---------------------------------------------------------------- life
    def set_seed(self, seed: int) -> None:
        """Make the pool anew, with this seed, at the next reset of all environments."""
        if self._answers is not None and self._answers.busy.any():
            raise EnvError("set_seed while environments have something to do; receive it first")
        self._seed = seed
        self._shut()

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write random actions into the rows of a TensorDict, or into a new one for all environments."""
        data = TensorDict({}, batch_size=[self.num_workers]) if tensordict is None else tensordict
        return data.set("action", self.action_spec.rand(data.batch_size))

    def _begin(self, count: int) -> Answers:
        if self.is_closed:
            raise EnvError(f"{self.name} is closed; make another EnvPoolAsync")
        if self._answers is None:
            if count != self.num_workers:
                raise EnvError(f"the first reset of {self.name} begins all {self.num_workers}: async_reset_send()")
            if self._seed is None:
                self._seed = int(torch.randint(2**31 - 1, ()).item())
            options = {**self.kwargs, "seed": self._seed % (2**31 - self.num_workers)}
            self._pool = envpool_module().make_gymnasium(
                self.name, num_envs=self.num_workers, batch_size=self.answered, **options
            )
            self._answers = Answers(Wires(self._pool), self.observation_leaves, self.num_workers, self.answered)
        return self._answers

    def _shut(self) -> None:
        self._answers = None
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def close(self) -> None:
        """End the threads."""
        self._shut()
        self.is_closed = True

    def __repr__(self) -> str:
        return f"EnvPoolAsync({self.name}, num_envs={self.num_workers}, batch_size={self.answered})"
