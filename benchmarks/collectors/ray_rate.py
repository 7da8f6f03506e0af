"""Frames per second of Ray actors beside worker processes: two environments of 1 ms per step, 2000 frames in a batch.

Run ``python benchmarks/collectors/ray_rate.py``; the two are measured in turns. Ray gives its workers a lower priority
than the system's default (niceness 15), which matters on a busy machine; here they have the same.
"""

from __future__ import annotations

import os
import statistics
import time

import ray
from _sleeping import Sleeping
from ours import policy

from rl_collectors import MultiSyncCollector, RayCollector
from rl_core.collectors.contract import BaseCollector
from rl_envs import GymWrapper

FRAMES, WORKERS, TURNS = 2000, 2, 6


def make() -> GymWrapper:
    """An environment of 1 ms per step."""
    return GymWrapper(Sleeping(1.0), categorical_action_encoding=True)


def rate(collector: BaseCollector) -> float:
    """Frames per second of one batch."""
    start = time.perf_counter()
    batch = collector.next()  # type: ignore[attr-defined]
    return float(batch.numel() / (time.perf_counter() - start))


def main() -> None:
    """Print the median rate of each, and their ratio."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(__import__("_sleeping"))  # actors do not see this folder
    acting = policy()
    processes = MultiSyncCollector([make] * WORKERS, acting, frames_per_batch=FRAMES)
    actors = RayCollector([make] * WORKERS, acting, frames_per_batch=FRAMES)
    with processes, actors:
        found: dict[str, list[float]] = {"processes": [], "ray": []}
        for turn in range(TURNS):
            for name, collector in (("processes", processes), ("ray", actors)):
                frames = rate(collector)
                if turn:  # the first warms up
                    found[name].append(frames)
    ray.shutdown()
    medians = {name: statistics.median(values) for name, values in found.items()}
    print({name: round(value) for name, value in medians.items()}, "frames/s")
    print(f"ray / processes = {medians['ray'] / medians['processes']:.3f}")


if __name__ == "__main__":
    main()
