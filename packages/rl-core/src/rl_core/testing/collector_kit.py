"""CollectorKit: what every collector must get right, in one process or in many.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyCollector(CollectorKit):
        def make(self, create_env_fn, policy, *, frames_per_batch, total_frames):
            return MyCollector(create_env_fn, policy, frames_per_batch=frames_per_batch, total_frames=total_frames)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_core.collectors.contract import BaseCollector
from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError
from rl_core.testing.kit import Kit
from rl_core.testing.numbered_rows import assert_raises
from rl_core.testing.toy_envs import CountingEnv

__all__ = ["CollectorKit", "constant_policy"]

_LENGTH = 5


class _ClosingEnv(CountingEnv):
    """Leaves a file behind when it is closed, which another process can see."""

    def __init__(self, path: str, length: int = _LENGTH) -> None:
        super().__init__(length=length)
        self.path = path

    def close(self, **kwargs: Any) -> None:
        Path(self.path).touch()
        super().close(**kwargs)


class _BreakingEnv(CountingEnv):
    """Fails in its fourth step."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if bool((self.count >= 3).any()):
            raise RuntimeError("the counter broke")
        return super()._step(tensordict)


class _Level(nn.Module):
    """One weight, put out for every row."""

    def __init__(self, level: float) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(level))

    def forward(self, observation: Tensor) -> Tensor:
        return self.level.expand_as(observation)


def constant_policy(level: float) -> TensorDictModule:
    """A policy whose every action is its one weight.

    >>> from tensordict import TensorDict
    >>> constant_policy(0.5)(TensorDict({"observation": torch.zeros(2, 1)}, [2]))["action"].tolist()
    [[0.5], [0.5]]
    """
    return TensorDictModule(_Level(level), in_keys=["observation"], out_keys=["action"])


class CollectorKit(Kit):
    """Checks of a collector over environments that count their steps.

    Attributes:
        frames_per_batch: for the checks; a multiple of the number of environments that step together.
        batches_in_flight: batches that may still come with older weights after an update, for collectors that collect
            while the caller trains.
        takes_environments: whether an environment itself, not only a function that makes one, can be handed over.
    """

    frames_per_batch: ClassVar[int] = 8
    batches_in_flight: ClassVar[int] = 0
    takes_environments: ClassVar[bool] = True

    def make(
        self, create_env_fn: Callable[[], EnvBase] | EnvBase, policy: Any, *, frames_per_batch: int, total_frames: int
    ) -> BaseCollector:
        """A new collector; to be written by the subclass. The function and the policy can be pickled."""
        raise NotImplementedError(
            "define make(self, create_env_fn, policy, *, frames_per_batch, total_frames) in your subclass of "
            "CollectorKit"
        )

    @contextmanager
    def _subject(
        self, create_env_fn: Any = None, policy: Any = None, *, batches: float = 5, total_frames: int | None = None
    ) -> Iterator[BaseCollector]:
        create_env_fn = partial(CountingEnv, length=_LENGTH) if create_env_fn is None else create_env_fn
        total = int(self.frames_per_batch * batches) if total_frames is None else total_frames
        collector = self.make(create_env_fn, policy, frames_per_batch=self.frames_per_batch, total_frames=total)
        try:
            yield collector
        finally:
            collector.shutdown()

    # ---------------------------------------------------------------- frames
    def test_every_batch_has_the_frames_asked_for(self) -> None:
        """And its last dimension is time."""
        with self._subject() as collector:
            batches = list(collector)
        assert [batch.numel() for batch in batches] == [self.frames_per_batch] * 5, (
            f"frames_per_batch={self.frames_per_batch}, but the batches hold {[batch.numel() for batch in batches]}"
        )
        assert all(batch.names[-1] == "time" for batch in batches), f"dimensions are named {batches[0].names}"

    def test_the_frames_add_up_to_the_total(self) -> None:
        """No frame is lost or added where the batches do not divide the total: half a batch comes last."""
        with self._subject(batches=2.5) as collector:
            total = sum(batch.numel() for batch in collector)
        expected = int(2.5 * self.frames_per_batch)
        assert total == expected, f"total_frames={expected}, collected {total}"

    # ---------------------------------------------------------------- trajectories
    def test_trajectories_are_whole_over_all_batches(self) -> None:
        """Joined by their ids, over the edges of batches, the steps of an episode count 0, 1, 2, ... to its end."""
        with self._subject(batches=6) as collector:
            parts = _trajectories(collector)
        for number, steps in parts.items():
            seen = steps["observation"].tolist()
            assert seen == [float(k) for k in range(len(seen))], (
                f"trajectory {number} observed {seen}, not 0, 1, 2, ..."
            )
            ends = steps["done"].tolist()
            assert not any(ends[:-1]), f"trajectory {number} goes on after its end: done={ends}"
            assert len(seen) <= _LENGTH and (len(seen) == _LENGTH) == ends[-1], (
                f"an episode has {_LENGTH} steps; trajectory {number} has {len(seen)}, done={ends}"
            )

    def test_trajectory_ids_have_no_gap(self) -> None:
        """They count the episodes that began, from 0."""
        with self._subject(batches=6) as collector:
            numbers = sorted(_trajectories(collector))
        assert numbers == list(range(len(numbers))), f"trajectory ids are {numbers}"

    def test_the_last_observation_of_an_episode_is_the_true_one(self) -> None:
        """Under "next" of the last step, not the first of the following episode."""
        with self._subject() as collector:
            for batch in collector:
                here, there = batch["observation"], batch["next", "observation"]
                assert torch.equal(there, here + 1), (
                    f'observations {here.flatten().tolist()} are followed by ("next", "observation") '
                    f"{there.flatten().tolist()}; the environment counts on, also into the last step of an episode"
                )

    def test_a_truncation_is_no_termination(self) -> None:
        """``done = terminated | truncated``, and a cut episode is only truncated."""
        with self._subject(partial(CountingEnv, length=_LENGTH, truncate=True)) as collector:
            for batch in collector:
                done, terminated, truncated = (batch["next", name] for name in ("done", "terminated", "truncated"))
                assert torch.equal(done, batch["next", "observation"] == _LENGTH), f"done is {done.flatten().tolist()}"
                assert not terminated.any(), f"terminated is {terminated.flatten().tolist()} where episodes are cut"
                assert torch.equal(truncated, done), (
                    f"done {done.flatten().tolist()} but truncated {truncated.flatten()}"
                )

    # ---------------------------------------------------------------- ownership
    def test_a_batch_is_the_readers_to_keep(self) -> None:
        """Later batches do not change it, and overwriting it does not change later ones."""
        with self._subject() as collector:
            kept = [(batch, batch.clone()) for batch in collector]
        for batch, before in kept:
            assert (batch == before).all(), "a batch changed after it was handed over"
        with self._subject() as collector:
            for k, batch in enumerate(collector):
                here, expected = batch["observation"], kept[k][1]["observation"]
                assert self.batches_in_flight or torch.equal(here, expected), (
                    f"a reader wrote zeros into the batch before, and this one observes {here.flatten().tolist()} "
                    f"instead of {expected.flatten().tolist()}"
                )
                for value in batch.values(True, True):
                    value.zero_()

    def test_batches_carry_no_graph(self) -> None:
        """Collecting records nothing for a backward pass."""
        with self._subject(policy=constant_policy(0.5)) as collector:
            batch = next(iter(collector))
        for key, value in batch.items(True, True):
            assert not value.requires_grad, f"{key!r} requires grad; collect under torch.no_grad()"

    def test_what_the_collector_made_is_closed_with_it(self) -> None:
        """Environments that a function made are closed by ``shutdown``, which may be called twice."""
        with TemporaryDirectory() as folder:
            mark = Path(folder) / "closed"
            with self._subject(partial(_ClosingEnv, str(mark))) as collector:
                next(iter(collector))
                assert not mark.exists(), "the environment was closed while it was in use"
                collector.shutdown()
                collector.shutdown()
                assert mark.exists(), "shutdown() left the environment open that the collector made"

    def test_an_environment_that_was_given_stays_open(self) -> None:
        """It belongs to the caller."""
        if not self.takes_environments:
            return
        env = CountingEnv(length=_LENGTH)
        with self._subject(env) as collector:
            next(iter(collector))
        assert not env.is_closed, "shutdown() closed an environment that the collector was given"
        env.rollout(2)

    def test_a_closed_collector_says_so(self) -> None:
        """Collecting after ``shutdown`` is an error, not an empty run."""
        with self._subject() as collector:
            collector.shutdown()
            assert_raises(CollectorError, lambda: next(iter(collector)), "collecting after shutdown()")

    def test_a_loop_that_was_left_can_be_taken_up_again(self) -> None:
        """``break`` closes nothing: the next loop goes on with the budget that is left."""
        with self._subject() as collector:
            for batch in collector:
                frames = batch.numel()
                break
            frames += sum(batch.numel() for batch in collector)
        assert frames == 5 * self.frames_per_batch, f"5 batches in two loops hold {frames} frames"

    # ---------------------------------------------------------------- steering
    def test_updated_weights_arrive(self) -> None:
        """The policy's new weights act from the next batch on that is begun after the update."""
        policy = constant_policy(0.25)
        with self._subject(policy=policy, batches=4 + self.batches_in_flight) as collector:
            batches = iter(collector)
            _check_level(next(batches), 0.25, "before any update")
            with torch.no_grad():
                next(policy.parameters()).fill_(0.75)
            collector.update_policy_weights_(policy)
            for _ in range(self.batches_in_flight):
                next(batches)
            _check_level(next(batches), 0.75, "after update_policy_weights_(policy)")
            collector.update_policy_weights_(constant_policy(-0.5))
            for _ in range(self.batches_in_flight):
                next(batches)
            _check_level(next(batches), -0.5, "after update_policy_weights_(another policy's weights)")

    def test_the_same_seed_gives_the_same_batches(self) -> None:
        """``set_seed`` governs random actions, and another seed gives others."""
        drawn = []
        for seed in (3, 3, 4):
            with self._subject() as collector:
                collector.set_seed(seed)
                drawn.append(torch.stack([batch["action"].flatten() for batch in collector]))
        assert torch.equal(drawn[0], drawn[1]), "two collectors with one seed drew different actions"
        assert not torch.equal(drawn[0], drawn[2]), "two seeds drew the same actions"

    def test_an_error_of_the_environment_reaches_the_caller(self) -> None:
        """With its text; afterwards the collector is shut down."""
        with self._subject(partial(_BreakingEnv, length=_LENGTH)) as collector:
            try:
                list(collector)
            except Exception as error:
                assert "the counter broke" in _told(error), f"the cause is not told: {_told(error)}"
            else:
                raise AssertionError("the environment raised, but the collector went on")
            assert_raises(CollectorError, lambda: next(iter(collector)), "collecting after an error")

    # ---------------------------------------------------------------- checkpoints
    def test_a_resumed_collector_finishes_the_budget(self) -> None:
        """Frames are counted on, and trajectory ids are not given twice."""
        with self._subject(batches=5) as first:
            batches = iter(first)
            before = [next(batches) for _ in range(2)]
            state = first.state_dict()
        with self._subject(batches=5) as second:
            second.load_state_dict(state)
            after = list(second)
        assert sum(batch.numel() for batch in after) == 3 * self.frames_per_batch, (
            f"2 of 5 batches were collected before; the resumed collector gave {len(after)} more"
        )
        reached = {
            int(number)
            for batch in before
            for number in batch["collector", "traj_ids"][batch["next", "done"].squeeze(-1)]
        }
        again = {int(number) for batch in after for number in batch["collector", "traj_ids"].flatten()}
        assert not reached & again, f"trajectories {sorted(reached & again)} had ended before and came again"


def _trajectories(collector: BaseCollector) -> dict[int, TensorDictBase]:
    """Every trajectory's steps in the order in which they came: trajectory id -> ``[T_i]``."""
    parts: dict[int, list[TensorDictBase]] = {}
    for batch in collector:
        for row in batch.reshape(-1, batch.shape[-1]).unbind(0):
            numbers = row["collector", "traj_ids"]
            assert numbers.dtype is torch.int64, f"trajectory ids are int64, not {numbers.dtype}"
            for number in numbers.unique().tolist():
                parts.setdefault(number, []).append(row[numbers == number])
    return {number: _joined(steps) for number, steps in parts.items()}


def _joined(steps: list[TensorDictBase]) -> TensorDictBase:
    rows: TensorDictBase = torch.cat(list(steps))  # type: ignore[assignment]
    return TensorDict(
        {"observation": rows["observation"].flatten(), "done": rows["next", "done"].flatten()}, rows.batch_size
    )


def _check_level(batch: TensorDictBase, level: float, when: str) -> None:
    found = batch["action"]
    assert torch.equal(found, torch.full_like(found, level)), (
        f"{when} the policy's weight is {level}, but it acted with {sorted(set(found.flatten().tolist()))}"
    )


def _told(error: BaseException) -> str:
    """The texts of an error and of its causes."""
    texts, cause = [], error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__  # type: ignore[assignment]
    return " | ".join(texts)
