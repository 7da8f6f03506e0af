"""The estimators' further options: other weights, chunks, groups, masks of agents, critics with memory."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import CarriedState, StateCarrier, recurrent_mode
from rl_core.errors import KeyMissingError, LossError, SpecError
from rl_core.specs import Unbounded
from rl_objectives import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, VTrace, generalized_advantage_estimate


def make_critic():
    torch.manual_seed(1)
    return TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])


def rollout(batch=(4, 7)):
    torch.manual_seed(0)
    steps = torch.randn(*batch[:-1], batch[-1] + 1, 3)
    observation, following = steps[..., :-1, :].clone(), steps[..., 1:, :].clone()
    done = torch.rand(*batch, 1) < 0.3
    terminated = done & (torch.rand(*batch, 1) < 0.5)
    following[done.squeeze(-1)] = torch.randn(int(done.sum()), 3)
    step = {"observation": following, "reward": torch.randn(*batch, 1), "done": done, "terminated": terminated}
    return TensorDict({"observation": observation, "next": step}, batch)


KINDS = [
    lambda **options: GAE(gamma=0.9, lmbda=0.8, **options),
    lambda **options: TD0Estimator(gamma=0.9, **options),
    lambda **options: TD1Estimator(gamma=0.9, **options),
    lambda **options: TDLambdaEstimator(gamma=0.9, lmbda=0.8, **options),
]


@pytest.mark.parametrize("kind", KINDS)
def test_other_weights_can_be_used_for_both_values_or_for_the_next_one(kind):
    critic, other = make_critic(), make_critic()
    with torch.no_grad():
        other.module.weight.mul_(-2)
    params = TensorDict.from_module(other)
    expected = kind(value_network=other)(rollout())
    result = kind(value_network=critic)(rollout(), params=params)
    torch.testing.assert_close(result["value_target"], expected["value_target"])
    result = kind(value_network=critic)(rollout(), params=TensorDict.from_module(critic), target_params=params)
    own = kind(value_network=critic)(rollout())
    torch.testing.assert_close(result["state_value"], own["state_value"])
    torch.testing.assert_close(result["next", "state_value"], expected["next", "state_value"])


@pytest.mark.parametrize("options", [{"value_chunk_size": 3}, {"num_chunks": 3}, {"num_chunks": 100}])
@pytest.mark.parametrize("way", [{}, {"shifted": True}, {"deactivate_vmap": True}])
def test_chunks_give_the_same_values(options, way):
    rows = []
    critic = make_critic()
    critic.module.register_forward_hook(lambda module, inputs, output: rows.append(inputs[0].shape[0]))
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=make_critic())(rollout())
    result = GAE(gamma=0.9, lmbda=0.8, value_network=critic, **way, **options)(rollout())
    torch.testing.assert_close(result["advantage"], expected["advantage"])
    assert len(rows) > 1


def test_options_of_the_field_are_accepted():
    GAE(gamma=0.9, lmbda=0.8, vectorized=True, device="cpu", shifted_budget=3, auto_reset_env=False)
    TD0Estimator(gamma=0.9, vectorized=False, device="cpu")


def test_what_would_merge_the_end_flags_is_refused():
    with pytest.raises(SpecError, match=r"no auto_reset_env=True, which treats an end by time limit as a true one"):
        GAE(gamma=0.9, lmbda=0.8, auto_reset_env=True)
    with pytest.raises(SpecError, match="num_chunks is at least 1; got 0"):
        GAE(gamma=0.9, lmbda=0.8, num_chunks=0)


def test_groups_are_standardised_apart():
    batch = rollout()
    batch["task"] = torch.arange(4).unsqueeze(-1).expand(4, 7) % 2
    raw = GAE(gamma=0.9, lmbda=0.8, value_network=make_critic())(batch.clone())["advantage"]
    scaled = GAE(gamma=0.9, lmbda=0.8, value_network=make_critic(), average_gae=True, group_key="task")(batch)
    for task in (0, 1):
        own = raw[batch["task"] == task]
        torch.testing.assert_close(scaled["advantage"][batch["task"] == task], (own - own.mean()) / own.std())
    with pytest.raises(KeyMissingError, match=r'GAE needs "task".*group_key'):
        GAE(gamma=0.9, lmbda=0.8, value_network=make_critic(), average_gae=True, group_key="task")(rollout())


@pytest.mark.parametrize("kind", KINDS)
def test_padding_gets_no_advantage_and_its_own_value_as_the_target(kind):
    batch = rollout()
    valid = torch.ones(4, 7, dtype=torch.bool)
    valid[1, 4:] = False
    batch["collector", "mask"] = valid
    batch["next", "reward"][~valid] = float("nan")
    out = kind(value_network=make_critic())(batch)
    assert (out["advantage"][~valid] == 0).all() and out["advantage"].isfinite().all()
    torch.testing.assert_close(out["value_target"][~valid], out["state_value"][~valid])


def group_rollout():
    """Two agents, [3, 6, 2]; the second dies in row 2 and is not there afterwards."""
    torch.manual_seed(0)
    done = torch.zeros(3, 6, 2, 1, dtype=torch.bool)
    done[:, 2, 1] = True
    step = {"reward": torch.randn(3, 6, 2, 1), "done": done, "terminated": done.clone()}
    step["value"] = torch.randn(3, 6, 2, 1)
    mask = torch.ones(3, 6, 2, dtype=torch.bool)
    mask[:, 3:, 1] = False
    agents = {"value": torch.randn(3, 6, 2, 1), "mask": mask}
    return TensorDict({"agents": agents, "next": {"agents": step}}, [3, 6])


def for_group(estimator):
    names = ("reward", "done", "terminated", "value", "advantage")
    estimator.set_keys(**{name: ("agents", name) for name in names}, value_target=("agents", "target"))
    return estimator


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_dead_agents_count_for_nothing(kind):
    batch = group_rollout()
    expected = for_group(kind())(batch.exclude(("agents", "mask")))
    dead = ~batch["agents", "mask"]
    for key in (("next", "agents", "reward"), ("next", "agents", "value")):
        batch[key][dead] = float("nan")
    out = for_group(kind())(batch)
    alive = batch["agents", "mask"]
    torch.testing.assert_close(out["agents", "target"][alive], expected["agents", "target"][alive])
    torch.testing.assert_close(out["agents", "advantage"][alive], expected["agents", "advantage"][alive])
    assert (out["agents", "advantage"][dead] == 0).all()
    torch.testing.assert_close(out["agents", "target"][dead], out["agents", "value"][dead])


def test_an_agent_that_waits_for_its_turn_earns_what_arrives_meanwhile():
    """It acts in rows 0 and 2; lambda 1, gamma 1, V 0: its returns are 1 + 2 + 3 and 3."""
    zero, never = torch.zeros(1, 3, 1, 1), torch.zeros(1, 3, 1, 1, dtype=torch.bool)
    agents = {"value": zero, "mask": torch.tensor([[[True], [False], [True]]])}
    step = {"reward": torch.tensor([1.0, 2.0, 3.0]).view(1, 3, 1, 1), "done": never, "terminated": never, "value": zero}
    batch = TensorDict({"agents": agents, "next": {"agents": step}}, [1, 3])
    for estimator in (GAE(gamma=1.0, lmbda=1.0), TD1Estimator(gamma=1.0), TDLambdaEstimator(gamma=1.0, lmbda=1.0)):
        assert for_group(estimator)(batch)["agents", "target"].flatten().tolist() == [6.0, 0.0, 3.0]
    # TD0 takes rows one by one, in any order.
    assert for_group(TD0Estimator(gamma=1.0))(batch)["agents", "target"].flatten().tolist() == [1.0, 0.0, 3.0]


def test_a_team_value_ignores_the_mask_of_agents_and_another_shape_is_refused():
    batch = rollout()
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=make_critic())(batch.clone())["advantage"]
    batch["agents", "mask"] = torch.zeros(4, 7, 2, dtype=torch.bool)
    torch.testing.assert_close(GAE(gamma=0.9, lmbda=0.8, value_network=make_critic())(batch)["advantage"], expected)
    batch = group_rollout()
    batch["agents", "mask"] = torch.ones(3, 6, 3, dtype=torch.bool)
    with pytest.raises(LossError, match=r'\("agents", "mask"\).*\[3, 6, 2\].*got torch.bool \[3, 6, 3\]'):
        for_group(TD0Estimator(gamma=0.9))(batch)


def test_values_that_would_broadcast_are_refused():
    batch = rollout()
    batch["state_value"] = batch["next", "state_value"] = torch.zeros(4, 7)
    for kind in KINDS:
        with pytest.raises(LossError, match="must have one shape"):
            kind()(batch)


class Counter(nn.Module, StateCarrier):
    """A critic with memory: the sum of its inputs since the last first step, from the stored state."""

    in_keys = ("observation", "memory", "is_init")
    out_keys = ("state_value", ("next", "memory"))

    def carried_state(self):
        return CarriedState(specs={"memory": Unbounded(shape=(1,))}, init_keys=["is_init"])

    def reads_sequences(self):
        return recurrent_mode() is True

    def forward(self, batch):
        observation, first = batch["observation"][..., :1], batch["is_init"]
        if not self.reads_sequences():
            total = observation + batch["memory"] * ~first
        else:
            carried, rows = batch["memory"][..., 0, :], []
            for t in range(observation.shape[-2]):
                carried = observation[..., t, :] + carried * ~first[..., t, :]
                rows.append(carried)
            total = torch.stack(rows, -2)
        return batch.set("state_value", total).set(("next", "memory"), total)


def lived_rollout():
    """[2, 5]: row 0 is truncated after step 1, row 1 after step 3; both start in the middle of an episode."""
    batch = rollout((2, 5))
    done = torch.zeros(2, 5, 1, dtype=torch.bool)
    done[0, 1] = done[1, 3] = True
    batch["next", "done"], batch["next", "terminated"] = done, torch.zeros_like(done)
    batch["is_init"] = torch.cat([torch.zeros(2, 1, 1, dtype=torch.bool), done[:, :-1]], 1)
    batch["memory"] = torch.full((2, 5, 1), 10.0)
    following = batch["observation"].roll(-1, 1)
    following[done.squeeze(-1)] = 100.0
    following[:, -1] = 50.0
    batch["next", "observation"] = following
    return batch


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_with_memory_is_read_along_time_and_starts_afresh_at_resets(kind, shifted):
    batch = lived_rollout()
    out = kind(value_network=Counter(), shifted=shifted)(batch.clone())
    observation, done = batch["observation"][..., :1], batch["next", "done"]
    value, next_value = torch.zeros(2, 5, 1), torch.zeros(2, 5, 1)
    for row in range(2):
        memory = 10.0
        for t in range(5):
            memory = observation[row, t] + (0.0 if batch["is_init"][row, t] else memory)
            value[row, t] = memory
            next_value[row, t] = memory + batch["next", "observation"][row, t, :1]
    torch.testing.assert_close(out["state_value"], value)
    torch.testing.assert_close(out["next", "state_value"], next_value)
    if kind is KINDS[0]:
        ends = done, batch["next", "terminated"]
        expected, _ = generalized_advantage_estimate(0.9, 0.8, value, next_value, batch["next", "reward"], *ends)
        torch.testing.assert_close(out["advantage"], expected)


def test_a_critics_own_memory_starts_from_zero_where_the_batch_has_none():
    batch = lived_rollout()
    out = GAE(gamma=0.9, lmbda=0.8, value_network=Counter())(batch.exclude("memory"))
    torch.testing.assert_close(out["state_value"][:, 0], batch["observation"][:, 0, :1])
    with pytest.raises(KeyMissingError, match='GAE needs "is_init"'):
        GAE(gamma=0.9, lmbda=0.8, value_network=Counter())(batch.exclude("is_init"))


def test_memory_needs_time_to_be_the_last_dimension():
    with pytest.raises(SpecError, match=r"whose time is the last batch dimension; here it is 0 of \[2, 5\]"):
        GAE(gamma=0.9, lmbda=0.8, value_network=Counter(), time_dim=0)(lived_rollout())


def test_vtrace_shares_these_options():
    class Policy(nn.Module):
        in_keys, out_keys = ("observation",), ("action",)

        def get_dist(self, batch):
            return torch.distributions.Independent(torch.distributions.Normal(batch["observation"], 1.0), 1)

    batch = lived_rollout()
    batch["action"], batch["action_log_prob"] = torch.randn(2, 5, 3), torch.randn(2, 5)
    out = VTrace(gamma=0.9, actor_network=Policy(), value_network=Counter())(batch)
    torch.testing.assert_close(out["next", "state_value"][0, 1], out["state_value"][0, 1] + 100.0)
