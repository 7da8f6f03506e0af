"""What starts workers and knows how they ended: processes on this machine, or whoever starts them by hand."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

__all__ = ["Launcher", "LocalLauncher", "ManualLauncher"]

_WORKER_MODULE = "rl_collectors.distributed.launch"
_LAST_SECONDS = 5.0  # for a process to end whose work is finished


class Launcher(Protocol):
    """Starts workers."""

    def start(self, address: str, port: int, ranks: Sequence[int]) -> None:
        """Have workers of these ranks started that connect to the learner there."""
        ...

    def ended(self, rank: int) -> str | None:
        """How a worker's process ended; None: it did not, or this launcher cannot know."""
        ...

    def stop(self, grace: float, left: Sequence[int]) -> list[str]:
        """End the workers of the ranks that are left after so many seconds; returns what is to be told."""
        ...


class LocalLauncher:
    """A process on this machine for each worker, for trying things out."""

    def __init__(self) -> None:
        self.processes: dict[int, BaseProcess] = {}

    def start(self, address: str, port: int, ranks: Sequence[int]) -> None:
        forkserver = "forkserver" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if forkserver else "spawn")
        if forkserver:
            context.set_forkserver_preload([_WORKER_MODULE])  # torch is imported once, not by every worker
        for rank in ranks:
            process = context.Process(target=_work, args=(address, port, rank), name=f"distributed-worker-{rank}")
            process.start()
            self.processes[rank] = process

    def ended(self, rank: int) -> str | None:
        code = self.processes[rank].exitcode
        return None if code is None else _ending(code)

    def stop(self, grace: float, left: Sequence[int]) -> list[str]:
        for rank, process in self.processes.items():
            if rank not in left:
                process.join(_LAST_SECONDS)
        late = {rank: process for rank, process in self.processes.items() if process.is_alive()}
        for end in ("terminate", "kill"):
            for process in late.values():
                if process.is_alive():
                    getattr(process, end)()
            for process in late.values():
                process.join(1.0)
        told = [f"worker {rank - 1} did not end within {grace:g} s and was killed" for rank in late]
        told += [
            f"worker {rank - 1} ended with {_ending(process.exitcode)}; its last words are on stderr"
            for rank, process in self.processes.items()
            if rank not in late and process.exitcode
        ]
        for process in self.processes.values():
            process.close()
        self.processes.clear()
        return told


class ManualLauncher:
    """Others start the workers: ``python -m rl_collectors.distributed --address host:port --rank k`` on each node."""

    def start(self, address: str, port: int, ranks: Sequence[int]) -> None:
        """Nothing to do."""

    def ended(self, rank: int) -> str | None:
        return None

    def stop(self, grace: float, left: Sequence[int]) -> list[str]:
        return []


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (", as the system does when memory runs out" if -code == signal.SIGKILL else "")


def _work(address: str, port: int, rank: int) -> None:
    """A local worker's process."""
    from rl_collectors.distributed.launch import run_worker  # in the worker: a learner may do without

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the learner decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = 0
    try:
        run_worker(address, port, rank)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking the interpreter apart would take seconds
