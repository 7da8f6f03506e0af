"""GAE and the TD estimators on TensorDicts: what they read, evaluate and write."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.testing import EstimatorKit
from rl_objectives import GAE, TD0Estimator, TD1Estimator, TDLambdaEstimator, generalized_advantage_estimate


class TestGAEKeepsItsPromises(EstimatorKit):
    def make_estimator(self, value_network, **options):
        return GAE(gamma=0.9, lmbda=0.8, value_network=value_network, **options)


class TestGAEInOnePassKeepsItsPromises(EstimatorKit):
    def make_estimator(self, value_network, **options):
        return GAE(gamma=0.9, lmbda=0.8, value_network=value_network, shifted=True, **options)


class TestTD0KeepsItsPromises(EstimatorKit):
    def make_estimator(self, value_network, **options):
        return TD0Estimator(gamma=0.9, value_network=value_network, **options)


class TestTD1KeepsItsPromises(EstimatorKit):
    def make_estimator(self, value_network, **options):
        return TD1Estimator(gamma=0.9, value_network=value_network, **options)


class TestTDLambdaKeepsItsPromises(EstimatorKit):
    def make_estimator(self, value_network, **options):
        return TDLambdaEstimator(gamma=0.9, lmbda=0.8, value_network=value_network, **options)


class CountingCritic(nn.Module):
    """A critic that counts its calls and the rows it saw."""

    in_keys = ("observation",)
    out_keys = ("state_value",)

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)
        self.rows = []

    def forward_tensors(self, observation):
        self.rows.append(observation.shape[:-1].numel())
        return (self.net(observation),)


def rollout(batch=(4, 7), ends=True, chained=True):
    """A rollout whose next observations are the following rows' ones, except at ends."""
    torch.manual_seed(0)
    steps = torch.randn(*batch[:-1], batch[-1] + 1, 3)
    observation, following = steps[..., :-1, :].clone(), steps[..., 1:, :].clone()
    done = torch.rand(*batch, 1) < (0.3 if ends else 0.0)
    terminated = done & (torch.rand(*batch, 1) < 0.5)
    if not chained:
        following = torch.randn_like(following)
    following[done.squeeze(-1)] = torch.randn(int(done.sum()), 3)
    data = {"observation": following, "reward": torch.randn(*batch, 1), "done": done, "terminated": terminated}
    return TensorDict({"observation": observation, "next": {**data, "truncated": done & ~terminated}}, batch)


def test_gae_writes_the_functional_result_and_the_values():
    critic, batch = CountingCritic(), rollout()
    out = GAE(gamma=0.9, lmbda=0.8, value_network=critic)(batch)
    step = batch["next"]
    with torch.no_grad():
        value, next_value = critic.net(batch["observation"]), critic.net(step["observation"])
    expected = generalized_advantage_estimate(
        0.9, 0.8, value, next_value, step["reward"], step["done"], step["terminated"]
    )
    torch.testing.assert_close(out["advantage"], expected[0])
    torch.testing.assert_close(out["value_target"], expected[1])
    torch.testing.assert_close(out["state_value"], value)
    torch.testing.assert_close(out["next", "state_value"], next_value)
    assert critic.rows == [2 * 4 * 7]


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize("batch", [(4, 7), (9,), (2, 3, 5)])
def test_the_one_pass_path_equals_the_two_value_path_on_inner_truncations(batch, chained):
    slow, fast = CountingCritic(), CountingCritic()
    fast.load_state_dict(slow.state_dict())
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=slow)(rollout(batch, chained=chained))
    result = GAE(gamma=0.9, lmbda=0.8, value_network=fast, shifted=True)(rollout(batch, chained=chained))
    for key in ("advantage", "value_target", "state_value", ("next", "state_value")):
        torch.testing.assert_close(result[key], expected[key])


def test_the_one_pass_path_evaluates_only_ends_and_last_steps_again():
    critic, batch = CountingCritic(), rollout()
    last = torch.zeros(4, 7, 1, dtype=torch.bool)
    last[:, -1] = True
    GAE(gamma=0.9, lmbda=0.8, value_network=critic, shifted=True)(batch)
    assert critic.rows == [28 + int((batch["next", "done"] | last).sum())]


def test_two_calls_can_be_asked_for():
    critic = CountingCritic()
    GAE(gamma=0.9, lmbda=0.8, value_network=critic, deactivate_vmap=True)(rollout())
    assert critic.rows == [28, 28]


def test_existing_values_are_used_when_asked():
    critic, batch = CountingCritic(), rollout()
    batch["state_value"] = torch.zeros(4, 7, 1)
    out = GAE(gamma=0.9, lmbda=0.8, value_network=critic, skip_existing=True)(batch)
    assert critic.rows == [28]
    assert (out["state_value"] == 0).all()


def test_without_a_network_values_come_from_the_batch():
    batch = rollout()
    batch["state_value"] = batch["next", "state_value"] = torch.zeros(4, 7, 1)
    out = GAE(gamma=0.0, lmbda=0.8)(batch)
    torch.testing.assert_close(out["advantage"], batch["next", "reward"])


def test_without_network_and_values_the_error_says_what_to_do():
    with pytest.raises(
        KeyMissingError, match=r'GAE needs "state_value"; the batch has .*"observation".* no value_network'
    ):
        GAE(gamma=0.9, lmbda=0.8)(rollout())


def test_average_gae_standardises_the_advantage_and_not_the_target():
    critic = CountingCritic()
    raw = GAE(gamma=0.9, lmbda=0.8, value_network=critic)(rollout())
    scaled = GAE(gamma=0.9, lmbda=0.8, value_network=critic, average_gae=True)(rollout())
    advantage = raw["advantage"]
    torch.testing.assert_close(scaled["advantage"], (advantage - advantage.mean()) / advantage.std())
    torch.testing.assert_close(scaled["value_target"], raw["value_target"])


def test_average_gae_counts_valid_rows_only():
    critic, batch = CountingCritic(), rollout(ends=False)
    valid = torch.ones(4, 7, dtype=torch.bool)
    valid[1, 4:] = False
    batch["collector", "mask"] = valid
    batch["next", "reward"][~valid] = 1e6
    advantage = GAE(gamma=0.9, lmbda=0.8, value_network=critic, average_gae=True)(batch)["advantage"][valid]
    torch.testing.assert_close(advantage.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    torch.testing.assert_close(advantage.std(), torch.tensor(1.0))


def test_a_cut_trajectory_bootstraps_at_its_last_valid_step():
    critic, batch = CountingCritic(), rollout((1, 6), ends=False)
    short = batch[:, :4].clone()
    valid = torch.ones(1, 6, dtype=torch.bool)
    valid[:, 4:] = False
    batch["collector", "mask"] = valid
    batch["next", "reward"][:, 4:] = 1e6
    for estimator in (GAE(gamma=0.9, lmbda=0.8, value_network=critic), TD1Estimator(gamma=0.9, value_network=critic)):
        torch.testing.assert_close(estimator(batch)["advantage"][:, :4], estimator(short)["advantage"])


def test_the_dimension_named_time_is_time():
    critic = CountingCritic()
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=critic)(rollout())["advantage"]
    turned = rollout().transpose(0, 1).contiguous()
    by_argument = GAE(gamma=0.9, lmbda=0.8, value_network=critic, time_dim=0)(turned.clone())["advantage"]
    torch.testing.assert_close(by_argument, expected.transpose(0, 1))
    turned.names = ["time", None]
    by_name = GAE(gamma=0.9, lmbda=0.8, value_network=critic)(turned)["advantage"]
    torch.testing.assert_close(by_name, expected.transpose(0, 1))


def test_a_batch_without_time_is_refused():
    with pytest.raises(SpecError, match=r"GAE needs a batch of steps with a time dimension.*batch size is \[\]"):
        GAE(gamma=0.9, lmbda=0.8, value_network=CountingCritic())(rollout()[0, 0])


def test_values_of_agents_keep_their_dimension():
    torch.manual_seed(0)
    critic = TensorDictModule(nn.Linear(3, 1), in_keys=[("agents", "obs")], out_keys=[("agents", "value")])
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=critic)
    gae.set_keys(value=("agents", "value"), advantage=("agents", "advantage"), value_target=("agents", "target"))
    gae.set_keys(reward=("agents", "reward"), done=("agents", "done"), terminated=("agents", "terminated"))
    done = torch.rand(4, 6, 2, 1) < 0.3
    step = {"obs": torch.randn(4, 6, 2, 3), "reward": torch.randn(4, 6, 2, 1), "done": done, "terminated": done}
    batch = TensorDict({"agents": {"obs": torch.randn(4, 6, 2, 3)}, "next": {"agents": step}}, [4, 6])
    both = gae(batch.clone())["agents", "advantage"]
    step["reward"] = step["reward"].clone()
    alone = batch.clone()
    alone["next", "agents", "reward"][:, :, 1] += 5
    changed = gae(alone)["agents", "advantage"]
    torch.testing.assert_close(changed[:, :, 0], both[:, :, 0])
    assert (changed[:, :, 1] != both[:, :, 1]).all()


def test_n_step_data_discounts_by_the_steps_to_the_next_observation():
    critic, batch = CountingCritic(), rollout(ends=False)
    batch["steps_to_next_obs"] = torch.full((4, 7, 1), 3)
    target = TD0Estimator(gamma=0.9, value_network=critic)(batch)["value_target"]
    torch.testing.assert_close(target, batch["next", "reward"] + 0.9**3 * batch["next", "state_value"])


def test_td0_takes_next_values_from_elsewhere():
    batch = rollout(ends=False)
    target = TD0Estimator(gamma=0.5).value_estimate(batch, next_value=torch.full((4, 7, 1), 2.0))
    torch.testing.assert_close(target, batch["next", "reward"] + 1.0)


def test_average_rewards_leaves_the_batch_alone():
    batch = rollout()
    reward = batch["next", "reward"].clone()
    out = TD0Estimator(gamma=0.0, value_network=CountingCritic(), average_rewards=True)(batch)
    torch.testing.assert_close(out["next", "reward"], reward)
    torch.testing.assert_close(out["value_target"], (reward - reward.mean()) / reward.std())


def test_a_network_with_another_output_is_named():
    critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["v"])
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=critic)
    with pytest.raises(KeyMissingError, match=r'writes "v", not "state_value".*set_keys\(\.\.\.\)'):
        gae(rollout())
    gae.set_keys(value="v")
    assert gae(rollout())["v"].shape == (4, 7, 1)


@pytest.mark.parametrize("key", [("next", "reward"), ("next", "done"), ("next", "observation"), "observation"])
def test_a_missing_entry_is_named(key):
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=CountingCritic())
    shown = '"observation"' if key == "observation" else f'\\("next", "{key[1]}"\\)'
    with pytest.raises(KeyMissingError, match=f"GAE needs {shown}; the batch has"):
        gae(rollout().exclude(key))


def test_gradients_reach_the_critic_when_asked():
    critic = CountingCritic()
    GAE(gamma=0.9, lmbda=0.8, value_network=critic, differentiable=True)(rollout())["value_target"].sum().backward()
    assert critic.net.weight.grad.abs().sum() > 0


def test_lambda_outside_its_range_is_refused():
    with pytest.raises(SpecError, match=r"lmbda lies in \[0, 1\]; got 95"):
        GAE(gamma=0.9, lmbda=95)
