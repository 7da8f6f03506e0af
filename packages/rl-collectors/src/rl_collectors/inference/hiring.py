"""Who works for an ``AsyncBatchedCollector``: how its crew and what its server needs are made, and how both end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from rl_collectors.inference.client import PolicyClient
from rl_collectors.inference.crews import EnvCrew, ProcessCrew
from rl_collectors.inference.server import InferenceServer
from rl_collectors.inference.thread_crew import ThreadCrew
from rl_collectors.making import made_env
from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError
from rl_core.training.seeding import spawn_seeds

__all__ = ["end", "env_for_keys", "hired_crew", "known_backend"]

_BACKENDS = ("thread", "process")


def known_backend(backend: str, name: str) -> str:
    """The backend, if there is one of this name."""
    if backend not in _BACKENDS:
        raise CollectorError(f"{name} is {backend!r}; it is one of {', '.join(map(repr, _BACKENDS))}")
    return backend


def env_for_keys(policy: Any, maker: Any, kwargs: Mapping[str, Any] | None) -> Callable[[], EnvBase] | None:
    """What makes the environment that tells a policy of bare tensors its keys; None where the policy says them."""
    if getattr(policy, "in_keys", None) is not None and getattr(policy, "out_keys", None) is not None:
        return None
    return partial(_made, maker, kwargs)


def _made(maker: Any, kwargs: Mapping[str, Any] | None) -> EnvBase:
    return made_env(maker, kwargs or {})[0]


def hired_crew(
    backend: str,
    makers: Sequence[Any],
    client: PolicyClient | None,
    *,
    frames_per_batch: int,
    create_env_kwargs: Sequence[Any],
    env_devices: Sequence[Any],
    mp_start_method: str | None,
    timeout: float,
    **options: Any,
) -> EnvCrew:
    """Workers that have made their environments.

    Args:
        backend: "thread" or "process".
        makers: of environments, one for each worker.
        client: the served policy, or None for random actions.
        frames_per_batch: over all workers.
        create_env_kwargs: arguments of each maker.
        env_devices: of each environment.
        mp_start_method: of processes.
        timeout: seconds without progress after which a worker counts as hanging.
        **options: further arguments of each worker's :class:`~rl_collectors.Collector`.
    """
    if backend == "process":
        return ProcessCrew(
            makers, client, frames_per_batch=frames_per_batch, rounding="up", env_device=env_devices,
            create_env_kwargs=create_env_kwargs, mp_start_method=mp_start_method, timeout=timeout, **options,
        )  # fmt: skip
    each = [
        {**options, "frames_per_batch": -(-frames_per_batch // len(makers)), "create_env_kwargs": own, "env_device": at}
        for own, at in zip(create_env_kwargs, env_devices, strict=True)
    ]
    return ThreadCrew(makers, client, spawn_seeds(int(torch.randint(2**31, ())), len(makers)), each, timeout)


def end(crew: EnvCrew | None, server: InferenceServer | None, timeout: float) -> None:
    """End both: workers first hear that they shall stop; the server's end wakes those that wait for it."""
    if isinstance(crew, ThreadCrew):
        crew.ask_to_stop()
    if server is not None:
        server.shutdown(timeout)
    if crew is not None:
        crew.stop(timeout)
