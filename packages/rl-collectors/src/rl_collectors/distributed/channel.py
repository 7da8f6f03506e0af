"""``NodeChannel``: how new weights reach a worker on another machine, and how its word comes back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from rl_collectors.distributed.pool import NodePool
from rl_core.errors import CollectorError

__all__ = ["NodeChannel"]


class NodeChannel:
    """A :class:`~rl_collectors.weights.scheme.WeightChannel` to one worker.

    Args:
        pool: the workers.
        worker: which.
    """

    def __init__(self, pool: NodePool, worker: int) -> None:
        self.pool, self.member = pool, pool.members[worker]

    def post(self, model_id: str, version: int, parts: Sequence[Any]) -> None:
        """Ask the worker to take weights before its next policy call."""
        blocks = []
        for part in parts:
            if not isinstance(part, bytes | bytearray):
                raise CollectorError(
                    f"the weights of {model_id!r} come as {type(part).__name__}, which does not travel between "
                    f"machines; pass weight_sync_schemes={{{model_id!r}: DistributedWeightSyncScheme()}}"
                )
            blocks.append(part if isinstance(part, bytearray) else bytearray(part))
        tensors = [torch.frombuffer(block, dtype=torch.uint8) for block in blocks if block]
        self.pool.say(self.member, "weights", model_id, version, [len(block) for block in blocks], parts=tensors)

    def wait(self, model_id: str, version: int, deadline: float) -> None:
        """Wait until the worker says that it acts with a version."""
        member, pool = self.member, self.pool
        while True:
            with pool.changed:
                if member.acknowledged.get(model_id, 0) >= version:
                    return
                refused = member.refused.pop((model_id, version), None)
                if refused is not None:
                    raise member.failed(refused)
                if pool.closed:
                    raise CollectorError("the workers were shut down while new weights were on their way")
                if not (member.failure or member.lost):
                    pool.changed.wait(0.25)
            if time.monotonic() > deadline:
                raise pool.fail(
                    CollectorError(
                        f"{member.name} did not take version {version} of {model_id!r} in time. "
                        f"{pool.hang(member, pool.timeout)}"
                    )
                )
            pool.look_after([member], after_all=False)
