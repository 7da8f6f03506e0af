"""``AsyncEnvPool``: environments that go each at its own pace; what is ready is taken first."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from rl_core.errors import EnvError
from rl_envs.vector.async_crews import Crew, ProcessCrew, ThreadCrew
from rl_envs.vector.makers import makers_of
from rl_envs.vector.row_by_row import RowByRowEnv

__all__ = ["AsyncEnvPool"]

_STACKS = ("dense", "maybe_dense", "lazy")


class AsyncEnvPool(RowByRowEnv):
    """Environments that are reset and stepped one by one without waiting for each other.

    ``async_step_send(td, env_index)`` starts steps of some environments and returns at once; ``async_step_recv(n)``
    waits for n results of whichever are ready, stacked, with ``"env_index"`` (int64) saying whose each row is. An
    environment has one thing to do at a time. As any other batch it can also be stepped as a whole (``reset``,
    ``step``, ``rollout``).

    Args:
        env_makers: for each environment what makes it: a function, an ``EnvRef`` or a name.
        backend: "threading" (a thread for each worker; good for environments that wait or release the GIL) or
            "multiprocessing" (a process for each).
        stack: how results are stacked: "dense", "lazy", or "maybe_dense" where shapes agree.
        create_env_kwargs: arguments for the makers, or a list with a dictionary for each.
        envs_per_worker: how many environments share a thread or process.
        mp_start_method: as of :class:`ParallelEnv`.
        num_sub_threads: torch's threads in each worker process.
        device: where results are moved.
        timeout: seconds that a worker may take for one thing in ``reset``, ``step`` and calls; None waits for ever.
        shutdown_timeout: seconds for workers to leave.

    Raises:
        WorkerError: an environment could not be made.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> pool = AsyncEnvPool([CountingEnv] * 3)
        >>> td = pool.reset()
        >>> pool.async_step_send(pool.rand_action(td)[:2], env_index=[0, 1])
        >>> sorted(pool.async_step_recv(min_get=2)["env_index"].tolist())
        [0, 1]
        >>> pool.close()
    """

    def __init__(
        self,
        env_makers: Sequence[Any],
        *,
        backend: str = "threading",
        stack: str = "dense",
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        envs_per_worker: int = 1,
        mp_start_method: str | None = None,
        num_sub_threads: int | None = 1,
        device: torch.device | str | None = None,
        timeout: float | None = None,
        shutdown_timeout: float = 10.0,
    ) -> None:
        if stack not in _STACKS:
            raise ValueError(f"stack is one of {', '.join(_STACKS)}; got {stack!r}")
        if not isinstance(env_makers, list | tuple):
            raise EnvError("AsyncEnvPool takes a list with a maker for each environment: [make] * n")
        name = f"{type(self).__name__}({len(env_makers)})"
        makers = makers_of(type(self).__name__, len(env_makers), env_makers, create_env_kwargs)
        self.stack, self.backend, self.timeout = stack, backend, timeout
        if backend == "threading":
            self._crew: Crew = ThreadCrew(name, makers, envs_per_worker, shutdown_timeout)
        elif backend == "multiprocessing":
            options = {"method": mp_start_method, "threads": num_sub_threads, "timeout": timeout}
            self._crew = ProcessCrew(
                name, makers, envs_per_worker=envs_per_worker, shutdown_timeout=shutdown_timeout, **options
            )
        else:
            raise ValueError(f"backend is 'threading' or 'multiprocessing', got {backend!r}")
        self._ending = weakref.finalize(self, self._crew.close)
        try:
            super().__init__(self._crew.descriptions, device)
        except BaseException:
            self._crew.close()
            raise
        self._busy: dict[int, str] = {}
        self._ready: list[tuple[int, str, list[TensorDictBase]]] = []

    # ---------------------------------------------------------------- sending
    def async_reset_send(self, tensordict: TensorDictBase | None = None, env_index: Any = None, **kwargs: Any) -> None:
        """Begin to reset environments.

        Args:
            tensordict: given to the resets; of batch size ``[len(env_index)]``, or of one environment where
                ``env_index`` is a number.
            env_index: a number or a list; default: the entry "env_index", else all of them.
            **kwargs: for each reset.

        Raises:
            EnvError: one of them still has something to do.
        """
        self._seed_first_reset()
        indices, single = self._indices(tensordict, env_index)
        self._send("reset", indices, self._rows(tensordict, indices, single), kwargs)

    def async_step_send(self, tensordict: TensorDictBase, env_index: Any = None) -> None:
        """Begin to step environments; arguments as of :meth:`async_reset_send`."""
        indices, single = self._indices(tensordict, env_index)
        self._send("step", indices, self._rows(tensordict, indices, single), {})

    def async_step_and_maybe_reset_send(self, tensordict: TensorDictBase, env_index: Any = None) -> None:
        """Begin to step environments, and to reset them where they end; as :meth:`async_step_send`."""
        indices, single = self._indices(tensordict, env_index)
        self._send("step_and_maybe_reset", indices, self._rows(tensordict, indices, single), {})

    def _indices(self, tensordict: TensorDictBase | None, env_index: Any) -> tuple[list[int], bool]:
        if env_index is None and tensordict is not None:
            env_index = tensordict.get("env_index", None)
        if env_index is None:
            return list(range(self.num_workers)), False
        if isinstance(env_index, int):
            indices, single = [env_index], True
        else:
            single = isinstance(env_index, Tensor) and not env_index.ndim
            indices = [int(one) for one in ([env_index] if single else env_index)]
        for index in indices:
            if not 0 <= index < self.num_workers:
                raise EnvError(
                    f"env_index {index} is not one of the {self.num_workers} environments, 0 to {self.num_workers - 1}"
                )
        return indices, single

    def _rows(self, tensordict: TensorDictBase | None, indices: list[int], single: bool) -> list[Any]:
        if tensordict is None:
            return [None] * len(indices)
        own = len(self.batch_size) - 1
        if single and tensordict.batch_dims == own:
            return [tensordict]
        if not tensordict.batch_dims or tensordict.batch_size[0] != len(indices):
            raise EnvError(
                f"the TensorDict has batch size {tuple(tensordict.batch_size)} for {len(indices)} environments "
                f"(env_index={indices}); give one row for each"
            )
        return list(tensordict.unbind(0))

    def _send(self, method: str, indices: list[int], rows: list[Any], kwargs: Mapping[str, Any]) -> None:
        self._check_open()
        for index in indices:
            if index in self._busy:
                raise EnvError(
                    f"environment {index} still has a {self._busy[index]} to do; take it with "
                    f"async_{self._busy[index]}_recv first"
                )
        if len(set(indices)) != len(indices):
            raise EnvError(f"env_index names an environment twice: {indices}")
        for index, row in zip(indices, rows, strict=True):
            given = None if row is None else row.exclude("env_index")
            self._busy[index] = method
            self._crew.post(index, method, given, kwargs)

    # ---------------------------------------------------------------- receiving
    def async_reset_recv(
        self, min_get: int = 1, env_index: Any = None, *, max_get: int | None = None, timeout: float | None = None
    ) -> TensorDictBase:
        """Take finished resets.

        Args:
            min_get: wait for so many at least.
            env_index: wait for these environments instead.
            max_get: take so many at most; default: all that are ready.
            timeout: seconds that the whole call may last.

        Returns:
            TensorDict ``[k, ...]`` with "env_index".

        Raises:
            TimeoutError: too few came in time; those that did wait for the next call.
            EnvError: fewer are on their way than are asked for.
        """
        return self._stack_results("reset", min_get, env_index, max_get, timeout)[0]

    def async_step_recv(
        self, min_get: int = 1, env_index: Any = None, *, max_get: int | None = None, timeout: float | None = None
    ) -> TensorDictBase:
        """Take finished steps; as :meth:`async_reset_recv`."""
        return self._stack_results("step", min_get, env_index, max_get, timeout)[0]

    def async_step_and_maybe_reset_recv(
        self, min_get: int = 1, env_index: Any = None, *, max_get: int | None = None, timeout: float | None = None
    ) -> tuple[TensorDictBase, TensorDictBase]:
        """Take finished steps and the roots that follow; as :meth:`async_reset_recv`."""
        stepped, following = self._stack_results("step_and_maybe_reset", min_get, env_index, max_get, timeout)
        return stepped, following

    def _stack_results(
        self, method: str, min_get: int, env_index: Any, max_get: int | None, timeout: float | None
    ) -> list[TensorDictBase]:
        self._check_open()
        found = self._take(method, min_get, env_index, max_get, timeout)
        stacked = []
        for parts in zip(*(results for _, results in found), strict=True):
            rows = [row if self.device is None else row.to(self.device) for row in parts]
            data = self._stack(rows)
            index = torch.tensor([place for place, _ in found], device=self.device)
            data.set("env_index", index.reshape(-1, *(1,) * (data.batch_dims - 1)).expand(data.batch_size).clone())
            stacked.append(data)
        return stacked

    def _stack(self, rows: list[TensorDictBase]) -> TensorDictBase:
        if self.stack == "lazy":
            return lazy_stack(rows)
        if self.stack == "maybe_dense" or self.heterogeneous:
            return LazyStackedTensorDict.maybe_dense_stack(rows, 0)
        return self._stacked(rows)

    def _take(
        self, method: str, min_get: int, env_index: Any, max_get: int | None, timeout: float | None
    ) -> list[tuple[int, list[TensorDictBase]]]:
        wanted = None if env_index is None else set(self._indices(None, env_index)[0])
        due = [index for index, busy in self._busy.items() if busy == method and (wanted is None or index in wanted)]
        least = min_get if wanted is None else len(wanted)
        if max_get is not None and max_get < least:
            raise ValueError(f"max_get={max_get} is less than min_get={least}")
        if len(due) < least or least < 1:
            raise EnvError(
                f"async_{method}_recv asks for {least} results and {len(due)} are on their way"
                + ("" if wanted is None else f" among the environments {sorted(wanted)}")
                + f"; send with async_{method}_send first"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._ready += self._crew.ready(0.0)
            ready = [one for one in self._ready if one[1] == method and (wanted is None or one[0] in wanted)]
            if len(ready) >= least:
                break
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(
                    f"{len(ready)} of {least} {method} results came within {timeout:g} s; nothing is lost, the next "
                    f"async_{method}_recv takes them"
                )
            self._ready += self._crew.ready(left)
        taken = ready[:max_get]
        for one in taken:
            self._ready.remove(one)
            del self._busy[one[0]]
        return [(index, results) for index, _, results in taken]

    # ---------------------------------------------------------------- the whole batch
    def _all_of(self, method: str, indices: list[int]) -> list[TensorDictBase]:
        found = dict(self._take(method, 1, indices, None, self.timeout))
        return [found[index][0] for index in indices]

    def _reset_rows(
        self, requests: Sequence[TensorDictBase | None], kwargs: Sequence[Mapping[str, Any]] | None
    ) -> list[TensorDictBase | None]:
        asked = [index for index, request in enumerate(requests) if request is not None]
        fresh: list[TensorDictBase | None] = [None] * self.num_workers
        for index in asked:
            self._send("reset", [index], [requests[index]], {} if kwargs is None else kwargs[index])
        if asked:
            for index, row in zip(asked, self._all_of("reset", asked), strict=True):
                fresh[index] = row
        return fresh

    def _step_rows(self, rows: Sequence[TensorDictBase]) -> list[TensorDictBase]:
        everyone = list(range(self.num_workers))
        self._send("step", everyone, list(rows), {})
        return [row.get("next") for row in self._all_of("step", everyone)]

    # ---------------------------------------------------------------- access and life
    def _seed_each(self, seeds: Sequence[int]) -> None:
        self._no_one_busy("seed")
        self._crew.seed(seeds)
        self._seeded = True

    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every environment, or read an attribute of it, and list the results."""
        self._no_one_busy("call")
        return self._crew.call(name, args, kwargs)

    def _no_one_busy(self, what: str) -> None:
        if self._busy:
            raise EnvError(f"{what} while the environments {sorted(self._busy)} have something to do; receive it first")

    def close(self, *, raise_if_closed: bool = False) -> None:
        """End all workers."""
        self._crew.close()
        self._ending.detach()
        super().close(raise_if_closed=raise_if_closed)

    def _check_open(self) -> None:
        super()._check_open()
        self._crew.check_open()
