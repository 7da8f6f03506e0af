import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_collectors import Collector, SyncDataCollector
from rl_core import ExplorationType, exploration_type, reset_rows
from rl_core.errors import CollectorError, PolicyError
from rl_core.testing import ArrayCountingEnv, CountingEnv

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
