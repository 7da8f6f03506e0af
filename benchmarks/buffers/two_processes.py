"""A writer process and a learner on one shared buffer: what each does in a second, alone and together.

    python benchmarks/buffers/two_processes.py [--seconds 3] [--rounds 5] [--pause 1]

The writer extends by 200 rows, the learner samples 256, and each rests for a millisecond in between, in the place of
its environments and its network; with ``--pause 0`` both do nothing but wait for the buffer's lock. On a machine with
fewer free cores than two, the loss is that of the cores; the processor time of an operation tells that apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent))
from _tensordicts import tensordict

from rl_buffers import LazyTensorStorage, TensorDictReplayBuffer


def rate(work: Callable[[], Any], seconds: float, pause: float) -> tuple[float, float]:
    """Operations per second, and milliseconds of processor time per operation."""
    count, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        work()
        count += 1
        if pause:
            time.sleep(1e-3 * pause)
    return count / (time.perf_counter() - start), 1e3 * (time.process_time() - cpu) / count


def write(buffer: TensorDictReplayBuffer, connection: Connection, seconds: float, pause: float) -> None:
    """Answer each message with the rate of a run."""
    torch.set_num_threads(1)
    data = tensordict("state", 200)
    while connection.recv():
        connection.send(rate(lambda: buffer.extend(data), seconds, pause))


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0, help="milliseconds between two operations")
    options = parser.parse_args()
    timing = (options.seconds, options.pause)
    torch.set_num_threads(1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10**6), batch_size=256, shared=True)
    for _ in range(10):
        buffer.extend(tensordict("state", 10**5))
    here, there = multiprocessing.get_context("fork").Pipe()
    writer = multiprocessing.get_context("fork").Process(target=write, args=(buffer, there, *timing))
    writer.start()
    runs: dict[str, list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        runs.setdefault("learner alone", []).append(rate(buffer.sample, *timing))
        here.send(True)
        runs.setdefault("writer alone", []).append(here.recv())
        here.send(True)
        runs.setdefault("learner, both", []).append(rate(buffer.sample, *timing))
        runs.setdefault("writer, both", []).append(here.recv())
    here.send(False)
    writer.join()
    print("| who | operations / s | processor ms each |\n|---|---:|---:|")
    middle = {name: (median(r for r, _ in values), median(c for _, c in values)) for name, values in runs.items()}
    for name, (speed, cost) in middle.items():
        print(f"| {name} | {speed:.0f} | {cost:.3f} |")
    for who in ("learner", "writer"):
        pairs = zip(runs[f"{who}, both"], runs[f"{who} alone"], strict=True)
        print(f"{who}: {median(a / b for (a, _), (b, _) in pairs):.0%} of its rate alone")


if __name__ == "__main__":
    main()
