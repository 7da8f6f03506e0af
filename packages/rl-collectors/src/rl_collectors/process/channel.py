"""``PoolChannel``: how new weights reach a worker of a pool, and how its word comes back."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Any

from rl_collectors.process.memory import SharedMemory
from rl_collectors.process.pool import Member, WorkerPool
from rl_core.errors import CollectorError

__all__ = ["PoolChannel"]


class PoolChannel:
    """A :class:`~rl_collectors.weights.scheme.WeightChannel` to one worker.

    Args:
        pool: the workers.
        worker: which.
    """

    def __init__(self, pool: WorkerPool, worker: int) -> None:
        self.pool, self.member = pool, pool.members[worker]

    def post(self, model_id: str, version: int, parts: Sequence[Any]) -> None:
        """Ask the worker to take weights before its next policy call."""
        member = self.member
        pid = member.process.pid
        assert pid is not None
        try:
            member.weights.send_bytes(pickle.dumps((model_id, version)))
            member.control.call()  # before the parts: a worker must be reading while much is sent
            for part in parts:
                if isinstance(part, SharedMemory):
                    part.send(member.weights, pid)
                else:
                    member.weights.send_bytes(part)
        except OSError as error:
            raise self.pool.unreachable(member, error) from None

    def wait(self, model_id: str, version: int, deadline: float) -> None:
        """Wait until the worker says that it acts with a version."""
        member, pool = self.member, self.pool
        while member.acknowledged.get(model_id, 0) < version:
            refused = member.refused.pop((model_id, version), None)
            if refused is not None:
                raise refused.error()
            left = deadline - time.monotonic()
            if left <= 0:
                raise pool.fail(_late(member, model_id, version, pool))
            try:
                ready = wait([member.weights, member.process.sentinel], min(left, 1.0))
                if member.weights in ready:
                    self._read()
                elif ready:
                    with pool.lock:
                        raise pool.fail(pool.lost(member))
            except (EOFError, OSError) as error:
                if pool.closed:
                    raise CollectorError("the workers were shut down while new weights were on their way") from error
                with pool.lock:
                    raise pool.fail(pool.lost(member)) from None

    def _read(self) -> None:
        kind, model_id, version, failure = pickle.loads(self.member.weights.recv_bytes())
        if kind == "taken":
            self.member.acknowledged[model_id] = version
        else:
            self.member.refused[model_id, version] = failure


def _late(member: Member, model_id: str, version: int, pool: WorkerPool) -> CollectorError:
    return CollectorError(
        f"worker {member.index} did not take version {version} of {model_id!r} in time. "
        f"{pool.hang(member, pool.timeout)}"
    )
