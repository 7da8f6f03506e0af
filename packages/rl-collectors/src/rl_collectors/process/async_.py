"""``AsyncCollector``: one worker process that collects while the caller trains."""

from __future__ import annotations

from typing import Any

from rl_collectors.process.multi_async import MultiAsyncCollector

__all__ = ["AsyncCollector"]


class AsyncCollector(MultiAsyncCollector):
    """A :class:`MultiAsyncCollector` with a single worker: batches ``[*B, T]`` come in a fixed order.

    Args:
        create_env_fn: makes the environment: a function, an ``EnvRef``, or a name such as ``"gym:CartPole-v1"``.
        policy: what acts; the worker has a copy. None: random actions.
        **kwargs: see :class:`MultiAsyncCollector`.
    """

    def __init__(self, create_env_fn: Any, policy: Any = None, **kwargs: Any) -> None:
        super().__init__(create_env_fn, policy, num_workers=1, **kwargs)
