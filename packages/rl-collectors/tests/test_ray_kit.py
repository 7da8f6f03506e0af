"""The core's conformance kit on a collector whose workers are Ray actors."""

from __future__ import annotations

import pytest
import ray

from rl_collectors import RayCollector
from rl_collectors.ray.cluster import start_ray
from rl_core.testing import CollectorKit


@pytest.fixture(scope="module")
def embedded_ray():
    start_ray({"num_cpus": 2, "include_dashboard": False, "log_to_driver": False})
    yield
    ray.shutdown()


@pytest.mark.usefixtures("embedded_ray")
class TestRayCollector(CollectorKit):
    distribution = "rl-collectors"
    takes_environments = False

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return RayCollector(
            [create_env_fn] * 2, policy, frames_per_batch=frames_per_batch, total_frames=total_frames,
            remote_configs={"num_cpus": 0.5},
        )  # fmt: skip
