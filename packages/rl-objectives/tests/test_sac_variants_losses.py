"""REDQ, TQC and CrossQ against the papers' equations in plain float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal

from rl_core.errors import LossError, SpecError
from rl_core.registry import registry
from rl_core.testing import LossKit, overrides_check
from rl_objectives import CrossQLoss, REDQLoss, TQCLoss
from rl_objectives.functional.ensembles import smallest_of_subset, smallest_value, truncated_mixture

GAMMA, ALPHA = 0.9, 0.4


class RowNoise(Independent):
    """A normal policy whose "random" numbers are a function of the row, so that a subset of rows draws the same."""

    def rsample(self, sample_shape=()):
        return self.base_dist.loc + self.base_dist.scale * torch.sin(50 * self.base_dist.loc.detach())


class Actor(nn.Module):
    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, norm=False):
        super().__init__()
        self.head = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)) if norm else nn.Linear(3, 2)

    def get_dist(self, tensordict):
        loc = self.head(tensordict["observation"])
        return RowNoise(Normal(loc, torch.full_like(loc, 0.6), validate_args=False), 1, validate_args=False)

    def draw(self, observation):
        distribution = self.get_dist({"observation": observation})
        action = distribution.rsample()
        return action, distribution.log_prob(action).unsqueeze(-1)


class Joined(nn.Sequential):
    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, -1))


def make_critic(outputs=1, norm=False):
    layers = [nn.Linear(5, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Tanh(), nn.Linear(6, outputs)]
    return TensorDictModule(Joined(*layers), in_keys=["observation", "action"], out_keys=["state_action_value"])


def make_batch(size=12):
    torch.manual_seed(3)
    terminated = torch.rand(size, 1) < 0.3
    step = {
        "observation": torch.randn(size, 3),
        "reward": torch.randn(size, 1),
        "terminated": terminated,
        "done": terminated | (torch.rand(size, 1) < 0.3),
    }
    return TensorDict({"observation": torch.randn(size, 3), "action": torch.randn(size, 2), "next": step}, [size])


def make_loss(kind, critic=None, actor=None, **options):
    torch.manual_seed(4)
    critic = critic or make_critic(5 if kind is TQCLoss else 1)
    loss = kind(actor or Actor(), critic, alpha_init=ALPHA, target_entropy=-2.0, **options)
    with torch.no_grad():
        for name in loss.target_names:
            for weight in loss.get_submodule(f"target_{name}").buffers():
                weight.mul_(0.8)
    loss.make_value_estimator(gamma=GAMMA)
    return loss


def as_double(batch):
    return batch.apply(lambda entry: entry.double() if entry.is_floating_point() else entry)


def values(ensemble, observation, action):
    return torch.stack([critic.module(observation, action) for critic in ensemble.members])


def check(loss, twin, batch, expected):
    """The losses and their gradients; ``expected`` was computed with the twin's networks."""
    torch.manual_seed(9)
    out = loss(batch)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    sum(out[key] for key in expected).backward()
    sum(expected.values()).backward()
    for (name, one), (_, other) in zip(loss.named_parameters(), twin.named_parameters(), strict=True):
        if name != "log_alpha":
            torch.testing.assert_close(one.grad, other.grad, msg=name)
    return out


GRADIENTS = {"loss_actor": {"actor_network"}, "loss_qvalue": {"qvalue_network"}, "loss_alpha": {"log_alpha"}}


class TestREDQKeepsItsPromises(LossKit):
    gradients = GRADIENTS
    network_outputs = {"action", "state_action_value"}
    kind = REDQLoss

    def make_loss(self, **options):
        return make_loss(self.kind, **options)

    def make_batch(self):
        return make_batch()


class TestTQCKeepsItsPromises(TestREDQKeepsItsPromises):
    kind = TQCLoss


class TestCrossQKeepsItsPromises(TestREDQKeepsItsPromises):
    kind = CrossQLoss


class TestCrossQWithNormalisedCriticsKeepsItsPromises(TestREDQKeepsItsPromises):
    def make_loss(self, **options):
        return make_loss(CrossQLoss, critic=make_critic(norm=True), **options)

    @overrides_check(reason="a normalised critic sees all rows of the batch, valid or not")
    def test_masked_rows_do_not_count(self):
        pass

    @overrides_check(reason="running moments move at each call, so that a second actor loss differs")
    def test_renamed_entries_give_the_same_losses(self):
        pass

    @overrides_check(reason="as above")
    def test_keyword_tensors_give_the_same_losses(self):
        pass

    @overrides_check(reason="as above: here both losses are called once")
    def test_state_dict_restores_the_losses(self):
        first, second, batch = self.make_loss(), self.make_loss(), self.make_batch()
        first(batch)
        second.load_state_dict(first.state_dict())
        torch.testing.assert_close(self.losses(second, batch), self.losses(first, batch))


def test_redq_equals_plain_torch():
    loss = make_loss(REDQLoss, num_qvalue_nets=4, sub_sample_len=2, loss_function="l2").double()
    twin, batch = copy.deepcopy(loss), as_double(make_batch())
    step, actor = batch["next"], twin.actor_network
    # Chen et al., 2021, algorithm 1
    torch.manual_seed(9)
    chosen = torch.randperm(4)[:2]
    with torch.no_grad():
        action, log_prob = actor.draw(step["observation"])
        every = values(twin.target_qvalue_network, step["observation"], action)
        soft = every[chosen].min(0)[0] - ALPHA * log_prob
        target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, soft)
    found = values(twin.qvalue_network, batch["observation"], batch["action"])
    action, log_prob = actor.draw(batch["observation"])
    gain = values(copy.deepcopy(twin.qvalue_network).requires_grad_(False), batch["observation"], action).mean(0)
    expected = {
        "loss_qvalue": ((found - target) ** 2).mean(0).mean(),
        "loss_actor": (ALPHA * log_prob - gain).mean(),
    }
    out = check(loss, twin, batch, expected)
    torch.testing.assert_close(out["next.state_value"], soft.mean())
    torch.testing.assert_close(out["target_value"], target.mean())
    torch.testing.assert_close(out["state_action_value_actor"], gain.mean().detach())
    torch.testing.assert_close(out["action_log_prob_actor"], log_prob.mean().detach())
    torch.testing.assert_close(batch["td_error"], (found - target).abs().amax(0).detach())


def test_redq_asks_another_subset_at_each_call():
    torch.manual_seed(0)
    every = torch.arange(5.0).unsqueeze(-1)
    seen = {smallest_of_subset(every, 2).item() for _ in range(200)}
    assert seen == {0.0, 1.0, 2.0, 3.0}
    assert smallest_of_subset(every, 5).item() == 0.0
    for size in (0, 6):
        with pytest.raises(SpecError, match=r"lies in 1 \.\. 5, the number of critics"):
            make_loss(REDQLoss, num_qvalue_nets=5, sub_sample_len=size)


def test_the_smallest_value_is_the_same_for_any_number_of_critics():
    torch.manual_seed(0)
    for count in (1, 2, 3, 7):
        every = torch.randn(count, 4, 1)
        torch.testing.assert_close(smallest_value(every), every.min(0)[0])


def test_tqc_equals_plain_torch():
    loss = make_loss(TQCLoss, num_qvalue_nets=3, top_quantiles_to_drop_per_net=2).double()
    twin, batch = copy.deepcopy(loss), as_double(make_batch())
    step, actor = batch["next"], twin.actor_network
    # Kuznetsov et al., 2020, eq. 8 to 13: N = 3 critics of M = 5 quantiles, K = 3 (5 - 2) = 9 atoms are kept
    with torch.no_grad():
        action, log_prob = actor.draw(step["observation"])
        atoms = values(twin.target_qvalue_network, step["observation"], action).movedim(0, 1).reshape(12, 15)
        kept = atoms.sort(-1)[0][:, :9] - ALPHA * log_prob
        target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, kept)
    found = values(twin.qvalue_network, batch["observation"], batch["action"])
    total = 0.0
    for critic in found:
        for m in range(5):
            for k in range(9):
                u = target[:, k] - critic[:, m]
                huber = torch.where(u.abs() <= 1, 0.5 * u**2, u.abs() - 0.5)
                total = total + (((2 * m + 1) / 10 - (u < 0).double()).abs() * huber).mean() / (5 * 9)
    action, log_prob = actor.draw(batch["observation"])
    gain = values(copy.deepcopy(twin.qvalue_network).requires_grad_(False), batch["observation"], action)
    expected = {"loss_qvalue": total, "loss_actor": (ALPHA * log_prob - gain.mean(0).mean(-1, keepdim=True)).mean()}
    check(loss, twin, batch, expected)
    error = (found.mean(-1) - target.mean(-1)).abs().amax(0).unsqueeze(-1).detach()
    torch.testing.assert_close(batch["td_error"], error)


def test_tqc_keeps_at_least_one_atom_of_each_critic():
    assert truncated_mixture(torch.tensor([[[3.0, 1.0]], [[0.0, 2.0]]]), 0).tolist() == [[0.0, 1.0, 2.0, 3.0]]
    with pytest.raises(SpecError, match="of 5 quantiles per critic, 0 to 4 can be dropped; got 5"):
        make_loss(TQCLoss, top_quantiles_to_drop_per_net=5)(make_batch())
    with pytest.raises(SpecError, match="at least 0; got -1"):
        make_loss(TQCLoss, top_quantiles_to_drop_per_net=-1)
    with pytest.raises(SpecError, match="use TD0, not TDLambdaEstimator"):
        make_loss(TQCLoss).make_value_estimator("td_lambda")


@pytest.mark.parametrize("norm", [False, True])
def test_crossq_equals_plain_torch(norm):
    loss = make_loss(CrossQLoss, critic=make_critic(norm=norm), actor=Actor(norm)).double()
    twin, batch = copy.deepcopy(loss), as_double(make_batch())
    step, actor = batch["next"], twin.actor_network
    # Bhatt et al., 2024, section 3: one forward pass of the critics over both steps, no target networks.
    with torch.no_grad():
        action, log_prob = actor.eval().draw(step["observation"])
    joint = torch.cat([batch["observation"], step["observation"]]), torch.cat([batch["action"], action])
    found, soon = values(twin.qvalue_network, *joint).split(12, 1)
    target = step["reward"] + GAMMA * torch.where(step["terminated"], 0.0, soon.min(0)[0] - ALPHA * log_prob)
    target = target.detach()
    # then the actor's loss, with the critics in evaluation mode and the actor in training mode
    frozen = copy.deepcopy(twin.qvalue_network).requires_grad_(False).eval()
    action, log_prob = actor.train().draw(batch["observation"])
    least = values(frozen, batch["observation"], action).min(0)[0]
    actor_loss = (ALPHA * log_prob - least).mean()
    expected = {"loss_qvalue": sum(F.smooth_l1_loss(q, target) for q in found), "loss_actor": actor_loss}
    out = check(loss, twin, batch, expected)
    torch.testing.assert_close(out["log_prob"], -out["entropy"])
    assert all(module.training for module in loss.modules())
    if norm:
        moments = loss.qvalue_network.members[1].module[1]
        assert moments.num_batches_tracked.item() == 1
        torch.testing.assert_close(moments.running_mean, twin.qvalue_network.members[1].module[1].running_mean)
        torch.testing.assert_close(loss.actor_network.head[0].running_mean, actor.head[0].running_mean)


def test_crossq_takes_no_targets_and_leaves_frozen_layers_in_their_mode():
    assert make_loss(CrossQLoss).target_names == []
    with pytest.raises(TypeError, match="takes no delay_qvalue"):
        make_loss(CrossQLoss, delay_qvalue=True)
    loss = make_loss(CrossQLoss, critic=make_critic(norm=True))
    layer = loss.qvalue_network.members[0].module[1].eval()
    loss(make_batch())
    assert not layer.training and layer.num_batches_tracked.item() == 0
    for name, kind in (("redq", REDQLoss), ("crossq", CrossQLoss), ("tqc", TQCLoss)):
        assert registry.losses.get(name) is kind


def test_critics_of_other_rows_are_refused():
    class Short(Joined):
        def forward(self, *inputs):
            return super().forward(*inputs)[:-1]

    net = TensorDictModule(Short(nn.Linear(5, 5)), ["observation", "action"], ["state_action_value"])
    with pytest.raises(LossError, match="log-probabilities"):
        make_loss(TQCLoss, critic=net)(make_batch())


def test_crossq_compiles_into_one_graph():
    loss, batch = make_loss(CrossQLoss, critic=make_critic(norm=True), actor=Actor(norm=True)), make_batch()
    twin = copy.deepcopy(loss)
    expected = twin(batch.clone())
    out = torch.compile(loss, fullgraph=True, backend="aot_eager")(batch)
    for key, value in expected.items():
        torch.testing.assert_close(out[key], value)
    for (name, one), other in zip(loss.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    assert all(module.training for module in loss.modules())
