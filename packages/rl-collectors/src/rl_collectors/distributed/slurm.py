"""Workers as jobs of SLURM, or of what else submitit submits to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import submitit

from rl_collectors.distributed.launch import run_worker

__all__ = ["SubmititLauncher", "run_task"]

_TAIL = 2000


class SubmititLauncher:
    """A job for each collector, with a task for each of its workers.

    Args:
        workers_per_job: tasks of a job.
        kwargs: ``folder`` for logs (default "submitit_logs"), ``cluster`` (None: SLURM where there is one, else
            processes here; "local"; "slurm"), and what ``submitit.AutoExecutor.update_parameters`` takes:
            ``timeout_min``, ``slurm_partition``, ``cpus_per_task``, ...
        wait: seconds that a job may wait in the queue and for the learner.
    """

    def __init__(self, workers_per_job: int, kwargs: Mapping[str, Any], wait: float) -> None:
        settings = dict(kwargs)
        self.executor = submitit.AutoExecutor(
            folder=settings.pop("folder", "submitit_logs"), cluster=settings.pop("cluster", None)
        )
        settings.setdefault("name", "rl-collector")
        self.executor.update_parameters(tasks_per_node=workers_per_job, nodes=1, **settings)
        self.workers_per_job, self.wait = workers_per_job, wait
        self.jobs: list[Any] = []

    def start(self, address: str, port: int, ranks: Sequence[int]) -> None:
        for first in ranks[:: self.workers_per_job]:
            self.jobs.append(self.executor.submit(run_task, address, port, first, self.wait))

    def ended(self, rank: int) -> str | None:
        place, task = divmod(rank - 1, self.workers_per_job)
        job = self.jobs[place]
        if not job.done():
            return None
        own = job.task(task) if self.workers_per_job > 1 else job
        said = (own.stderr() or "").strip()[-_TAIL:]
        return f"job {job.job_id} ended as {job.state}" + (f"; the end of {own.paths.stderr}:\n{said}" if said else "")

    def stop(self, grace: float, left: Sequence[int]) -> list[str]:
        late = []
        for place, job in enumerate(self.jobs):
            ranks = range(1 + place * self.workers_per_job, 1 + (place + 1) * self.workers_per_job)
            if any(rank in left for rank in ranks) and not job.done():  # the others end by themselves
                job.cancel(check=False)
                late.append(job)
        self.jobs.clear()
        return [f"job {job.job_id} did not end within {grace:g} s and was cancelled" for job in late]


def run_task(address: str, port: int, first: int, timeout: float) -> None:
    """What a job's tasks run; ``first`` is the rank of the first of them."""
    run_worker(address, port, first + submitit.JobEnvironment().local_rank, timeout)
