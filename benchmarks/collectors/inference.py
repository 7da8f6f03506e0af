"""One served policy or a policy for each environment: frames per second of environments whose steps sleep.

    python benchmarks/collectors/inference.py [environments] [milliseconds]

Contenders take turns in one process. In "own" each thread calls the policy itself; in "served" all ask one
``InferenceServer``. "serial" is one ``Collector``, as often as there are environments.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from _sleeping import Sleeping
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import AsyncBatchedCollector, Collector
from rl_collectors.inference.thread_crew import ThreadCrew
from rl_envs import GymWrapper

STEPS = 32


def make(milliseconds: float) -> GymWrapper:
    """Four observations, two actions."""
    return GymWrapper(Sleeping(milliseconds), categorical_action_encoding=True)


class Greedy(nn.Module):
    """MLP 4-256-256-2, the larger output is the action."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Index of the action."""
        return self.net(observation).argmax(-1)


def policy() -> TensorDictModule:
    """The network as a policy."""
    return TensorDictModule(Greedy(), in_keys=["observation"], out_keys=["action"])


def contenders(count: int, milliseconds: float) -> dict[str, tuple[Callable[[], Any], Any]]:
    """Name -> what collects ``count * STEPS`` frames, and what has statistics."""
    maker = partial(make, milliseconds)
    frames = count * STEPS
    options = [{"frames_per_batch": STEPS}] * count
    own = ThreadCrew([maker] * count, policy(), list(range(count)), options, 60.0)  # type: ignore[arg-type]
    alone = Collector(maker, policy(), frames_per_batch=STEPS)
    found: dict[str, tuple[Callable[[], Any], Any]] = {
        "serial": (lambda: [alone.rollout() for _ in range(count)], alone),
        "own, threads": (lambda: own.gather(STEPS, False, ()), own),
    }
    for name, rest in (
        ("served, threads", {}),
        ("served, threads, min_batch_size N/2", {"min_batch_size": count // 2, "server_timeout": 0.002}),
        ("served by a process, threads", {"policy_backend": "process"}),
    ):
        subject = AsyncBatchedCollector([maker] * count, policy(), frames_per_batch=frames, **rest)
        found[name] = (subject.rollout, subject)
    return found


def main(count: int = 16, milliseconds: float = 1.0, rounds: int = 7) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    subjects = contenders(count, milliseconds)
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds + 1):
        for name, (work, _) in subjects.items():
            begun = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - begun)
    print(
        f"| {count} environments, a step sleeps {milliseconds} ms | frames/s | rows in a call | waiting p50, p99 ms |"
    )
    print("|---|---:|---:|---:|")
    for name, (_, subject) in subjects.items():
        rate = count * STEPS / median(seconds[name])
        stats = subject.stats() if isinstance(subject, AsyncBatchedCollector) else {}
        rows = f"{stats['server/batch_size_mean']:.1f}" if stats else "1"
        waits = f"{stats['server/waiting_ms_p50']:.2f}, {stats['server/waiting_ms_p99']:.2f}" if stats else ""
        print(f"| {name} | {rate:.0f} | {rows} | {waits} |")
    for _, subject in subjects.values():
        if isinstance(subject, ThreadCrew):
            subject.stop(5.0)
        else:
            subject.shutdown()


if __name__ == "__main__":
    main(*(kind(given) for kind, given in zip((int, float), sys.argv[1:], strict=False)))
