"""What collectors with worker processes yield."""

import multiprocessing
from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import (
    AsyncCollector,
    Collector,
    MultiAsyncCollector,
    MultiaSyncDataCollector,
    MultiSyncCollector,
    MultiSyncDataCollector,
    aSyncDataCollector,
)
from rl_core import EnvBase
from rl_core.errors import CollectorError
from rl_core.policy_state import CarriedState, StateCarrier
from rl_core.specs import Unbounded
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv
from rl_core.testing.collector_kit import constant_policy

KINDS = [MultiSyncCollector, MultiAsyncCollector]


def sync(makers, policy=None, **kwargs):
    return MultiSyncCollector(makers, policy, **{"mp_start_method": "fork", **kwargs})


def counting(length=3, **kwargs):
    return partial(ArrayCountingEnv, length, **kwargs)


def gathered(collector):
    with collector:
        return list(collector)


# ------------------------------------------------------------------------------------------------ frames and shapes
def test_workers_contribute_rows_and_ids_follow_the_time_of_the_start():
    batches = gathered(sync([counting(2), counting(3)], frames_per_batch=8, total_frames=12))
    assert [tuple(batch.batch_size) for batch in batches] == [(2, 4), (2, 2)]
    data = torch.cat(batches, 1)
    assert data["observation"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert data["collector", "traj_ids"].tolist() == [[0, 0, 2, 2, 4, 4], [1, 1, 1, 3, 3, 3]]
    assert batches[0].names == [None, "time"] and batches[0].device is None


@pytest.mark.parametrize(
    ("dim", "shape", "observation"),
    [
        ("stack", (2, 2, 2), [[[0, 1], [0, 1]], [[0, 1], [0, 1]]]),
        (0, (4, 2), [[0, 1]] * 4),
        (-1, (2, 4), [[0, 1, 0, 1]] * 2),
        (1, (2, 4), [[0, 1, 0, 1]] * 2),
    ],
)
def test_results_are_stacked_or_concatenated(dim, shape, observation):
    with sync([counting(batch_size=[2])] * 2, frames_per_batch=8, cat_results=dim) as collector:
        batch = collector.rollout()
    assert tuple(batch.batch_size) == shape and batch["observation"].squeeze(-1).tolist() == observation
    assert batch.names[-1] == "time" and batch["next", "done"].shape == (*shape, 1)


def test_results_cannot_be_joined_otherwise():
    with pytest.raises(CollectorError, match="cat_results is 'cat'"):
        sync([counting()], frames_per_batch=2, cat_results="cat")
    with (
        sync([counting()] * 2, frames_per_batch=4, cat_results=1) as collector,
        pytest.raises(CollectorError, match="a worker's batch has 1 dimensions"),
    ):
        collector.rollout()


def test_frames_are_those_of_all_workers_or_of_one():
    assert [b.numel() for b in gathered(sync([counting()] * 2, frames_per_batch=8, total_frames=20))] == [8, 8, 4]
    one = MultiAsyncCollector(
        counting(), num_workers=2, frames_per_batch=8, total_frames=20, mp_start_method="fork", track_traj_ids=False
    )
    batches = gathered(one)
    assert sorted(b.numel() for b in batches) == [4, 8, 8] and "collector" not in batches[0]


def test_a_budget_that_does_not_divide_is_an_error_or_rounded_by_request():
    makers = [counting(batch_size=[3])] * 2
    with pytest.raises(CollectorError, match="frames_per_batch=10 does not divide by the 6 environments"):
        sync(makers, frames_per_batch=10)
    assert [b.numel() for b in gathered(sync(makers, frames_per_batch=10, total_frames=20, rounding="up"))] == [12, 12]


def test_a_group_keeps_its_batch_size_and_texts_travel():
    class Talking(GroupCountingEnv):
        def _reset(self, tensordict=None, **kwargs):
            return self._told(super()._reset(tensordict, **kwargs))

        def _step(self, tensordict):
            return self._told(super()._step(tensordict))

        def _told(self, td):
            td["agents"].batch_size = [2]
            return td.set("said", f"count {int(td['agents', 'observation'].max())}")

    with sync([Talking] * 2, frames_per_batch=6) as collector:
        batch = collector.rollout()
    assert batch["agents"].batch_size == (2, 3, 2)
    assert batch["agents", "observation"].squeeze(-1).tolist() == [[[0, 0], [1, 1], [2, 2]]] * 2
    assert [list(row) for row in batch["said"]] == [["count 0", "count 1", "count 2"]] * 2
    assert [list(row) for row in batch["next", "said"]] == [["count 1", "count 2", "count 3"]] * 2


@pytest.mark.parametrize("kind", [MultiSyncCollector, AsyncCollector])
def test_batches_equal_those_of_one_process(kind):
    policy = constant_policy(0.25)
    alone = Collector(counting(batch_size=[2])(), policy, frames_per_batch=8, total_frames=24, set_truncated=False)
    makers = [counting(batch_size=[2])] if kind is MultiSyncCollector else counting(batch_size=[2])
    for ours, reference in zip(
        gathered(kind(makers, policy, frames_per_batch=8, total_frames=24, mp_start_method="fork")), alone, strict=True
    ):
        ours = ours[0] if kind is MultiSyncCollector else ours
        assert (ours == reference).all() and set(ours.keys(True, True)) == set(reference.keys(True, True))


# ------------------------------------------------------------------------------------------------ arguments
def test_what_makes_environments_is_counted_and_named():
    with pytest.raises(CollectorError, match="say for how many workers"):
        sync(counting(), frames_per_batch=2)
    with pytest.raises(CollectorError, match="2 entries, num_workers is 3"):
        sync([counting()] * 2, num_workers=3, frames_per_batch=2)
    with pytest.raises(CollectorError, match=r"holds an environment \(CountingEnv\)"):
        sync([CountingEnv()], frames_per_batch=2)
    with pytest.raises(CollectorError, match=r"3 values .* are given for 2 workers"):
        sync([counting()] * 2, frames_per_batch=2, create_env_kwargs=[{}] * 3)
    with pytest.raises(CollectorError, match=r"batch sizes \[\(1,\), \(2,\)\]"):
        sync([counting(batch_size=[1]), counting(batch_size=[2])], frames_per_batch=6)
    with pytest.raises(CollectorError, match="exclude each other"):
        sync([counting()], constant_policy(0.5), policy_factory=constant_policy, frames_per_batch=2)
    with pytest.raises(CollectorError, match=r"preemptive_threshold is 1\.5"):
        sync([counting()], frames_per_batch=2, preemptive_threshold=1.5)


def test_each_worker_has_its_arguments_and_its_factory():
    collector = sync(
        ArrayCountingEnv, num_workers=2, frames_per_batch=8, create_env_kwargs=[{"length": 2}, {"length": 4}],
        policy_factory=[partial(constant_policy, 0.25), partial(constant_policy, 0.75)],
    )  # fmt: skip
    with collector:
        batch = collector.rollout()
    assert batch["next", "done"].squeeze(-1).sum(1).tolist() == [2, 1]
    assert batch["action"].squeeze(-1).tolist() == [[0.25] * 4, [0.75] * 4]


def test_the_first_thing_in_a_worker_is_init_fn():
    def ready():
        torch.set_default_dtype(torch.float64)

    class Typed(CountingEnv):
        def __init__(self):
            assert torch.get_default_dtype() is torch.float64
            torch.set_default_dtype(torch.float32)
            super().__init__()

    gathered(sync([Typed], frames_per_batch=2, total_frames=2, init_fn=ready))
    assert torch.get_default_dtype() is torch.float32


def test_functions_of_a_module_reach_workers_that_import_anew():
    collector = sync([counting(2)] * 2, constant_policy(0.5), frames_per_batch=4, mp_start_method=None)
    with collector:
        assert (collector.rollout()["action"] == 0.5).all()
        collector.update_policy_weights_(constant_policy(0.75))
        assert (collector.rollout()["action"] == 0.75).all()


def test_lambdas_are_sent_by_value():
    import pickle

    from rl_collectors.process.payload import packed

    length = 4
    make = pickle.loads(packed(lambda: CountingEnv(length), "create_env_fn"))
    assert int(make().length) == 4


def test_older_names_are_the_same_classes():
    assert MultiSyncDataCollector is MultiSyncCollector
    assert MultiaSyncDataCollector is MultiAsyncCollector and aSyncDataCollector is AsyncCollector


# ------------------------------------------------------------------------------------------------ steering
def test_random_frames_come_first_with_the_same_entries():
    class Actor(nn.Module):
        in_keys, out_keys = ["observation"], ["action", "log_prob"]

        def forward(self, td):
            return td.set("action", td["observation"] * 0 + 0.5).set("log_prob", td["observation"][..., 0] - 1)

    with sync([counting(99)] * 2, Actor(), frames_per_batch=4, init_random_frames=6) as collector:
        first, second, third = (collector.rollout() for _ in range(3))
    assert set(first.keys()) == set(third.keys()) and (first["log_prob"] == 0).all()
    assert (first["action"] != 0.5).all() and (second["action"] != 0.5).all() and (third["action"] == 0.5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_reset_at_each_iteration_starts_new_trajectories(kind):
    with kind(
        [counting(9)], frames_per_batch=2, total_frames=6, reset_at_each_iter=True, mp_start_method="fork"
    ) as collector:
        batches = [batch.flatten() for batch in collector]
    assert [batch["observation"].flatten().tolist() for batch in batches] == [[0, 1]] * 3
    assert [batch["collector", "traj_ids"].tolist() for batch in batches] == [[0, 0], [1, 1], [2, 2]]


def test_a_reset_of_one_worker_leaves_the_others_alone():
    with sync([counting(9)] * 2, frames_per_batch=4) as collector:
        collector.rollout()
        collector.reset(1)
        batch = collector.rollout()
        assert batch["observation"].squeeze(-1).tolist() == [[2, 3], [0, 1]]
        assert batch["collector", "traj_ids"].tolist() == [[0, 0], [2, 2]]
        collector.reset()
        assert collector.rollout()["observation"].squeeze(-1).tolist() == [[0, 1], [0, 1]]
        with pytest.raises(CollectorError, match="no worker 2"):
            collector.reset(2)


def test_a_cut_is_a_truncation_and_a_real_end_stays_one():
    makers = [partial(CountingEnv, length, truncate=True) for length in (4, 9)]

    class Terminating(CountingEnv):
        def __init__(self):
            super().__init__(length=4)
            self.done_spec = CountingEnv(truncate=True).done_spec

    makers[0] = Terminating
    with sync(makers, frames_per_batch=8, set_truncated=True) as collector:
        first, second = collector.rollout(), collector.rollout()
    last = {name: first["next", name][:, -1, 0].tolist() for name in ("terminated", "truncated", "done")}
    assert last == {"terminated": [True, False], "truncated": [False, True], "done": [True, True]}
    assert second["collector", "traj_ids"].tolist() == [[2, 2, 2, 2], [1, 1, 1, 1]]  # a cut ends no trajectory
    with pytest.raises(CollectorError, match="needs the end flag 'truncated', which CountingEnv does not have"):
        sync([CountingEnv], frames_per_batch=2, set_truncated=True)


def test_whole_trajectories_come_from_all_workers():
    collector = sync([counting(2), counting(5)], frames_per_batch=6, total_frames=24, trajs_per_batch=2)
    batches = gathered(collector)
    lengths = [batch["collector", "mask"].sum(1).tolist() for batch in batches]
    assert lengths == [
        [2, 2],
        [5, 2],
        [2, 2],
        [5, 2],
    ]  # ends at the steps 2 4 5 6 8 10 10 12, that at 5 the other worker's
    for batch in batches:
        for row, mask in zip(batch["observation"].squeeze(-1), batch["collector", "mask"], strict=True):
            assert row[mask].tolist() == list(range(int(mask.sum()))) and (row[~mask] == 0).all()


def test_stragglers_are_cut_and_their_frames_not_counted():
    done = multiprocessing.get_context("fork").Event()

    class Fast(CountingEnv):
        """Tells when it is at its last step."""

        def _step(self, tensordict):
            if self.count.item() == 799:
                done.set()
            return super()._step(tensordict)

    class Late(CountingEnv):
        """Takes its step 150 after that, and then many small ones."""

        def _step(self, tensordict):
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 150:
                done.wait(30)
            torch.randn(200, 200) @ torch.randn(200, 200)
            return super()._step(tensordict)

    with sync(
        [partial(Fast, 1600), Late], frames_per_batch=2 * 800, preemptive_threshold=0.5, track_policy_version=True
    ) as collector:
        first, second = collector.rollout(), collector.rollout()
    mask = first["collector", "mask"]
    taken = int(mask[1].sum())
    assert mask[0].all() and 0 < taken < 800 and mask[1, :taken].all()
    assert collector.frames == mask.sum() + second["collector", "mask"].sum()
    assert (first["collector", "traj_ids"][1, taken:] == -1).all() and (first["collector", "traj_ids"][mask] >= 0).all()
    assert (first["observation"][1, taken:] == 0).all() and (first["policy_version"][1, taken:] == -1).all()
    ended = first["next", "done"][1, :taken].sum() + second["next", "done"][1].sum()
    assert len(torch.cat([first, second], 1)["collector", "traj_ids"][1].unique()) - 1 in (ended, ended + 1)
    here = torch.cat([first["observation"][1, :taken], second["observation"][1, :1]]).flatten()
    assert ((here[1:] == here[:-1] + 1) | (here[1:] == 0)).all()  # the next batch goes on where this one was cut


def test_a_recurrent_policy_keeps_its_memory_from_batch_to_batch():
    class Remembering(CountingEnv):
        """Carries the entry "hidden" from the policy's "next" to the following root."""

        def __init__(self, length):
            super().__init__(length=length)
            self.observation_spec["hidden"] = Unbounded(shape=(1,))

        def _reset(self, tensordict=None, **kwargs):
            return super()._reset(tensordict, **kwargs).set("hidden", torch.zeros(1))

        def _step(self, tensordict):
            return super()._step(tensordict).set("hidden", tensordict["next", "hidden"].clone())

    class Memory(StateCarrier, nn.Module):
        in_keys, out_keys = ["hidden"], ["action", ("next", "hidden")]

        def __init__(self):
            super().__init__()
            self.step = nn.Parameter(torch.ones(1))

        def carried_state(self):
            return CarriedState({"hidden": Unbounded(shape=(1,))}, [])

        def forward(self, td):
            return td.set("action", td["hidden"] * 0.1).set(("next", "hidden"), td["hidden"] + self.step)

    with sync([partial(Remembering, 3), partial(Remembering, 5)], Memory(), frames_per_batch=8) as collector:
        data = torch.cat([collector.rollout(), collector.rollout()], 1)
        assert torch.equal(data["hidden"], data["observation"])  # one more with each step, zero after a reset
        assert torch.allclose(data["action"], data["observation"] * 0.1)
        memory = Memory()
        memory.step.data.fill_(2.0)
        collector.update_policy_weights_(memory)
        batch = collector.rollout()
        assert torch.equal(batch["next", "hidden"], batch["hidden"] + 2)


# ------------------------------------------------------------------------------------------------ seeds, checkpoints
def actions(seed=None, workers=3, frames=12):
    with sync([counting(99)] * workers, frames_per_batch=frames) as collector:
        following = None if seed is None else collector.set_seed(seed)
        return collector.rollout()["action"].squeeze(-1), following


def test_workers_and_runs_have_streams_of_their_own():
    first, following = actions(0)
    second, _ = actions(1)
    again, same = actions(0)
    assert torch.equal(first, again) and following == same == 795726461
    everything = torch.cat([first, second]).tolist()
    assert len({tuple(row) for row in everything}) == 6
    with sync([counting(99)] * 2, frames_per_batch=8) as collector:
        assert collector.set_seed(3, static_seed=True) == 3
        one, two = collector.rollout()["action"]
    assert torch.equal(one, two)


def test_without_a_seed_workers_follow_torchs_generator():
    torch.manual_seed(5)
    first, _ = actions()
    torch.manual_seed(5)
    assert torch.equal(first, actions()[0])
    assert not torch.equal(first, actions()[0]) and len({tuple(row) for row in first.tolist()}) == 3


@pytest.mark.parametrize("kind", [MultiSyncCollector, AsyncCollector])
def test_a_run_that_was_resumed_equals_one_that_was_not(kind):
    def make():
        source = [counting(5), counting(7)] if kind is MultiSyncCollector else counting(5)
        torch.manual_seed(1)
        return kind(
            source, noisy(), frames_per_batch=4, total_frames=24, track_policy_version=True, mp_start_method="fork"
        )

    straight = gathered(make())
    first = make()
    with first:
        batches = iter(first)
        begun = [next(batches), next(batches)]
        state = first.state_dict()
    torch.manual_seed(99)
    with make() as second:
        second.load_state_dict(state)
        finished = begun + list(second)
    assert len(straight) == len(finished) == 6
    for one, other in zip(straight, finished, strict=True):
        assert (one == other).all()


def noisy():
    class Noise(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.1))

        def forward(self, observation):
            return (torch.randn_like(observation) * self.scale).clamp(-1, 1)

    return TensorDictModule(Noise(), ["observation"], ["action"])


def test_the_state_of_another_number_of_workers_is_refused():
    with sync([counting()] * 2, frames_per_batch=4) as two:
        state = two.state_dict()
    with (
        sync([counting()], frames_per_batch=4) as one,
        pytest.raises(CollectorError, match="state is of 2 workers, this collector has 1"),
    ):
        one.load_state_dict(state)


# ------------------------------------------------------------------------------------------------ buffers
class Rows:
    """A buffer of one dimension: every batch dimension of what it gets is rows."""

    def __init__(self):
        self.rows = []

    def extend(self, data):
        self.rows.append(data.reshape(-1).clone())


@pytest.mark.parametrize("background", [False, True])
def test_the_buffer_gets_the_rows_that_extending_by_hand_gives(background):
    by_hand, buffer = Rows(), Rows()
    for batch in gathered(sync([counting()] * 2, constant_policy(0.5), frames_per_batch=8, total_frames=24)):
        by_hand.extend(batch)
    collector = sync([counting()] * 2, constant_policy(0.5), frames_per_batch=8, total_frames=24, replay_buffer=buffer)
    if background:
        collector.start()
        collector._background._thread.join(20)
        collector.async_shutdown()
    else:
        assert gathered(collector) == [None] * 3
    assert (torch.cat(buffer.rows) == torch.cat(by_hand.rows)).all() and collector.frames == 24


def test_lanes_of_a_buffer_need_a_fixed_order():
    class Lanes(Rows):
        class storage:  # noqa: N801
            ndim = 2

    with pytest.raises(CollectorError, match="ndim=2, one lane for each environment"):
        MultiAsyncCollector([counting()], frames_per_batch=2, replay_buffer=Lanes(), mp_start_method="fork")


def test_numbers_tell_what_was_done():
    with sync([counting()] * 2, constant_policy(0.5), frames_per_batch=6) as collector:
        collector.rollout()
        collector.update_policy_weights_()
        stats = collector.stats()
    assert {name: stats[name] for name in ("frames", "iterations", "workers", "policy_version", "trajectories")} == {
        "frames": 6, "iterations": 1, "workers": 2, "policy_version": 1, "trajectories": 2
    }  # fmt: skip
    assert "2 workers of ArrayCountingEnv" in repr(collector)


def test_an_environment_is_made_in_the_worker_only():
    class Counted(CountingEnv):
        made = 0

        def __init__(self):
            super().__init__()
            Counted.made += 1

    gathered(sync([Counted] * 2, frames_per_batch=4, total_frames=4))
    assert Counted.made == 0 and issubclass(Counted, EnvBase)


class ForgetfulEnv(ArrayCountingEnv):
    """Cannot go on with an episode from its state."""

    def load_state_dict(self, state_dict):
        return False


@pytest.mark.parametrize("kind", [Collector, MultiSyncCollector, MultiAsyncCollector])
def test_episodes_that_cannot_go_on_after_a_resume_are_new_ones_with_new_ids(kind):
    def make():
        maker = partial(ForgetfulEnv, 99)
        several = {} if kind is Collector else {"mp_start_method": "fork"}
        return kind(maker if kind is Collector else [maker], frames_per_batch=2, total_frames=20, **several)

    with make() as first:
        next(iter(first))
        state = first.state_dict()
        before = next(iter(first))
    with make() as second:
        second.load_state_dict(state)
        rows = torch.cat([batch.reshape(-1) for batch in second])  # the first few may have been collected before
    begun = rows[rows["observation"].flatten() == 0]
    assert len(begun) == 1
    assert begun["collector", "traj_ids"].item() not in before["collector", "traj_ids"]
