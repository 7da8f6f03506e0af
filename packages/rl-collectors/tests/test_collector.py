import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector, SyncDataCollector
from rl_core import ExplorationType, exploration_type, registry, reset_rows
from rl_core.errors import CollectorError, PolicyError
from rl_core.specs import Categorical
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_core.transforms import Transform

KINDS = [CountingEnv, ArrayCountingEnv]


def linear():
    return TensorDictModule(nn.Linear(1, 1), ["observation"], ["action"])


@pytest.mark.parametrize("kind", KINDS)
def test_batches_go_on_and_trajectories_are_numbered_in_order_of_start(kind):
    batches = list(Collector(kind(length=[2, 3], batch_size=[2]), frames_per_batch=6, total_frames=12))
    assert [b.batch_size for b in batches] == [torch.Size([2, 3])] * 2
    data = torch.cat(batches, 1)
    assert data["observation"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert data["collector", "traj_ids"].tolist() == [[0, 0, 2, 2, 4, 4], [1, 1, 1, 3, 3, 3]]
    assert batches[0].names == [None, "time"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_frames_of_all_batches_add_up_to_the_total(kind):
    sizes = [b.numel() for b in Collector(kind(batch_size=[10]), frames_per_batch=150, total_frames=1000)]
    assert sizes == [150] * 6 + [100]


def test_a_budget_that_does_not_divide_is_an_error_or_rounded_by_request():
    with pytest.raises(CollectorError, match=r"frames_per_batch=145 does not divide by the 10 environments.*use 150"):
        Collector(CountingEnv(batch_size=[10]), frames_per_batch=145)
    collector = Collector(CountingEnv(batch_size=[10]), frames_per_batch=145, rounding="up")
    assert collector.rollout().batch_size == (10, 15)


def test_a_real_end_at_the_cut_is_kept_and_the_others_are_truncated():
    lengths = [9] * 10
    lengths[3] = 5
    env = ArrayCountingEnv(length=lengths, batch_size=[10])
    env.done_spec = CountingEnv(batch_size=[10], truncate=True).done_spec
    nxt = Collector(env, frames_per_batch=50, set_truncated=True).rollout()["next"]
    last = {name: nxt[name][:, -1].squeeze(-1) for name in ("terminated", "truncated", "done")}
    assert last["terminated"].tolist() == [i == 3 for i in range(10)]
    assert last["truncated"].tolist() == [i != 3 for i in range(10)]
    assert last["done"].all()
    assert torch.equal(nxt["done"], nxt["terminated"] | nxt["truncated"])


def test_splitting_gives_one_row_for_each_trajectory():
    data = Collector(CountingEnv(length=50), frames_per_batch=150, split_trajs=True).rollout()
    assert data.batch_size == (3, 50) and data["collector", "mask"].all()


def test_a_batch_is_the_readers_to_keep():
    collector = Collector(ArrayCountingEnv(), frames_per_batch=4)
    first = collector.rollout()
    kept = first.clone()
    collector.rollout()
    assert (first == kept).all()


def test_an_environment_that_was_given_stays_open_and_one_that_was_made_is_closed():
    given = CountingEnv()
    list(Collector(given, frames_per_batch=2, total_frames=4))
    assert not given.is_closed
    made = []

    def make():
        made.append(CountingEnv())
        return made[0]

    list(Collector(make, frames_per_batch=2, total_frames=4))
    assert made[0].is_closed


def test_an_interrupt_closes_what_was_made():
    collector = Collector(lambda: CountingEnv(), frames_per_batch=2)

    def interrupt(batch):
        raise KeyboardInterrupt

    collector.post_collect_hook = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(iter(collector))
    assert collector.env.is_closed
    with pytest.raises(CollectorError, match="shut down"):
        collector.rollout()


@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_that_was_given_acts_itself(kind):
    policy = linear()
    collector = Collector(kind(length=9), policy, frames_per_batch=3)
    nn.init.zeros_(policy.module.weight)
    nn.init.constant_(policy.module.bias, 0.25)
    assert (collector.rollout()["action"] == 0.25).all()
    assert not collector.rollout()["action"].requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_random_frames_come_first_with_the_same_entries(kind):
    class Actor(nn.Module):
        in_keys, out_keys = ["observation"], ["action", "action_log_prob"]

        def forward(self, td):
            return td.set("action", td["observation"] * 0 + 0.5).set("action_log_prob", td["observation"][..., 0] - 1)

    collector = Collector(kind(length=99, batch_size=[2]), Actor(), frames_per_batch=4, init_random_frames=6)
    first, second, third = (collector.rollout() for _ in range(3))
    assert set(first.keys()) == set(third.keys())
    assert (first["action"] != 0.5).any() and (second["action"] != 0.5).any() and (third["action"] == 0.5).all()
    assert (first["action_log_prob"] == 0).all() and first["action_log_prob"].shape == (2, 2)


def test_exploration_is_random_while_the_policy_acts():
    seen = []

    def policy(td):
        seen.append(exploration_type())
        return td.set("action", td["observation"] * 0)

    Collector(CountingEnv(), policy, frames_per_batch=1).rollout()
    assert seen == [ExplorationType.RANDOM] and exploration_type() is None


@pytest.mark.parametrize("kind", KINDS)
def test_reset_at_each_iteration_starts_new_trajectories(kind):
    collector = Collector(kind(length=9), frames_per_batch=2, reset_at_each_iter=True)
    first, second = collector.rollout(), collector.rollout()
    assert second["observation"].flatten().tolist() == [0, 1]
    assert first["collector", "traj_ids"].tolist() == [0, 0] and second["collector", "traj_ids"].tolist() == [1, 1]


def test_the_buffer_gets_the_rows_that_extending_by_hand_gives():
    class Buffer:
        rows = []

        def extend(self, batch):
            self.rows.append(batch)

    buffer = Buffer()
    yielded = list(Collector(CountingEnv(), frames_per_batch=3, total_frames=6, replay_buffer=buffer))
    assert yielded == [None, None] and torch.cat(buffer.rows)["observation"].flatten().tolist() == [0, 1, 2, 3, 4, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_collector_resumes_where_it_stopped(kind):
    env, policy = kind(length=[2, 3], batch_size=[2]), linear()
    straight = Collector(env, policy, frames_per_batch=4)
    straight.rollout()
    state = straight.state_dict()
    again = Collector(env, policy, frames_per_batch=4)
    again.load_state_dict(state)
    batch = again.rollout()
    assert again.frames == 8 and batch["observation"].squeeze(-1).tolist() == [[0, 1], [2, 0]]
    assert batch["collector", "traj_ids"].tolist() == [[2, 2], [1, 3]]


def test_weights_reach_a_copy_on_another_device_kind_by_update():
    policy = linear()
    collector = Collector(CountingEnv(length=9), policy, frames_per_batch=2, track_policy_version=True)
    collector.policy = linear()
    collector._runner.use(collector.policy)
    nn.init.zeros_(policy.module.weight)
    nn.init.constant_(policy.module.bias, 0.75)
    collector.update_policy_weights_()
    batch = collector.rollout()
    assert (batch["action"] == 0.75).all() and (batch["policy_version"] == 1).all()
    collector.update_policy_weights_({"module.weight": torch.zeros(1, 1), "module.bias": torch.zeros(1)})
    assert (collector.rollout()["action"] == 0).all()


def test_a_policy_without_the_action_is_named():
    policy = TensorDictModule(nn.Linear(1, 1), ["observation"], ["acton"])
    with pytest.raises(PolicyError, match=r"'acton'.*'action'"):
        Collector(ArrayCountingEnv(), policy, frames_per_batch=2).rollout()


def test_an_endless_collector_has_no_length_and_says_so():
    assert len(Collector(CountingEnv(), frames_per_batch=4, total_frames=10)) == 3
    with pytest.raises(CollectorError, match="no end"):
        len(Collector(CountingEnv(), frames_per_batch=4))


def test_the_older_name_is_the_same_class():
    assert SyncDataCollector is Collector


class Stateless(CountingEnv):
    """Takes its count from the data, as stateless environments do."""

    def _step(self, tensordict):
        self.count = tensordict["observation"].clone()
        return super()._step(tensordict)

    def _reset(self, tensordict=None, **kwargs):
        assert reset_rows(tensordict) is None or isinstance(tensordict, TensorDict)
        return super()._reset(tensordict, **kwargs)


def test_a_stateless_environment_collects_like_any_other():
    data = Collector(Stateless(length=[2, 9], batch_size=[2]), frames_per_batch=8).rollout()
    assert data["observation"].squeeze(-1).tolist() == [[0, 1, 0, 1], [0, 1, 2, 3]]


def test_an_exhausted_collector_gives_nothing_more():
    collector = Collector(CountingEnv(), frames_per_batch=2, total_frames=4)
    assert len(list(collector)) == 2 and list(collector) == []


@pytest.mark.parametrize("kind", KINDS)
def test_some_rows_are_reset_and_get_new_trajectories(kind):
    collector = Collector(kind(length=9, batch_size=[3]), frames_per_batch=6)
    collector.rollout()
    for index in (1, [1], torch.tensor([False, True, False])):
        before = collector.rollout()
        collector.reset(index)
        after = collector.rollout()
        assert after["observation"][:, 0, 0].tolist() == [
            before["next", "observation"][0, -1, 0] % 9, 0, before["next", "observation"][2, -1, 0] % 9
        ]  # fmt: skip
        assert after["collector", "traj_ids"][1, 0] > before["collector", "traj_ids"].max()
        assert (after["done"] == 0).all()
    with pytest.raises(CollectorError, match="rows 0 to 2"):
        collector.reset(3)
    with pytest.raises(CollectorError, match="mask of 2 rows; 3 environments"):
        collector.reset(torch.tensor([True, False]))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_trajectories_are_put_together_over_batches(kind):
    collector = Collector(kind(length=[3, 4], batch_size=[2]), frames_per_batch=4, total_frames=24, trajs_per_batch=2)
    batches = list(collector)  # ends at steps 3 4 6 8 9 12 12
    assert [b["collector", "mask"].sum(1).tolist() for b in batches] == [[3, 4], [3, 4], [3, 3], [4]]
    for batch in batches:
        for row in batch:
            steps = row[row["collector", "mask"]]
            assert steps["observation"].flatten().tolist() == list(range(len(steps)))
            assert steps["next", "done"].flatten().tolist() == [False] * (len(steps) - 1) + [True]
            assert len(steps["collector", "traj_ids"].unique()) == 1
    assert batches[0].names == [None, "time"] and collector.frames == 24


def test_whole_trajectories_may_come_one_after_the_other():
    batch = Collector(CountingEnv(length=3), frames_per_batch=4, trajs_per_batch=2, traj_format="cat").rollout()
    assert batch["observation"].flatten().tolist() == [0, 1, 2] * 2 and batch.names == ["time"]


def test_trajectories_that_a_reset_breaks_off_do_not_come():
    collector = Collector(CountingEnv(length=3), frames_per_batch=4, trajs_per_batch=1)
    assert collector.rollout()["observation"].flatten().tolist() == [0, 1, 2]
    collector.reset()  # after one step of the second
    assert collector.rollout()["collector", "traj_ids"].flatten().tolist() == [2, 2, 2]


def test_arguments_about_trajectories_exclude_each_other():
    with pytest.raises(CollectorError, match="leave split_trajs out"):
        Collector(CountingEnv(), frames_per_batch=4, trajs_per_batch=1, split_trajs=True)
    with pytest.raises(CollectorError, match="track_traj_ids=True"):
        Collector(CountingEnv(), frames_per_batch=4, trajs_per_batch=1, track_traj_ids=False)
    with pytest.raises(CollectorError, match="trajs_per_batch is 0"):
        Collector(CountingEnv(), frames_per_batch=4, trajs_per_batch=0)
    with pytest.raises(CollectorError, match="traj_format is 'flat'"):
        Collector(CountingEnv(), frames_per_batch=4, trajs_per_batch=1, traj_format="flat")


def test_open_trajectories_are_part_of_a_checkpoint():
    def make():
        return Collector(CountingEnv(length=3), linear(), frames_per_batch=4, total_frames=24, trajs_per_batch=2)

    torch.manual_seed(0)
    straight = list(make())
    torch.manual_seed(0)
    first = make()
    begun = [next(iter(first))]
    again = make()
    again.load_state_dict(first.state_dict())
    finished = begun + list(again)
    assert len(straight) == len(finished) == 4
    assert all(
        (one["observation"] == other["observation"]).all() for one, other in zip(straight, finished, strict=True)
    )


def test_a_buffer_gets_whole_trajectories_flat():
    rows = []

    class Buffer:
        def extend(self, batch):
            rows.append(batch["observation"].flatten().tolist())

    collector = Collector(
        CountingEnv(length=3), frames_per_batch=4, total_frames=8, trajs_per_batch=5, replay_buffer=Buffer()
    )
    assert list(collector) == [None, None] and rows == [[0, 1, 2], [0, 1, 2]]


def test_postproc_and_hooks_see_each_batch_in_their_order():
    seen = []
    collector = Collector(
        CountingEnv(),
        frames_per_batch=2,
        total_frames=4,
        pre_collect_hook=lambda: seen.append("before"),
        postproc=lambda batch: batch.set("twice", batch["observation"] * 2),
        post_collect_hook=lambda batch: seen.append(batch["twice"].flatten().tolist()),
    )
    list(collector)
    assert seen == ["before", [0, 2], "before", [4, 6]]


def test_the_longest_episode_is_a_matter_of_the_collector():
    class StepCounter(Transform):
        def __init__(self, max_steps):
            super().__init__(["observation"], ["step_count"])
            self.max_steps = max_steps

        def _step(self, tensordict, next_tensordict):
            steps = next_tensordict["observation"] >= self.max_steps
            next_tensordict.set("truncated", steps).set("done", steps | next_tensordict["terminated"])
            return next_tensordict

        def _reset(self, tensordict, tensordict_reset):
            return tensordict_reset

    with registry.isolated():
        registry.transforms.register("StepCounter", StepCounter, override=True)
        env = CountingEnv(length=9, truncate=True)
        data = Collector(env, frames_per_batch=6, max_frames_per_traj=2).rollout()
        assert data["observation"].flatten().tolist() == [0, 1] * 3
        assert data["next", "truncated"].flatten().tolist() == [False, True] * 3
        env = CountingEnv(length=9, truncate=True)
        env.observation_spec["step_count"] = env.observation_spec["observation"].clone()
        with pytest.raises(CollectorError, match="'step_count', which the environment has already"):
            Collector(env, frames_per_batch=6, max_frames_per_traj=2)


def test_where_the_policy_acts_and_batches_live_is_said_once_or_one_by_one():
    policy = linear()
    collector = Collector(CountingEnv(), policy, frames_per_batch=2, device="cpu")
    assert collector.policy is policy and collector.rollout().device == torch.device("cpu")
    assert Collector(CountingEnv(), policy, frames_per_batch=2).rollout().device is None
    meta = Collector(CountingEnv(), policy, frames_per_batch=2, storing_device="meta", policy_device="cpu")
    assert meta.rollout()["observation"].device.type == "meta" and meta.policy_device == torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_policy_acts_as_the_bare_one(kind):
    policy = linear()
    bare, compiled = (
        Collector(kind(length=9, batch_size=[2]), policy, frames_per_batch=6, compile_policy=option)
        for option in (None, {"backend": "aot_eager"})
    )
    assert torch.allclose(bare.rollout()["action"], compiled.rollout()["action"])
    nn.init.constant_(policy.module.bias, 0.75)  # the parameters are the policy's, not copies in compiled code
    nn.init.zeros_(policy.module.weight)
    assert (compiled.rollout()["action"] == 0.75).all()


def test_what_cannot_be_compiled_says_why():
    def policy(tensordict):
        return tensordict.set("action", tensordict["observation"])

    with pytest.raises(CollectorError, match="inputs and outputs are not bound to keys"):
        Collector(CountingEnv(), policy, frames_per_batch=2, compile_policy=True)
    with pytest.raises(CollectorError, match="cudagraph_policy needs the policy on a CUDA device"):
        Collector(CountingEnv(), linear(), frames_per_batch=2, cudagraph_policy=True)
    with pytest.raises(CollectorError, match="exclude each other"):
        Collector(CountingEnv(), linear(), frames_per_batch=2, cudagraph_policy=True, compile_policy=True)


def test_policies_are_modules_functions_factories_or_nothing():
    assert (Collector(CountingEnv(), lambda td: td.set("action", td["observation"] * 0), frames_per_batch=2).rollout()[
        "action"
    ] == 0).all()  # fmt: skip
    assert (Collector(CountingEnv(), lambda observation: observation * 0 + 0.5, frames_per_batch=2).rollout()["action"]
            == 0.5).all()  # fmt: skip
    assert Collector(CountingEnv(), policy_factory=linear, frames_per_batch=2).rollout()["action"].shape == (2, 1)
    assert Collector(CountingEnv(), nn.Linear(1, 1), frames_per_batch=2).rollout()["action"].shape == (2, 1)
    with pytest.raises(CollectorError, match="exclude each other"):
        Collector(CountingEnv(), linear(), policy_factory=linear, frames_per_batch=2)


def test_what_makes_no_environment_is_named():
    with pytest.raises(CollectorError, match="got int"):
        Collector(3, frames_per_batch=2)
    with pytest.raises(CollectorError, match="returned dict"):
        Collector(dict, frames_per_batch=2)


def test_random_actions_respect_masks():
    class Masked(CountingEnv):
        def __init__(self):
            super().__init__()
            self.action_spec = Categorical(3)
            self.observation_spec["action_mask"] = Categorical(2, shape=(3,), dtype=torch.bool)

        def _masked(self, td):
            return td.set("action_mask", torch.tensor([False, True, False]))

        def _reset(self, tensordict=None, **kwargs):
            return self._masked(super()._reset(tensordict, **kwargs))

        def _step(self, tensordict):
            return self._masked(super()._step(tensordict))

    assert Collector(Masked(), frames_per_batch=20).rollout()["action"].unique().tolist() == [1]


def test_numbers_tell_what_was_done():
    collector = Collector(CountingEnv(length=2), linear(), frames_per_batch=4)
    collector.rollout()
    collector.update_policy_weights_()
    stats = collector.stats()
    assert {name: stats[name] for name in ("frames", "iterations", "policy_version", "trajectories")} == {
        "frames": 4, "iterations": 1, "policy_version": 1, "trajectories": 2
    }  # fmt: skip
