"""One rule for the ends of episodes, whatever the file: time limits, terminations, cuts, a last observation missing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_buffers import DatasetError
from rl_buffers.datasets.alignment import Steps, align
from rl_buffers.datasets.layout import as_tensor


def flags(rows: int, *true: int) -> torch.Tensor:
    found = torch.zeros(rows, dtype=torch.bool)
    found[list(true)] = True
    return found


def three_episodes(**kwargs) -> Steps:
    """Four steps to a time limit, one to a termination, two unfinished."""
    return Steps(flags(7, 4), flags(7, 3), **kwargs)


def test_with_every_last_observation_all_seven_rows_are_transitions():
    aligned = align(three_episodes(known_next=torch.ones(7, dtype=torch.bool)))
    assert aligned.rows.tolist() == list(range(7)) and not aligned.repeated.any()
    assert aligned.terminated.tolist() == [False] * 4 + [True, False, False]
    assert aligned.truncated.tolist() == [False] * 3 + [True, False, False, True]
    assert aligned.trajectory.tolist() == [0, 0, 0, 0, 1, 2, 2]
    tally = aligned.tally
    assert (tally.episodes, tally.terminated, tally.truncated, tally.cut, tally.dropped) == (3, 1, 1, 1, {})


def test_without_last_observations_only_the_terminated_episode_keeps_its_last_row():
    aligned = align(three_episodes())
    assert aligned.rows.tolist() == [0, 1, 2, 4, 5]
    assert aligned.repeated.tolist() == [False, False, False, True, False]
    assert aligned.truncated.tolist() == [False, False, True, False, True]
    assert sorted(aligned.tally.dropped.values()) == [1, 1] and aligned.tally.repeated == 1
    assert any("time limit" in reason for reason in aligned.tally.dropped)
    assert any("unfinished" in reason for reason in aligned.tally.dropped)


def test_repeat_keeps_every_row_and_says_which_repeat_their_observation():
    aligned = align(three_episodes(), missing_last="repeat")
    assert aligned.rows.tolist() == list(range(7))
    assert aligned.repeated.nonzero().flatten().tolist() == [3, 4, 6] and aligned.tally.repeated == 3
    assert aligned.truncated.tolist() == [False] * 3 + [True, False, False, True]


def test_an_episode_of_one_row_that_is_dropped_leaves_no_trace_in_numbers_and_counts():
    aligned = align(Steps(flags(4, 3), flags(4, 1, 2)))
    assert aligned.rows.tolist() == [0, 3] and aligned.trajectory.tolist() == [0, 1]
    assert (aligned.tally.episodes, aligned.tally.truncated, aligned.tally.terminated) == (2, 1, 1)
    assert sum(aligned.tally.dropped.values()) == 2


def test_a_row_that_begins_an_episode_ends_the_one_before_as_cut():
    aligned = align(Steps(flags(5, 4), flags(5), begins=flags(5, 3), known_next=torch.ones(5, dtype=torch.bool)))
    assert aligned.truncated.tolist() == [False, False, True, False, False]
    assert aligned.trajectory.tolist() == [0, 0, 0, 1, 1] and aligned.tally.cut == 1


def test_given_flags_are_not_changed():
    steps = three_episodes(begins=flags(7, 1))
    before = [part.clone() for part in (steps.terminated, steps.truncated, steps.begins)]
    align(steps)
    assert all(
        torch.equal(a, b) for a, b in zip(before, (steps.terminated, steps.truncated, steps.begins), strict=True)
    )


def test_an_unknown_choice_for_missing_observations_is_an_error():
    with pytest.raises(DatasetError, match="'drop' or 'repeat', got 'zero'"):
        align(three_episodes(), missing_last="zero")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.booleans()] * 4), min_size=1, max_size=12), st.sampled_from(["drop", "repeat"]))
def test_a_next_row_is_of_the_same_episode_and_counts_add_up(rows, missing_last):
    terminated, truncated, begins, known = (torch.tensor(column) for column in zip(*rows, strict=True))
    R = len(rows)
    # Slow reference: walk through the rows.
    ends = [bool(terminated[i] or truncated[i] or i == R - 1 or begins[i + 1]) for i in range(R)]
    kept = [i for i in range(R) if not ends[i] or known[i] or terminated[i] or missing_last == "repeat"]
    aligned = align(Steps(terminated, truncated, begins, known), missing_last)
    assert aligned.rows.tolist() == kept
    done = aligned.terminated | aligned.truncated
    episodes = [sum(ends[:i]) for i in kept]
    last_of_episode = [k + 1 == len(kept) or episodes[k] != episodes[k + 1] for k in range(len(kept))]
    assert done.tolist() == last_of_episode
    assert torch.equal(aligned.terminated, terminated[aligned.rows])
    assert aligned.trajectory.tolist() == [sorted(set(episodes)).index(episode) for episode in episodes]
    tally = aligned.tally
    assert tally.transitions == len(kept) and tally.transitions + sum(tally.dropped.values()) == R
    assert tally.episodes == tally.terminated + tally.truncated + tally.cut == len(set(episodes))


def test_columns_become_tensors_of_their_own_and_floats_are_cast():
    import numpy as np

    source = np.arange(3, dtype=">f8")
    found = as_tensor(source, "x", torch.float32)
    assert found.dtype == torch.float32 and found.tolist() == [0, 1, 2]
    assert as_tensor(source, "x", None).dtype == torch.float64
    assert as_tensor(np.arange(3, dtype="uint16"), "x", torch.float32).tolist() == [0, 1, 2]
    with pytest.raises(DatasetError, match="'x' holds <U1"):
        as_tensor(np.array(["a"]), "x", None)
    with pytest.raises(DatasetError, match="different shapes"):
        as_tensor([[1.0], [1.0, 2.0]], "x", None)
