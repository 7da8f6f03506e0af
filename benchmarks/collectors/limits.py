"""What a collector costs beside the steps: scaling over workers, weight updates, transforms, memory.

    python benchmarks/collectors/limits.py [throughput] [scaling] [weights] [transforms] [memory]

No suite, since these are limits of our own; it prints one table for each.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from _sleeping import Sleeping
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector, MultiSyncCollector
from rl_core.testing import ArrayCountingEnv
from rl_envs import GymWrapper
from rl_modules import MLP


def throughput(milliseconds: float = 1.0, frames: int = 256, rounds: int = 12) -> None:
    """Frames per second over a stretch of batches, two workers; asynchronous ones would cheat in a suite of turns."""
    from ours import build

    print(f"| collector, a step sleeps {milliseconds} ms | frames/s | times one process |\n|---|---:|---:|")
    alone = 0.0
    for kind in ("one", "sync", "async"):
        work = build(milliseconds, frames, 2, kind)
        for _ in range(3):  # what asynchronous workers had ready
            work()
        rate = rounds * frames / _seconds(lambda work=work: [work() for _ in range(rounds)])
        alone = alone or rate
        print(f"| {kind} | {rate:.0f} | {rate / alone:.2f} |")


def scaling(milliseconds: float = 5.0, steps: int = 64, rounds: int = 5) -> None:
    """Frames per second of 1 to 8 workers whose steps sleep; efficiency is to as many times one worker."""
    from ours import policy

    print(f"| workers | frames/s | efficiency |  (a step sleeps {milliseconds} ms)\n|---:|---:|---:|")
    alone = 0.0
    for workers in (1, 2, 4, 8):
        makers = [lambda: GymWrapper(Sleeping(milliseconds), categorical_action_encoding=True)] * workers
        with MultiSyncCollector(makers, policy(), frames_per_batch=workers * steps, mp_start_method="fork") as subject:
            subject.rollout()
            rate = workers * steps / median(_seconds(subject.rollout) for _ in range(rounds))
        alone = alone or rate
        print(f"| {workers} | {rate:.0f} | {rate / alone / workers:.0%} |")


def weights(rounds: int = 50) -> None:
    """Milliseconds of an update of a policy with a million parameters in two workers."""
    net = MLP(in_features=1, out_features=1, num_cells=[1000, 1000], activation_class=nn.Tanh)
    policy = TensorDictModule(net, in_keys=["observation"], out_keys=["action"])
    with MultiSyncCollector([ArrayCountingEnv] * 2, policy, frames_per_batch=4, mp_start_method="fork") as subject:
        subject.rollout()
        taken = [1e3 * _seconds(subject.update_policy_weights_) for _ in range(rounds)]
    count = sum(parameter.numel() for parameter in policy.parameters())
    print(f"update of {count} parameters in 2 workers: median {median(taken):.2f} ms, fastest {min(taken):.2f} ms")


def transforms(steps: int = 512, rounds: int = 15) -> None:
    """A collector with six transforms over a plain gymnasium and torch loop that has none."""
    import gymnasium

    from rl_core import Compose, TransformedEnv
    from rl_envs import DoubleToFloat, GymEnv, InitTracker, ObservationNorm, RewardScaling, RewardSum, StepCounter

    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    class Greedy(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return net(observation).argmax(-1)

    parts = [
        DoubleToFloat(), ObservationNorm(loc=0.0, scale=1.0, in_keys=["observation"]), RewardScaling(0.0, 1.0),
        StepCounter(), RewardSum(), InitTracker(),
    ]  # fmt: skip
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), Compose(*parts))
    policy = TensorDictModule(Greedy(), ["observation"], ["action"])
    collector = Collector(env, policy, frames_per_batch=steps)
    plain = gymnasium.make("CartPole-v1", disable_env_checker=True)

    @torch.no_grad()
    def loop() -> Any:
        data: dict[str, Any] = {name: torch.empty(steps, 4) for name in ("observation", "next_observation")}
        data |= {name: torch.empty(steps) for name in ("action", "reward", "terminated", "truncated")}
        current, _ = plain.reset()
        for t in range(steps):
            observation = torch.from_numpy(np.asarray(current))
            action = net(observation).argmax(-1)
            data["observation"][t], data["action"][t] = observation, action
            current, reward, terminated, truncated, _ = plain.step(action.item())
            data["next_observation"][t] = torch.from_numpy(np.asarray(current))
            data["reward"][t], data["terminated"][t], data["truncated"][t] = float(reward), terminated, truncated
            if terminated or truncated:
                current, _ = plain.reset()
        return data

    pairs = [(_seconds(loop), _seconds(collector.rollout)) for _ in range(rounds)]
    ratio = median(ours / theirs for theirs, ours in pairs)
    print(f"6 transforms, {steps} steps of CartPole-v1: {ratio:.2f} times the plain loop (paired median)")


def memory(side: int = 84, frames: int = 2000) -> None:
    """Peak memory of collecting one batch of pixels, in batches; measured in a process of its own."""
    if os.environ.get("RL_MEASURES_MEMORY") is None:
        environment = {**os.environ, "RL_MEASURES_MEMORY": "1"}
        subprocess.run([sys.executable, __file__, "memory"], check=True, env=environment)
        return
    from rl_core.envs.array_env import ArrayEnv
    from rl_core.envs.columns import Columns, RowProgram
    from rl_core.specs import Bounded, Categorical, Composite, Unbounded

    class Pixels(ArrayEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_spec = Composite(observation=Bounded(0, 255, (side, side), dtype=torch.uint8))
            self.action_spec = Categorical(2)
            self.reward_spec = Unbounded((1,))

        def row_program(self, columns: Columns) -> RowProgram:
            pixels, ended = columns["observation"], columns["terminated"]

            def step(t: int) -> None:
                pixels[t + 1] = t % 256
                ended[t + 1] = False

            return RowProgram(step, lambda t, mask: pixels[t].fill(0))

    collector = Collector(Pixels(), frames_per_batch=frames)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        batch = collector.rollout()
        size = sum(value.numel() * value.element_size() for value in batch.values(True, True))
        del batch
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"peak memory of collecting, columns and batch: {peak / size:.2f} batches of {size / 2**20:.0f} MiB")


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()}")
    for name in sys.argv[1:] or ("throughput", "scaling", "weights", "transforms", "memory"):
        {
            "throughput": throughput, "scaling": scaling, "weights": weights, "transforms": transforms, "memory": memory
        }[name]()  # fmt: skip
