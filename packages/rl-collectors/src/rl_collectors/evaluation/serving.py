"""What the process of an evaluator runs: it takes orders from a pipe, and tells what goes wrong."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from rl_collectors.background import StoppedError
from rl_collectors.evaluation.settings import EvaluationSettings, Job
from rl_collectors.evaluation.worker import EvaluationWorker
from rl_collectors.process.failure import Failure
from rl_core.training.seeding import seed_everything

__all__ = ["BUILDING", "serve"]

BUILDING = "the making of its environment and policy"


def serve(orders: Connection, foreign: Sequence[Connection], given: EvaluationSettings | None) -> None:
    """Follow orders until the owner says "close", or is gone.

    Args:
        orders: pipe of orders and replies.
        foreign: the owner's ends of pipes, which a forked process has too and must not keep open.
        given: the settings, in a forked process; None: they come through the pipe.
    """
    for pipe in foreign:
        pipe.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the owner decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(EOFError, OSError, StoppedError):  # the owner is gone, or wants no more
        _follow(orders, given)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as forked processes do; taking the interpreter apart would take seconds


def _follow(orders: Connection, settings: EvaluationSettings | None) -> None:
    environ: Mapping[str, str] = pickle.loads(orders.recv_bytes())
    os.environ.update(environ)
    worker: EvaluationWorker | None = None
    try:
        if settings is None:
            settings = pickle.loads(orders.recv_bytes())
        assert settings is not None
        torch.set_num_threads(settings.num_threads)
        seed_everything(settings.draws)
        worker = EvaluationWorker(settings)
    except Exception as error:  # it travels to the owner, who raises it
        _say(orders, "failed", Failure.of(error, 0, BUILDING))
        return
    try:
        _say(orders, "ready", None)
        while (order := pickle.loads(orders.recv_bytes())) != "close":
            job: Job = order
            try:
                result = worker.run(job, orders.poll)  # nothing comes during an evaluation but the wish to end it
            except StoppedError:
                return
            except Exception as error:  # it travels to the owner, who raises it
                _say(orders, "failed", Failure.of(error, 0, job.name))
            else:
                _say(orders, "done", result)
    finally:
        worker.close()


def _say(orders: Connection, *reply: Any) -> None:
    orders.send_bytes(pickle.dumps(reply))
