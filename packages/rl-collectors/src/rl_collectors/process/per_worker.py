"""Arguments that are given once for all workers, or for each of them, or name some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError

__all__ = ["chosen_workers", "per_worker", "worker_sources"]


def per_worker(given: Any, workers: int) -> list[Any]:
    """One value for each worker, from one for all of them or from a list.

    Raises:
        CollectorError: the list has another length.
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != workers:
            raise CollectorError(f"{len(given)} values {list(given)} are given for {workers} workers")
        return list(given)
    return [given] * workers


def worker_sources(create_env_fn: Any, num_workers: int | None) -> list[Any]:
    """What each worker makes its environment from.

    Args:
        create_env_fn: a list, one for each worker, or one function (``EnvRef``, name) for ``num_workers`` of them.
        num_workers: how many; may be left out with a list.

    Raises:
        CollectorError: their number does not follow; an environment is given in the place of what makes one.
    """
    if not isinstance(create_env_fn, Sequence) or isinstance(create_env_fn, str):
        if num_workers is None:
            raise CollectorError("create_env_fn is one function; say for how many workers: num_workers=...")
        create_env_fn = [create_env_fn] * num_workers
    if not create_env_fn or num_workers not in (None, len(create_env_fn)):
        raise CollectorError(
            f"create_env_fn has {len(create_env_fn)} entries, num_workers is {num_workers}; each worker needs one, and "
            "there is at least one worker"
        )
    for each in create_env_fn:
        if isinstance(each, EnvBase):
            raise CollectorError(
                f"create_env_fn holds an environment ({type(each).__name__}); workers make their own: pass a function, "
                "an EnvRef or a name such as 'gym:CartPole-v1'"
            )
    return list(create_env_fn)


def chosen_workers(index: int | Sequence[int] | None, count: int) -> list[int]:
    """The workers that an argument names: one, several, or with None all.

    Raises:
        CollectorError: there is no such worker.
    """
    workers = list(range(count)) if index is None else [index] if isinstance(index, int) else list(index)
    for worker in workers:
        if not 0 <= worker < count:
            raise CollectorError(f"there is no worker {worker}; the workers are 0 to {count - 1}")
    return workers
