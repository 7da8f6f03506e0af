"""Ours: a Collector in one process, or workers that are waited for or not."""

from __future__ import annotations

from collections.abc import Callable

from _sleeping import Sleeping
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector, MultiAsyncCollector, MultiSyncCollector
from rl_envs import GymWrapper
from rl_modules import MLP, Categorical, ProbabilisticActor


def policy() -> ProbabilisticActor:
    """MLP 4-64-64-2 (tanh), sampling and log-prob."""
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=nn.Tanh)
    return ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )


def build(milliseconds: float, frames: int, workers: int, kind: str = "sync") -> Callable[[], object]:
    """One repetition collects ``frames`` frames over ``workers`` environments (``kind`` "one": in one, here)."""

    def make() -> GymWrapper:
        return GymWrapper(Sleeping(milliseconds), categorical_action_encoding=True)

    if kind == "one":
        batches = iter(Collector(make, policy(), frames_per_batch=frames))
        return lambda: next(batches)
    if kind == "sync":
        batches = iter(MultiSyncCollector([make] * workers, policy(), frames_per_batch=frames, mp_start_method="fork"))
        return lambda: next(batches)
    part = frames // workers
    batches = iter(MultiAsyncCollector([make] * workers, policy(), frames_per_batch=part, mp_start_method="fork"))
    return lambda: [next(batches) for _ in range(workers)]
