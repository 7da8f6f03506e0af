"""The same script collects in its own process, in worker processes and on Ray; one argument says where."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
import ray
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_buffers import LazyTensorStorage, RayReplayBuffer, ReplayBuffer
from rl_collectors.ray.cluster import start_ray
from rl_core import registry
from rl_core.testing import ArrayCountingEnv

PLACES: dict[str, dict[str, Any]] = {
    "serial": {},
    "multi_sync": {"num_workers": 1, "cat_results": 0},
    "ray": {"num_collectors": 1, "cat_results": 0},
}
"""Where to collect: a name, and how many workers there."""


@pytest.fixture(scope="module", autouse=True)
def embedded_ray():
    start_ray({"num_cpus": 2, "include_dashboard": False, "log_to_driver": False})
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import a test file
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    ray.shutdown()


def script(place: str) -> tuple[list[TensorDict], int, bool]:
    """Collect, train, send weights: the batches, the frames and whether all is closed."""
    policy = TensorDictModule(nn.Linear(1, 1), ["observation"], ["action"])
    nn.init.constant_(policy.module.weight, 0.5)
    nn.init.constant_(policy.module.bias, 0.0)
    collector = registry.collectors.get(place)(
        partial(ArrayCountingEnv, 3, batch_size=[2]), policy, frames_per_batch=8, total_frames=28,
        track_policy_version=True, set_truncated=False, max_frames_per_traj=None, **PLACES[place],
    )  # fmt: skip
    batches = []
    for batch in collector:
        batches.append(batch)
        nn.init.constant_(policy.module.bias, float(len(batches)))
        if len(batches) < 4:
            collector.update_policy_weights_(policy)
    return batches, collector.frames, collector.closed


def test_one_argument_says_where_a_script_collects():
    (here, frames, closed), *others = [script(place) for place in PLACES]
    assert [batch.shape for batch in here] == [(2, 4)] * 3 + [(2, 2)] and (frames, closed) == (28, True)
    assert [batch["policy_version"].unique().tolist() for batch in here] == [[0], [1], [2], [3]]
    for batches, total, ended in others:
        assert (total, ended) == (frames, True)
        for ours, theirs in zip(batches, here, strict=True):
            assert set(ours.keys(True, True)) == set(theirs.keys(True, True)) and ours.names == theirs.names
            for key in theirs.keys(True, True):
                assert ours[key].dtype == theirs[key].dtype and torch.equal(ours[key], theirs[key]), key


def test_actors_fill_a_buffer_on_ray_as_a_collector_here_fills_one_here():
    here = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    there = RayReplayBuffer(storage=lambda: LazyTensorStorage(100), batch_size=4)
    for place, buffer in (("serial", here), ("ray", there)):
        workers = {"num_collectors": 1} if place == "ray" else {}
        collector = registry.collectors.get(place)(
            partial(ArrayCountingEnv, 3), None, frames_per_batch=8, total_frames=24, replay_buffer=buffer,
            **workers,
        )  # fmt: skip
        assert list(collector) == [None] * 3 and collector.frames == 24
    assert len(here) == len(there) == 24
    found, expected = there[:], here[:]
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key in ("observation", ("next", "done"), ("collector", "traj_ids")):
        assert torch.equal(found[key], expected[key])
    there.close()
