"""Hindsight goals: from the right steps of the same episode, also where the ring wraps, with rewards to match."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import (
    HERReplayBuffer,
    HindsightStrategy,
    HindsightTransform,
    LazyTensorStorage,
    MultiStepTransform,
    TensorDictReplayBuffer,
)
from rl_core.errors import KeyMissingError, ReplayBufferError


def reached(rows: TensorDict) -> torch.Tensor:
    return (rows["next", "achieved_goal"] == rows["desired_goal"]).float() - 1.0


def episode(number: int, n: int) -> TensorDict:
    """Step t of episode k is at place 100 k + t and comes to 100 k + t + 1; the goal is -1, never reached."""
    t = torch.arange(n)
    place = (100.0 * number + t).unsqueeze(-1)
    done = (t == n - 1).unsqueeze(-1)
    nxt = {
        "achieved_goal": place + 1,
        "desired_goal": torch.full((n, 1), -1.0),
        "reward": torch.full((n, 1), -1.0),
        "done": done,
        "truncated": done.clone(),
        "terminated": torch.zeros_like(done),
    }
    return TensorDict({"achieved_goal": place, "desired_goal": torch.full((n, 1), -1.0), "next": nxt}, [n])


def goals_by_step(strategy: str, capacity: int = 10, **kwargs) -> dict[float, set[float]]:
    """For each place, the goals that rows there got; the ring of ten holds steps 2-5 of episode 0 and 0-5 of 1."""
    buffer = HERReplayBuffer(
        reached, her_ratio=1.0, strategy=strategy, storage=LazyTensorStorage(capacity), batch_size=3000, **kwargs
    )
    buffer.extend(episode(0, 6))
    buffer.extend(episode(1, 6))
    batch = buffer.sample()
    assert torch.equal(batch["desired_goal"], batch["next", "desired_goal"])
    assert torch.equal(batch["next", "reward"], reached(batch))
    goals: dict[float, set[float]] = {}
    for place, goal in zip(
        batch["achieved_goal"].flatten().tolist(), batch["desired_goal"].flatten().tolist(), strict=True
    ):
        goals.setdefault(place, set()).add(goal)
    return goals


def places() -> list[tuple[int, range]]:
    return [(0, range(2, 6)), (1, range(6))]


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        ("future", lambda t, held: [later for later in held if later >= t]),
        ("final", lambda t, held: [held[-1]]),
        ("episode", lambda t, held: list(held)),
    ],
)
def test_goals_come_from_the_steps_that_the_strategy_names(strategy, steps):
    expected = {
        100.0 * number + t: {100.0 * number + step + 1 for step in steps(t, held)}
        for number, held in places()
        for t in held
    }
    assert goals_by_step(strategy) == expected


def test_random_goals_come_from_any_row():
    everywhere = {100.0 * number + t + 1 for number, held in places() for t in held}
    assert all(goals <= everywhere for goals in goals_by_step("random").values())
    assert set().union(*goals_by_step(HindsightStrategy.RANDOM).values()) == everywhere


def test_the_ratio_is_the_part_that_is_relabelled():
    buffer = HERReplayBuffer(reached, her_ratio=0.8, storage=LazyTensorStorage(100), batch_size=50)
    buffer.extend(episode(0, 20))
    batch = buffer.sample()
    kept = (batch["desired_goal"] == -1).flatten()
    assert int(kept.sum()) == 10 and (batch["next", "reward"].flatten()[kept] == -1).all()
    positions = [tuple((buffer.sample()["desired_goal"] == -1).flatten().tolist()) for _ in range(3)]
    assert len(set(positions)) > 1  # not always the same rows of a sample


def test_no_row_is_relabelled_with_a_ratio_of_zero():
    buffer = HERReplayBuffer(reached, her_ratio=0.0, storage=LazyTensorStorage(100), batch_size=50)
    buffer.extend(episode(0, 20))
    assert (buffer.sample()["desired_goal"] == -1).all()


def test_stored_rows_stay_as_they_are():
    buffer = HERReplayBuffer(reached, her_ratio=1.0, storage=LazyTensorStorage(100), batch_size=50)
    buffer.extend(episode(0, 20))
    buffer.sample()
    assert (buffer[:] == episode(0, 20)).all()


def test_end_flags_stay_unless_a_function_recomputes_them():
    def done(rows: TensorDict) -> torch.Tensor:
        return rows["next", "achieved_goal"] == rows["desired_goal"]

    buffer = HERReplayBuffer(
        reached, her_ratio=1.0, strategy="final", storage=LazyTensorStorage(10), batch_size=200, terminated_fn=done
    )
    buffer.extend(episode(0, 3))
    batch = buffer.sample()
    last = batch["achieved_goal"] == 2
    assert torch.equal(batch["next", "terminated"], last) and torch.equal(batch["next", "done"], last)
    plain = HERReplayBuffer(reached, her_ratio=1.0, strategy="final", storage=LazyTensorStorage(10), batch_size=200)
    plain.extend(episode(0, 3))
    assert not plain.sample()["next", "terminated"].any()


def test_rows_that_keep_no_next_goal_take_that_of_the_root():
    def at_root(rows: TensorDict) -> torch.Tensor:
        return rows["achieved_goal"] == rows["desired_goal"]

    buffer = HERReplayBuffer(at_root, her_ratio=1.0, strategy="final", storage=LazyTensorStorage(10), batch_size=50)
    buffer.extend(episode(0, 4).exclude(("next", "achieved_goal"), ("next", "desired_goal")))
    assert (buffer.sample()["desired_goal"] == 3).all()


def test_it_may_be_given_as_a_transform_and_seeded():
    def draw(seed: int) -> torch.Tensor:
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(100),
            transform=HindsightTransform(reached),
            batch_size=50,
            generator=torch.Generator().manual_seed(seed),
        )
        buffer.extend(episode(0, 20))
        return buffer.sample()["desired_goal"]

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))


def test_mistakes_are_named():
    with pytest.raises(ReplayBufferError, match="future, final, episode, random"):
        HindsightTransform(reached, strategy="later")
    with pytest.raises(ReplayBufferError, match="her_ratio in"):
        HindsightTransform(reached, her_ratio=1.5)
    buffer = HERReplayBuffer(lambda rows: torch.zeros(3), storage=LazyTensorStorage(100), batch_size=50)
    buffer.extend(episode(0, 20))
    with pytest.raises(ReplayBufferError, match=r"reward_fn gave \[3\]"):
        buffer.sample()
    without = HERReplayBuffer(reached, storage=LazyTensorStorage(100), batch_size=50)
    without.extend(episode(0, 20).exclude("desired_goal"))
    with pytest.raises(KeyMissingError, match="goal_key="):
        without.sample()


def test_rewards_that_were_summed_up_already_are_not_relabelled():
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), transform=MultiStepTransform(2, 0.9), batch_size=10)
    buffer.append_transform(HindsightTransform(reached))
    buffer.extend(episode(0, 20))
    with pytest.raises(ReplayBufferError, match="n-step transitions"):
        buffer.sample()
