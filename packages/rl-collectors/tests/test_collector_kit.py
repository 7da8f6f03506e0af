"""The core's conformance kit on our collector, over TensorDict and numpy environments, single and batched."""

from __future__ import annotations

from functools import partial

from rl_collectors import Collector
from rl_core import EnvBase
from rl_core.testing import ArrayCountingEnv, CollectorKit


class TestCollector(CollectorKit):
    distribution = "rl-collectors"

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return Collector(create_env_fn, policy, frames_per_batch=frames_per_batch, total_frames=total_frames)


class TestCollectorOfRows(TestCollector):
    """The environments that the kit makes from ``CountingEnv`` itself come as their twins on numpy rows."""

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        if isinstance(create_env_fn, partial) and create_env_fn.func.__name__ == "CountingEnv":
            create_env_fn = partial(ArrayCountingEnv, **create_env_fn.keywords)
        return super().make(create_env_fn, policy, frames_per_batch=frames_per_batch, total_frames=total_frames)


class TestCollectorOfABatch(TestCollector):
    """Two environments that step together."""

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        if isinstance(create_env_fn, partial) and not isinstance(create_env_fn, EnvBase) and not create_env_fn.args:
            create_env_fn = partial(create_env_fn, batch_size=[2])
        return super().make(create_env_fn, policy, frames_per_batch=frames_per_batch, total_frames=total_frames)
