"""TorchRL: MultiSyncCollector over GymWrapper, or MultiAsyncCollector."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

from _sleeping import Sleeping
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
from torchrl.envs import GymWrapper
from torchrl.modules import MLP, ProbabilisticActor


def _make(milliseconds: float) -> GymWrapper:
    return GymWrapper(Sleeping(milliseconds), categorical_action_encoding=True)


def build(milliseconds: float, frames: int, workers: int, kind: str = "sync") -> Callable[[], object]:
    """One repetition collects ``frames`` frames over ``workers`` environments."""
    warnings.simplefilter("ignore")
    net = MLP(in_features=4, out_features=2, num_cells=[64, 64], activation_class=nn.Tanh)
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=_make(0).action_spec,
        distribution_class=Categorical,
        return_log_prob=True,
    )
    makers = [partial(_make, milliseconds)] * workers
    if kind == "sync":
        batches = iter(MultiSyncCollector(makers, policy, frames_per_batch=frames, total_frames=-1))
        return lambda: next(batches)
    part = frames // workers
    batches = iter(MultiAsyncCollector(makers, policy, frames_per_batch=part, total_frames=-1))
    return lambda: [next(batches) for _ in range(workers)]
