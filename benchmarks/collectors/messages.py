"""What the learner's process pays for each batch, for each worker and for each byte, in processor time.

    python benchmarks/collectors/messages.py [processes] [distributed] [ray]

Environments cost nothing and batches are small, so what is left are messages; ``docs/saturation.md`` reckons with them.
It is time of the processor, since time on the wall holds the workers' turns on a busy machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import DistributedCollector, MultiSyncCollector, RayCollector
from rl_core.envs.array_env import ArrayEnv
from rl_core.envs.columns import Columns, RowProgram
from rl_core.specs import Bounded, Categorical, Composite, Unbounded
from rl_modules import MLP

STEPS, FEW, MANY = 8, 1, 4
SIDE, FRAMES = 84, 128


class Blank(ArrayEnv):
    """Observations of a given shape that nobody writes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Bounded(0, 255, shape, dtype=torch.uint8))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def row_program(self, columns: Columns) -> RowProgram:
        """A step ends nothing."""
        ended = columns["terminated"]

        def step(t: int) -> None:
            ended[t + 1] = False

        return RowProgram(step, lambda t, mask: columns["observation"][t].fill(0))


def seconds(work: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Processor time here, the fastest tenth, as neighbours and waits that spin add to it; on the wall the median."""
    found = []
    for turn in range(rounds + 5):
        wall, own = time.perf_counter(), time.process_time()
        work()
        if turn >= 5:
            found.append((time.process_time() - own, time.perf_counter() - wall))
    return sorted(own for own, _ in found)[len(found) // 10], median(wall for _, wall in found)


def policy() -> TensorDictModule:
    """A million parameters."""
    net = MLP(in_features=1, out_features=2, num_cells=[1000, 1000], activation_class=nn.Tanh)
    return TensorDictModule(Choice(net), in_keys=["observation"], out_keys=["action"])


class Choice(nn.Module):
    """The larger output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Index of the action."""
        return self.net(observation.float()).argmax(-1)


def main(kinds: list[str]) -> None:
    """Print a row for each way to workers."""
    ways: dict[str, Callable[..., Any]] = {
        "processes": MultiSyncCollector,
        "distributed": DistributedCollector,
        "ray": partial(RayCollector, ray_init_config={"num_cpus": MANY, "include_dashboard": False}),
    }
    small, large = partial(Blank, (1,)), partial(Blank, (4, SIDE, SIDE))
    print(f"load {os.getloadavg()[0]:.1f}; a frame has {4 * SIDE * SIDE} bytes, the update a million parameters")
    print(f"| way | ms a batch of {FEW} worker, {MANY} | us a frame | update of 2 workers: ms here, on the wall |")
    print("|---|---:|---:|---:|")
    for kind in kinds:
        make, cost = ways[kind], {}
        for count in (FEW, MANY):
            with make([small] * count, None, frames_per_batch=count * STEPS) as subject:
                cost[count] = seconds(subject.rollout, 40)[0]
        with make([large], None, frames_per_batch=FRAMES) as subject:
            copying = seconds(subject.rollout, 10)[0]
        with make([small] * 2, policy(), frames_per_batch=2) as subject:
            own, wall = seconds(subject.update_policy_weights_, 20)
        frame = 1e6 * (copying - cost[FEW]) / FRAMES
        print(f"| {kind} | {1e3 * cost[FEW]:.2f}, {1e3 * cost[MANY]:.2f} | {frame:.1f} |", end="")
        print(f" {1e3 * own:.1f}, {1e3 * wall:.1f} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or ["processes", "distributed", "ray"])
