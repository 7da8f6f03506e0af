"""MCAdvantage: groups that wait, groups that are written, and what every turn of a trajectory gets."""

import copy
import pickle
import threading

import pytest
import torch
from tensordict import TensorDict, lazy_stack

from rl_core.errors import KeyMissingError, ReplayBufferError, SpecError
from rl_core.testing import TransformKit
from rl_core.transforms import Compose
from rl_llm.advantage import MCAdvantage


class TestMCAdvantageKeepsTheTransformsPromises(TransformKit):
    needs = ()

    def make_transform(self):
        return MCAdvantage(2)


def turns(rewards, group=0, *, query=None, done=True):
    """One trajectory [T]."""
    count = len(rewards)
    ended = torch.zeros(count, 1, dtype=torch.bool)
    ended[-1] = done
    step = {"reward": torch.tensor(rewards, dtype=torch.float32).unsqueeze(-1), "done": ended}
    batch = TensorDict({"turn": torch.arange(count), "next": step}, [count])
    if group is not None:
        batch["group_id"] = torch.full((count,), group)
    if query is not None:
        batch["query"] = query
    return batch


def flat(batch):
    return batch["advantage"].squeeze(-1)


# ----------------------------------------------------------------------------------------------------------- waiting
def test_nothing_is_written_until_a_group_is_complete():
    transform = MCAdvantage(3)
    assert transform.inv(turns([1.0])) is None
    assert transform.inv(turns([0.0])) is None
    assert transform.get_stats()["pending_trajectories"] == 2
    written = transform.inv(turns([0.0]))
    assert written.batch_size == (3,) and written["advantage"].shape == (3, 1)
    expected = torch.tensor([2 / 3, -1 / 3, -1 / 3]) / (3**-0.5 + 1e-4)
    torch.testing.assert_close(flat(written), expected)
    assert transform.get_stats()["pending"] == 0 and transform.get_stats()["completed"] == 1


def test_a_batch_of_several_trajectories_is_split_at_its_dones():
    transform = MCAdvantage(2, baseline="mean")
    written = transform.inv(torch.cat([turns([0.0, 1.0], 7), turns([5.0], 8), turns([3.0], 7)]))
    assert written["group_id"].tolist() == [7, 7, 7] and written["turn"].tolist() == [0, 1, 0]
    assert flat(written).tolist() == [-1.0, -1.0, 1.0]
    assert transform.get_stats()["pending"] == 1


def test_environments_side_by_side_are_so_many_trajectories():
    side_by_side = torch.stack([turns([0.0, 1.0]), turns([0.0, 3.0])])
    written = MCAdvantage(2, baseline="mean").inv(side_by_side)
    assert written.batch_size == (4,) and flat(written).tolist() == [-1.0, -1.0, 1.0, 1.0]


def test_a_trajectory_without_its_end_is_refused():
    with pytest.raises(ReplayBufferError, match=r"last 2 of 3 turns.*yield_completed_trajectories"):
        MCAdvantage(2).inv(torch.cat([turns([1.0]), turns([0.0, 1.0], done=False)]))


def test_what_waits_is_a_copy_of_the_callers_memory():
    transform, memory = MCAdvantage(2, baseline="mean"), turns([1.0])
    transform.inv(memory)
    memory.zero_()
    written = transform.inv(turns([3.0]))
    assert written["next", "reward"].squeeze(-1).tolist() == [1.0, 3.0]
    assert flat(written).tolist() == [-1.0, 1.0]


def test_the_data_given_are_left_alone():
    given = torch.cat([turns([1.0]), turns([0.0])])
    MCAdvantage(2).inv(given)
    assert "advantage" not in given


def test_rows_of_different_lengths_come_out_as_they_went_in():
    rows = []
    for length, reward in ((3, 1.0), (5, 0.0)):
        row = turns([reward])[0]
        row["tokens"] = TensorDict({"full": torch.arange(length)}, [])
        rows.append(row)
    written = MCAdvantage(2, baseline="mean").inv(lazy_stack(rows))
    assert [len(row["tokens", "full"]) for row in written.unbind(0)] == [3, 5]
    assert flat(written).tolist() == [0.5, -0.5]


# ------------------------------------------------------------------------------------------------------------ groups
def test_equal_prompts_with_different_ids_are_different_groups():
    transform = MCAdvantage(2)
    for group in (1, 2):
        assert transform.inv(turns([1.0], group, query="what is 2 + 2?")) is None
    assert transform.get_stats()["pending"] == 2


def test_the_prompt_stands_in_for_a_missing_id():
    transform = MCAdvantage(2, baseline="mean")
    assert transform.inv(turns([1.0], None, query="a")) is None
    assert transform.inv(turns([1.0], None, query="b")) is None
    assert flat(transform.inv(turns([0.0], None, query="a"))).tolist() == [0.5, -0.5]


def test_neither_an_id_nor_a_prompt_is_an_error():
    with pytest.raises(KeyMissingError, match=r'"group_id" or "query"'):
        MCAdvantage(2).inv(turns([1.0], None))


def test_a_group_that_waits_too_long_makes_room():
    transform = MCAdvantage(2, max_pending_groups=3)
    for group in range(10):
        transform.inv(turns([1.0], group))
    stats = transform.get_stats()
    assert stats["pending"] == 3 and stats["evicted"] == 7 and stats["evicted_trajectories"] == 7
    assert transform.inv(turns([0.0], 0)) is None, "group 0 was evicted and starts over"
    assert transform.inv(turns([0.0], 9)) is not None


def test_the_groups_of_several_writers_are_complete_whoever_brings_the_last_answer():
    transform, written, lock = MCAdvantage(8, baseline="mean"), [], threading.Lock()

    def write(seed):
        for group in range(20):
            rows = transform.inv(turns([float(seed)], group))
            if rows is not None:
                with lock:
                    written.append(rows)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 20 and transform.get_stats()["pending"] == 0
    assert all(sorted(rows["next", "reward"].flatten().tolist()) == list(map(float, range(8))) for rows in written)


# -------------------------------------------------------------------------------------------------------- advantages
def test_every_turn_of_the_winner_is_better_than_average():
    loser, winner = turns([0.0, 0.0, 0.0, 0.0]), turns([0.0, 1.0])
    written = MCAdvantage(2).inv(torch.cat([winner, loser]))
    assert (flat(written)[:2] > 0).all() and (flat(written)[2:] < 0).all()
    assert flat(written)[0] == flat(written)[1]


def test_step_by_step_as_elsewhere_punishes_the_winners_first_turn():
    written = MCAdvantage(2, trajectory_return=None, epsilon=0.0).inv(
        torch.cat([turns([0.0, 1.0]), turns([0.0, 0.0, 0.0, 0.0])])
    )
    torch.testing.assert_close(flat(written), torch.tensor([-0.408, 2.041, -0.408, -0.408, -0.408, -0.408]),
                               atol=1e-3, rtol=0)  # fmt: skip


@pytest.mark.parametrize(("mode", "first", "second"), [("sum", 4.0, 2.0), ("max", 3.0, 2.0), ("mean", 2.0, 2.0)])
def test_a_trajectory_is_worth_what_the_mode_says(mode, first, second):
    transform = MCAdvantage(2, baseline="mean", trajectory_return=mode)
    written = transform.inv(torch.cat([turns([1.0, 3.0]), turns([2.0])]))
    half = (first - second) / 2
    assert flat(written).tolist() == [half, half, -half]


def test_rewards_per_token_are_added_up():
    batch = torch.cat([turns([0.0]), turns([0.0])])
    batch["next", "reward"] = torch.tensor([[[0.5], [0.5]], [[0.0], [3.0]]])
    assert flat(MCAdvantage(2, baseline="mean").inv(batch)).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("baseline", ["std", "mean", "leave_one_out"])
def test_groups_of_one_and_of_equal_returns_are_zeros_and_counted(baseline):
    single = MCAdvantage(1, baseline=baseline)
    assert flat(single.inv(turns([3.0]))).tolist() == [0.0]
    equal = MCAdvantage(3, baseline=baseline)
    assert flat(equal.inv(torch.cat([turns([0.1])] * 3))).tolist() == [0.0, 0.0, 0.0]
    equal.inv(torch.cat([turns([0.1]), turns([0.1]), turns([0.2])]))
    assert single.get_stats()["dead_share"] == 1.0 and equal.get_stats()["dead_share"] == 0.5


def test_leave_one_out_compares_with_the_others():
    written = MCAdvantage(3, baseline="leave_one_out").inv(torch.cat([turns([3.0]), turns([1.0]), turns([2.0])]))
    assert flat(written).tolist() == [1.5, -1.5, 0.0]


def test_a_reward_that_is_no_number_is_refused_by_name():
    with pytest.raises(SpecError, match=r'"next", "reward"'):
        MCAdvantage(2).inv(turns([float("nan")]))
    with pytest.raises(KeyMissingError, match=r'"next", "reward"'):
        MCAdvantage(2).inv(turns([1.0]).exclude(("next", "reward")))


# ---------------------------------------------------------------------------------------------------------- dropping
def test_groups_outside_of_the_bounds_are_dropped_and_counted():
    transform = MCAdvantage(2, keep_return_bounds=(0.0, 1.0))
    for rewards in ([0.0, 0.0], [1.0, 1.0]):
        assert transform.inv(torch.cat([turns([r]) for r in rewards])) is None
    assert transform.inv(torch.cat([turns([0.0]), turns([1.0])])) is not None
    stats = transform.get_stats()
    assert (stats["completed"], stats["dropped"], stats["dead"]) == (3, 2, 2)


def test_dead_groups_may_be_dropped_whatever_their_mean():
    transform = MCAdvantage(2, drop_dead_groups=True)
    written = transform.inv(torch.cat([turns([0.5], 0), turns([0.0], 1), turns([0.5], 0), turns([1.0], 1)]))
    assert written["group_id"].tolist() == [1, 1]
    assert transform.get_stats()["dropped"] == 1


# ------------------------------------------------------------------------------------------------ outside of a buffer
def test_called_on_a_batch_it_keeps_the_order_of_the_rows():
    batch = torch.cat([turns([1.0], 0), turns([5.0], 1), turns([0.0, 2.0], 0), turns([7.0], 1)])
    result = MCAdvantage(2, baseline="mean")(batch)
    assert result["group_id"].tolist() == [0, 1, 0, 0, 1]
    assert flat(result).tolist() == [-0.5, -1.0, 0.5, 0.5, 1.0]


def test_called_on_an_incomplete_group_it_says_which():
    with pytest.raises(ReplayBufferError, match="groups of 3"):
        MCAdvantage(3)(torch.cat([turns([1.0], 4), turns([0.0], 4)]))


def test_samples_pass_unchanged_through_the_transform_of_a_buffer():
    transform = MCAdvantage(2)
    chain = Compose(transform)
    sample = turns([1.0], 3)
    assert chain(sample) is sample
    assert chain.inv(turns([1.0], 3)) is None
    assert chain.inv(turns([0.0], 3)).batch_size == (2,)


# ------------------------------------------------------------------------------------------------------------- state
def test_copies_wait_on_their_own():
    transform = MCAdvantage(2)
    transform.inv(turns([1.0]))
    for other in (copy.deepcopy(transform), pickle.loads(pickle.dumps(transform)), transform.clone()):
        assert other.inv(turns([0.0])) is not None
    assert transform.get_stats()["pending"] == 1


def test_progress_is_printed_where_it_is_asked_for(capsys):
    MCAdvantage(1, verbose=True).inv(turns([2.0], 5))
    assert "mean return 2, kept" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        {"grpo_size": 0},
        {"baseline": "median"},
        {"trajectory_return": "last"},
        {"keep_return_bounds": (1.0, 0.0)},
        {"keep_return_bounds": (1.0,)},
        {"max_pending_groups": 0},
    ],
)
def test_options_that_are_not_admitted_are_refused(options):
    with pytest.raises(SpecError):
        MCAdvantage(**{"grpo_size": 2, **options})


@pytest.mark.parametrize("baseline", ["std", "mean", "leave_one_out"])
@pytest.mark.parametrize("mode", ["sum", None])
def test_whole_groups_of_single_turns_get_the_advantages_that_rows_one_by_one_get(baseline, mode):
    torch.manual_seed(0)
    ids = torch.arange(4).repeat_interleave(3)
    batch = TensorDict(
        {
            "group_id": ids,
            "row": torch.arange(12),
            "next": {"reward": torch.randn(12, 1).round(), "done": torch.ones(12, 1, dtype=torch.bool)},
        },
        [12],
    )
    batch["next", "reward"][:3] = 1.0  # a dead group
    at_once, by_row = (MCAdvantage(3, baseline=baseline, trajectory_return=mode) for _ in range(2))
    fast = at_once.inv(batch)
    slow = torch.cat([rows for n in range(12) if (rows := by_row.inv(batch[n : n + 1])) is not None])
    assert torch.equal(fast["row"], slow["row"]) and torch.equal(fast["advantage"], slow["advantage"])
    assert at_once.get_stats() == by_row.get_stats()
    assert "advantage" not in batch
