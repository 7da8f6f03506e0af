"""``Hire``: on which terms actors work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_collectors.process.per_worker import per_worker
from rl_collectors.ray.handover import HandoverSettings
from rl_core.errors import CollectorError

__all__ = ["Hire"]

_OURS = ("concurrency_groups", "max_restarts", "max_task_retries")


@dataclass(frozen=True)
class Hire:
    """What holds for the actors of one collector.

    Attributes:
        remote_configs: their resources, once or for each.
        workers_per_actor: worker processes in each; 1: none, the actor itself steps.
        restart: start dead ones anew: True, False, or how often in all.
        handover: how they hand their batches to a buffer; None: batches come here.
        started_ray: whether Ray is shut down with them.
    """

    remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    workers_per_actor: int = 1
    restart: bool | int = False
    handover: HandoverSettings | None = None
    started_ray: bool = False

    def options(self, workers: int) -> list[Mapping[str, Any]]:
        """What each actor is started with.

        Raises:
            CollectorError: their number is wrong, or one is for the collector to say.
        """
        options = per_worker({} if self.remote_configs is None else self.remote_configs, workers)
        for name in _OURS:
            if any(name in own for own in options):
                raise CollectorError(
                    f"remote_configs has {name!r}, which the collector sets itself; its own `restart` starts actors "
                    "anew that have died"
                )
        return options

    def may_restart(self, so_far: int) -> bool:
        """Whether one more actor is started anew."""
        return self.restart if isinstance(self.restart, bool) else so_far < self.restart
