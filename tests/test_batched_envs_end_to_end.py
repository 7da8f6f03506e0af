"""Batches of environments under collectors, policies of rl-modules and buffers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector
from rl_core import Compose, EnvRef, TransformedEnv
from rl_envs import GymEnv, InitTracker, ParallelEnv, RewardSum, SerialEnv, StepCounter
from rl_modules import Categorical, GRUModule, ProbabilisticActor, SafeModule, SafeSequential

MAKERS = {"serial": SerialEnv, "parallel": ParallelEnv}


def cartpole() -> TransformedEnv:
    return TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter(max_steps=20))


def collect(make: type, policy: nn.Module) -> torch.Tensor:
    env = make(4, cartpole, mp_start_method="fork")
    env = TransformedEnv(env, Compose(RewardSum(), InitTracker()))
    env.set_seed(1)
    torch.manual_seed(0)
    collector = Collector(env, policy, frames_per_batch=64, total_frames=256, set_truncated=True)
    data = torch.cat(list(collector), -1)
    env.close()
    return data


def test_a_collector_gets_the_same_batches_from_one_process_and_from_several() -> None:
    torch.manual_seed(3)
    policy = ProbabilisticActor(
        TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    serial, parallel = (collect(make, policy) for make in MAKERS.values())
    assert serial.batch_size == torch.Size([4, 64])
    assert (serial == parallel).all()
    assert (serial["next", "step_count"] <= 20).all() and serial["next", "done"].any()
    ended = serial["next", "done"]
    torch.testing.assert_close(serial["next", "episode_reward"][ended], serial["next", "step_count"][ended].float())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_recurrent_policy_keeps_its_state_by_environment(make: type) -> None:
    """Each episode's features are those of one pass over its observations, from a zero state."""
    torch.manual_seed(0)
    gru = GRUModule(4, 6, in_key="observation", out_key="features")
    policy = SafeSequential(gru, SafeModule(nn.Linear(6, 2), ["features"], ["action"]), ArgMax())
    env = make(3, EnvRef("gym:CartPole-v1", {"max_episode_steps": 15}), mp_start_method="fork")
    env.set_seed(0)
    data = torch.cat(list(Collector(env, policy, frames_per_batch=30, total_frames=120)), -1)
    env.close()
    for row in data.unbind(0):
        starts = [*row["is_init"].flatten().nonzero().flatten().tolist(), 40]
        assert len(starts) > 2
        for begin, end in pairwise(starts):
            episode = row[begin:end]
            expected = gru.network(episode["observation"].unsqueeze(0))[0].squeeze(0)
            torch.testing.assert_close(episode["features"], expected)


class ArgMax(TensorDictModule):
    """The best choice as a one-hot action."""

    def __init__(self) -> None:
        super().__init__(OneHotMax(), in_keys=["action"], out_keys=["action"])


class OneHotMax(nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(scores.argmax(-1), 2)


def test_a_collector_closes_the_batch_that_it_made() -> None:
    collector = Collector(
        lambda: ParallelEnv(2, "gym:CartPole-v1", mp_start_method="fork"), None, frames_per_batch=20, total_frames=40
    )
    assert sum(batch.numel() for batch in collector) == 40
    assert collector.env.is_closed
