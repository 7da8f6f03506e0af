"""V-trace and Retrace on TensorDicts: they evaluate the policy at the stored actions, with the right keys and masks."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl_core import registry
from rl_core.errors import KeyMissingError, LossError, SpecError
from rl_core.testing import EstimatorKit
from rl_objectives import (
    A2CLoss,
    ClipPPOLoss,
    RetraceEstimator,
    ValueEstimators,
    VTrace,
    retrace_return_estimate,
    td1_return_estimate,
    vtrace_advantage_estimate,
)


class Policy(nn.Module):
    """A Gaussian policy whose own samples are far from any stored action."""

    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, observations=2):
        super().__init__()
        torch.manual_seed(3)
        self.head = nn.Linear(observations, 2)

    def get_dist(self, tensordict):
        return Independent(Normal(self.head(tensordict["observation"]), 1.0), 1)


def with_actions(batch):
    """The batch with actions and the log-probabilities of another policy."""
    torch.manual_seed(5)
    batch["action"] = torch.randn(*batch.shape, 2)
    batch["action_log_prob"] = torch.randn(*batch.shape) - 2
    return batch


class TestVTraceKeepsItsPromises(EstimatorKit):
    def make_batch(self):
        return with_actions(super().make_batch())

    def make_estimator(self, value_network, **options):
        return VTrace(gamma=0.9, actor_network=Policy(), value_network=value_network, **options)


class ActionCritic(nn.Module):
    """Q of observation and action."""

    in_keys = ("observation", "action")
    out_keys = ("state_action_value",)

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(4, 1)

    def forward(self, batch):
        return batch.set("state_action_value", self.net(torch.cat([batch["observation"], batch["action"]], -1)))


class Certain(Policy):
    """A policy of almost no spread, so that its draws are its means."""

    def get_dist(self, tensordict):
        return Independent(Normal(self.head(tensordict["observation"]), 1e-6), 1)


class TestRetraceKeepsItsPromises(EstimatorKit):
    def make_network(self):
        return ActionCritic()

    def make_batch(self):
        return with_actions(super().make_batch())

    def make_estimator(self, value_network, **options):
        return RetraceEstimator(gamma=0.9, lmbda=0.9, actor_network=Certain(), value_network=value_network, **options)


def make_critic():
    torch.manual_seed(1)
    return TensorDictModule(nn.Linear(2, 1), in_keys=["observation"], out_keys=["state_value"])


def rollout(batch=(3, 6)):
    torch.manual_seed(2)
    steps = torch.randn(*batch[:-1], batch[-1] + 1, 2)
    done = torch.rand(*batch, 1) < 0.3
    terminated = done & (torch.rand(*batch, 1) < 0.5)
    following = steps[..., 1:, :].clone()
    following[done.squeeze(-1)] = torch.randn(int(done.sum()), 2)
    step = {"observation": following, "reward": torch.randn(*batch, 1), "done": done, "terminated": terminated}
    return with_actions(TensorDict({"observation": steps[..., :-1, :].clone(), "next": step}, batch))


def test_vtrace_writes_the_functional_result_for_the_stored_actions():
    policy, critic, batch = Policy(), make_critic(), rollout()
    out = VTrace(gamma=0.9, actor_network=policy, value_network=critic, rho_thresh=0.8, c_thresh=1.5)(batch.clone())
    log_pi = policy.get_dist(batch).log_prob(batch["action"]).unsqueeze(-1).detach()
    step = batch["next"]
    with torch.no_grad():
        values = critic.module(batch["observation"]), critic.module(step["observation"])
    expected = vtrace_advantage_estimate(
        0.9, log_pi, batch["action_log_prob"].unsqueeze(-1), *values, step["reward"], step["done"], step["terminated"],
        rho_thresh=0.8, c_thresh=1.5,
    )  # fmt: skip
    torch.testing.assert_close(out["advantage"], expected[0])
    torch.testing.assert_close(out["value_target"], expected[1])


def test_on_policy_data_gives_the_td1_return():
    policy, critic, batch = Policy(), make_critic(), rollout()
    with torch.no_grad():
        batch["action_log_prob"] = policy.get_dist(batch).log_prob(batch["action"])
    estimator = VTrace(gamma=0.9, actor_network=policy, value_network=critic)
    steps = estimator.read_steps(batch)
    assert torch.equal(steps.log_pi, steps.log_mu)  # the ratio is 1 exactly
    out, step = estimator(batch), batch["next"]
    expected = td1_return_estimate(0.9, step["state_value"], step["reward"], step["done"], step["terminated"])
    torch.testing.assert_close(out["value_target"], expected)
    torch.testing.assert_close(out["advantage"], expected - out["state_value"])


@pytest.mark.parametrize("name", ["vtrace", "VTrace", ValueEstimators.VTrace, VTrace])
@pytest.mark.parametrize("kind", [A2CLoss, ClipPPOLoss])
def test_losses_make_vtrace_from_their_own_networks(name, kind):
    loss = kind(Policy(), make_critic()).make_value_estimator(name, gamma=0.9, rho_thresh=2.0)
    estimator = loss.value_estimator
    assert type(estimator) is VTrace and estimator.rho_thresh == 2.0
    assert estimator.actor_network is loss.actor_network and estimator.value_network is loss.critic_network
    ready = VTrace(
        gamma=0.9, rho_thresh=2.0, actor_network=loss.actor_network, value_network=loss.critic_network
    )(rollout())  # fmt: skip
    torch.testing.assert_close(loss(rollout())["loss_objective"], loss(ready)["loss_objective"])


def test_renamed_actions_reach_the_estimator():
    loss, batch = A2CLoss(Policy(), make_critic()).make_value_estimator("vtrace"), rollout()
    expected = loss(batch)["loss_objective"]
    batch.rename_key_("action", "a").rename_key_("action_log_prob", "lp")
    loss.set_keys(action="a", sample_log_prob="lp")
    torch.testing.assert_close(loss(batch)["loss_objective"], expected)


def test_both_are_found_by_name():
    assert registry.estimators.get("vtrace") is VTrace
    assert registry.estimators.get("retrace") is RetraceEstimator


def test_averaging_leaves_the_target_alone():
    make = lambda **options: VTrace(gamma=0.9, actor_network=Policy(), value_network=make_critic(), **options)  # noqa: E731
    raw, scaled = make()(rollout()), make(average_adv=True)(rollout())
    advantage = raw["advantage"]
    torch.testing.assert_close(scaled["advantage"], (advantage - advantage.mean()) / advantage.std())
    torch.testing.assert_close(scaled["value_target"], raw["value_target"])


def test_a_policy_without_distribution_and_a_log_prob_of_another_shape_are_refused():
    with pytest.raises(SpecError, match=r"VTrace needs actor_network=\.\.\., the policy to evaluate.*got None"):
        VTrace(gamma=0.9, value_network=make_critic())
    batch = rollout()
    batch["action_log_prob"] = torch.zeros(3, 6, 2)
    with pytest.raises(LossError, match=r'"action_log_prob" \[3, 6, 2\] must be \[3, 6\]'):
        VTrace(gamma=0.9, actor_network=Policy(), value_network=make_critic())(batch)
    for key in ("action", "action_log_prob"):
        with pytest.raises(KeyMissingError, match=f'VTrace needs "{key}"'):
            VTrace(gamma=0.9, actor_network=Policy(), value_network=make_critic())(rollout().exclude(key))


def test_retrace_writes_the_functional_result():
    policy, critic, batch = Certain(), ActionCritic(), rollout()
    batch["action_log_prob"] = torch.full((3, 6), 20.0)  # densities of a narrow policy are large
    out = RetraceEstimator(gamma=0.9, lmbda=0.7, actor_network=policy, value_network=critic)(batch.clone())
    step = batch["next"]
    with torch.no_grad():
        value = critic.net(torch.cat([batch["observation"], batch["action"]], -1))
        following = critic.net(torch.cat([step["observation"], policy.head(step["observation"])], -1))
        log_pi = policy.get_dist(batch).log_prob(batch["action"]).unsqueeze(-1)
    log_mu = batch["action_log_prob"].unsqueeze(-1)
    ends = step["done"], step["terminated"]
    expected = retrace_return_estimate(0.9, 0.7, log_pi, log_mu, value, following, step["reward"], *ends)
    torch.testing.assert_close(out["value_target"], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out["next", "state_action_value"], following, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out["advantage"], out["value_target"] - value)


def test_retrace_averages_over_draws():
    class Coin(Policy):
        def get_dist(self, tensordict):
            return Categorical(logits=torch.zeros(*tensordict.shape, 2))

    class ByAction(nn.Module):
        in_keys, out_keys = ("observation", "action"), ("state_action_value",)

        def forward(self, batch):
            return batch.set("state_action_value", batch["action"].unsqueeze(-1).float())

    torch.manual_seed(0)
    batch = rollout()
    batch["action"], batch["action_log_prob"] = torch.zeros(3, 6, dtype=torch.long), torch.full((3, 6), -0.7)
    out = RetraceEstimator(gamma=0.9, actor_network=Coin(), value_network=ByAction(), num_samples=4000)(batch)
    torch.testing.assert_close(out["next", "state_action_value"], torch.full((3, 6, 1), 0.5), rtol=0, atol=0.05)


def test_retrace_wants_a_critic_of_actions():
    with pytest.raises(SpecError, match="value_network that reads the action"):
        estimator = RetraceEstimator(gamma=0.9, actor_network=Policy(), value_network=make_critic())
        estimator.set_keys(value="state_value")
        estimator(rollout())
