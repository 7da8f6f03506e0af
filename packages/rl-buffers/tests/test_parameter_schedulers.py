"""Schedules of alpha and beta: values by hand, limits, and going on after a load."""

from __future__ import annotations

import pytest
import torch

from rl_buffers import (
    LambdaScheduler,
    LazyTensorStorage,
    LinearScheduler,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    RandomSampler,
    SchedulerList,
    StepScheduler,
)
from rl_core.errors import CheckpointError, ReplayBufferError
from rl_core.training.stateful import Stateful


def values(scheduler, sampler, name: str, n: int) -> list[float]:
    out = []
    for _ in range(n):
        scheduler.step()
        out.append(getattr(sampler, name))
    return out


def sampler() -> PrioritizedSampler:
    return PrioritizedSampler(4, alpha=2.0, beta=0.5)


def test_a_line_reaches_its_end_exactly_and_stays():
    subject = sampler()
    assert values(LinearScheduler(subject, "alpha", 0.0, 4), subject, "alpha", 6) == [1.5, 1.0, 0.5, 0.0, 0.0, 0.0]


def test_steps_multiply_or_add_every_so_often():
    subject = sampler()
    assert values(StepScheduler(subject, "alpha", 0.5, 2), subject, "alpha", 6) == [2.0, 1.0, 1.0, 0.5, 0.5, 0.25]
    subject = sampler()
    steps = StepScheduler(subject, "alpha", 0.5, 2, mode="additive", max_value=2.75)
    assert values(steps, subject, "alpha", 6) == [2.0, 2.5, 2.5, 2.75, 2.75, 2.75]


def test_a_function_gives_the_factor():
    subject = sampler()
    factor = LambdaScheduler(subject, "alpha", lambda step: 0.5**step, min_value=0.3)
    assert values(factor, subject, "alpha", 4) == [1.0, 0.5, 0.3, 0.3]


def test_a_buffer_stands_for_the_sampler_that_it_has():
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=0.5, storage=LazyTensorStorage(4), batch_size=2)
    schedule = LinearScheduler(buffer, "beta", 1.0, 2)
    buffer.set_sampler(PrioritizedSampler(4, 1.0, 0.5))
    schedule.step()
    assert buffer.sampler.beta == 0.75


def test_a_schedule_changes_the_weights_of_the_next_sample():
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=0.0, eps=0.0, storage=LazyTensorStorage(2), batch_size=5)
    buffer.extend(torch.arange(2))
    buffer.update_priority([0, 1], torch.tensor([1.0, 4.0]))
    schedule = LinearScheduler(buffer, "beta", 1.0, 2)
    weights = []
    for _ in range(3):
        rows, info = buffer.sample(return_info=True)
        weights.append(info["priority_weight"][rows == 1][0].item())
        schedule.step()
    assert weights == [1.0, 0.5, 0.25]


def test_a_list_steps_all_and_saves_all():
    first, second = sampler(), sampler()

    def made(subject):
        schedules = SchedulerList([LinearScheduler(subject, "beta", 1.0, 5)])
        schedules.append(StepScheduler(subject, "alpha", 0.5))
        return schedules

    running = made(first)
    running.step()
    running.step()
    second.load_state_dict(first.state_dict())
    resumed = made(second)
    resumed.load_state_dict(running.state_dict())
    assert isinstance(running, Stateful)
    for _ in range(4):
        running.step()
        resumed.step()
        assert (first.alpha, first.beta) == (second.alpha, second.beta)
    assert first.beta == 1.0 and first.alpha == 2.0 * 0.5**6


def test_states_of_other_schedules_are_refused():
    subject = sampler()
    with pytest.raises(CheckpointError, match="schedule of 'alpha', this one is of 'beta'"):
        LinearScheduler(subject, "beta", 1.0, 2).load_state_dict(LinearScheduler(subject, "alpha", 1.0, 2).state_dict())
    with pytest.raises(CheckpointError, match="of 0 schedules, this list has 1"):
        SchedulerList(LinearScheduler(subject, "beta", 1.0, 2)).load_state_dict(SchedulerList().state_dict())


def test_what_cannot_be_scheduled_says_so():
    with pytest.raises(ReplayBufferError, match="RandomSampler has no number 'beta'"):
        LinearScheduler(RandomSampler(), "beta", 1.0, 2)
    with pytest.raises(ReplayBufferError, match="no number 'stratified'"):
        LinearScheduler(sampler(), "stratified", 1.0, 2)
    with pytest.raises(ReplayBufferError, match="num_steps must be at least 1"):
        LinearScheduler(sampler(), "beta", 1.0, 0)
    with pytest.raises(ReplayBufferError, match="n_steps must be at least 1"):
        StepScheduler(sampler(), "beta", n_steps=0)
    with pytest.raises(ReplayBufferError, match="mode must be 'multiplicative' or 'additive', got 'geometric'"):
        StepScheduler(sampler(), "beta", mode="geometric")
