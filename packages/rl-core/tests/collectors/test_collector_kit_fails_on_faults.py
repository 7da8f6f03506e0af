"""CollectorKit passes on a small correct collector and fails, in the right check, on one with a planted fault."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from rl_core import BaseCollector, EnvBase
from rl_core.envs.container_runner import ContainerRunner
from rl_core.errors import CollectorError
from rl_core.testing import CollectorKit


class ToyCollector(BaseCollector):
    """A plain loop over ``ContainerRunner``; each method is where a fault may be planted."""

    def __init__(self, create_env_fn, policy, frames_per_batch, total_frames):
        self.owned = not isinstance(create_env_fn, EnvBase)
        self.env = create_env_fn() if self.owned else create_env_fn
        self.policy, self.size, self.total = policy, frames_per_batch, total_frames
        self.frames, self.closed, self.started, self.number = 0, False, 1, 0
        self.runner = ContainerRunner(self.env, policy, frames_per_batch)

    def left(self):
        return min(self.size, self.total - self.frames)

    def __iter__(self):
        if self.closed:
            raise CollectorError("closed")
        try:
            while (steps := self.left()) > 0:
                yield self.collect(steps)
        except Exception:
            self.shutdown()
            raise

    @torch.no_grad()
    def collect(self, steps):
        batch = self.runner.run(steps)
        self.frames += steps
        batch["collector", "traj_ids"] = self.numbered(batch)
        return self.finished(batch)

    def numbered(self, batch):
        numbers = []
        for done in batch["next", "done"].flatten().tolist():
            numbers.append(self.number)
            if done:
                self.number = self.started
                self.started += 1
        return torch.tensor(numbers)

    def finished(self, batch):
        return batch

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        if policy_or_weights is not None and policy_or_weights is not self.policy:
            self.policy.load_state_dict(policy_or_weights.state_dict())

    def set_seed(self, seed, static_seed=False):
        return self.env.set_seed(seed)

    def shutdown(self):
        if self.owned and not self.closed:
            self.env.close()
        self.closed = True

    def state_dict(self):
        counters = {"frames": self.frames, "number": self.number, "started": self.started}
        return {**counters, "env": self.env.state_dict(), "runner": self.runner.state_dict()}

    def load_state_dict(self, state_dict):
        self.frames, self.number, self.started = (state_dict[name] for name in ("frames", "number", "started"))
        self.env.load_state_dict(state_dict["env"])
        self.runner.load_state_dict(state_dict["runner"])


class TestToyCollector(CollectorKit):
    subject = ToyCollector

    def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
        return self.subject(create_env_fn, policy, frames_per_batch, total_frames)


class OneFrameShort(ToyCollector):
    def left(self):
        return min(self.size - 1, self.total - self.frames)


class UnnamedTime(ToyCollector):
    def finished(self, batch):
        batch.names = [None]
        return batch


class WholeBatchesOnly(ToyCollector):
    def left(self):
        return self.size if self.frames < self.total else 0


class EpisodesCutAtBatches(ToyCollector):
    def collect(self, steps):
        self.runner.reset()
        return super().collect(steps)


class NumbersThatSkip(ToyCollector):
    def numbered(self, batch):
        return 2 * super().numbered(batch)


class NumbersOfTheBatch(ToyCollector):
    def numbered(self, batch):
        self.number, self.started = 0, 1
        return super().numbered(batch)


class NextOfTheFollowingEpisode(ToyCollector):
    def finished(self, batch):
        there = batch["next", "observation"]
        batch["next", "observation"] = torch.where(batch["next", "done"], torch.zeros_like(there), there)
        return batch


class TruncationAsTermination(ToyCollector):
    def finished(self, batch):
        batch["next", "terminated"] = batch["next", "done"].clone()
        return batch


class DoneOnlyWhereTerminated(ToyCollector):
    def finished(self, batch):
        batch["next", "done"] = batch["next", "terminated"].clone()
        return batch


class OneBatchForAll(ToyCollector):
    kept = None

    def finished(self, batch):
        if self.kept is None or self.kept.shape != batch.shape:
            self.kept = batch
        else:
            self.kept.update_(batch)
        return self.kept


class SharedWithTheNext(ToyCollector):
    def finished(self, batch):
        self.env.count = batch["next", "observation"][-1]
        return batch


class OneLoopOnly(ToyCollector):
    def __iter__(self):
        try:
            yield from super().__iter__()
        finally:
            self.shutdown()


class WithGraph(ToyCollector):
    def collect(self, steps):
        with torch.enable_grad():
            return ToyCollector.collect.__wrapped__(self, steps)


class LeavesOpen(ToyCollector):
    def shutdown(self):
        self.closed = True


class ClosesTheGiven(ToyCollector):
    def shutdown(self):
        if not self.closed:
            self.env.close()
        self.closed = True


class EmptyAfterClosing(ToyCollector):
    def __iter__(self):
        return iter(()) if self.closed else super().__iter__()


class DeafToWeights(ToyCollector):
    def __init__(self, create_env_fn, policy, *budget):
        super().__init__(create_env_fn, copy.deepcopy(policy), *budget)

    def update_policy_weights_(self, policy_or_weights=None, **kwargs):
        pass


class Unseeded(ToyCollector):
    def set_seed(self, seed, static_seed=False):
        return seed + 1


class SeededAlike(ToyCollector):
    def set_seed(self, seed, static_seed=False):
        return self.env.set_seed(0)


class SwallowsErrors(ToyCollector):
    def __iter__(self):
        try:
            yield from super().__iter__()
        except RuntimeError:
            return


class HidesTheCause(ToyCollector):
    def __iter__(self):
        failed = False
        try:
            yield from super().__iter__()
        except RuntimeError:
            failed = True
        if failed:
            raise CollectorError("something went wrong")


class StaysOpenAfterAnError(ToyCollector):
    def __iter__(self):
        if self.closed:
            raise CollectorError("closed")
        while (steps := self.left()) > 0:
            yield self.collect(steps)


class ForgetsItsFrames(ToyCollector):
    def load_state_dict(self, state_dict):
        super().load_state_dict({**state_dict, "frames": 0})


class ForgetsItsNumbers(ToyCollector):
    def load_state_dict(self, state_dict):
        super().load_state_dict({**state_dict, "number": 0, "started": 1})


FAULTS = [
    (OneFrameShort, "test_every_batch_has_the_frames_asked_for"),
    (UnnamedTime, "test_every_batch_has_the_frames_asked_for"),
    (WholeBatchesOnly, "test_the_frames_add_up_to_the_total"),
    (EpisodesCutAtBatches, "test_trajectories_are_whole_over_all_batches"),
    (NumbersOfTheBatch, "test_trajectories_are_whole_over_all_batches"),
    (NumbersThatSkip, "test_trajectory_ids_have_no_gap"),
    (NextOfTheFollowingEpisode, "test_the_last_observation_of_an_episode_is_the_true_one"),
    (TruncationAsTermination, "test_a_truncation_is_no_termination"),
    (DoneOnlyWhereTerminated, "test_a_truncation_is_no_termination"),
    (OneBatchForAll, "test_a_batch_is_the_readers_to_keep"),
    (SharedWithTheNext, "test_a_batch_is_the_readers_to_keep"),
    (OneLoopOnly, "test_a_loop_that_was_left_can_be_taken_up_again"),
    (WithGraph, "test_batches_carry_no_graph"),
    (LeavesOpen, "test_what_the_collector_made_is_closed_with_it"),
    (ClosesTheGiven, "test_an_environment_that_was_given_stays_open"),
    (EmptyAfterClosing, "test_a_closed_collector_says_so"),
    (DeafToWeights, "test_updated_weights_arrive"),
    (Unseeded, "test_the_same_seed_gives_the_same_batches"),
    (SeededAlike, "test_the_same_seed_gives_the_same_batches"),
    (SwallowsErrors, "test_an_error_of_the_environment_reaches_the_caller"),
    (HidesTheCause, "test_an_error_of_the_environment_reaches_the_caller"),
    (StaysOpenAfterAnError, "test_an_error_of_the_environment_reaches_the_caller"),
    (ForgetsItsFrames, "test_a_resumed_collector_finishes_the_budget"),
    (ForgetsItsNumbers, "test_a_resumed_collector_finishes_the_budget"),
]


@pytest.mark.parametrize(("subject", "check"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_fails_in_its_check(subject, check):
    kit = type("Kit", (TestToyCollector,), {"subject": subject})()
    with pytest.raises((AssertionError, CollectorError)):
        getattr(kit, check)()


def test_every_check_is_shown_to_fail():
    checks = {name for name in dir(CollectorKit) if name.startswith("test_")}
    assert checks == {check for _, check in FAULTS}
