"""Seconds of each optimiser step, and what a run prints for compare.py."""

from __future__ import annotations

import json
import platform
import time
from importlib import metadata


class Clock:
    """Notes how long steps take, in seconds and in seconds of the processor, which a busy machine does not stretch."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.processor: list[float] = []
        self.rewards: list[float] = []
        self.lengths: list[float] = []
        self.start()

    def start(self) -> None:
        """A step begins here; without this call, where the one before ended."""
        self.begin, self.begin_processor = time.perf_counter(), time.process_time()

    def step(self) -> None:
        """A step ends here."""
        self.seconds.append(time.perf_counter() - self.begin)
        self.processor.append(time.process_time() - self.begin_processor)
        self.start()

    def show(self, warmup: int, libraries: tuple[str, ...]) -> None:
        """One line of JSON: seconds of each step after the warm-up, mean reward and length of its answers."""
        rewards, lengths = self.rewards[warmup:], self.lengths[warmup:]
        answer = {
            "seconds": self.seconds[warmup:],
            "processor": self.processor[warmup:],
            "first_reward": sum(self.rewards[:5]) / 5,
            "last_reward": sum(rewards[-5:]) / 5,
            "length": sum(lengths) / len(lengths),
            "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in libraries}},
        }
        print(json.dumps(answer), flush=True)
