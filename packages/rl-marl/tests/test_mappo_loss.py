"""MAPPO and IPPO: masks, team and per-agent entries, value normalisation, against plain float64 references."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rl_core.errors import KeyMissingError, SpecError
from rl_core.registry import registry
from rl_core.testing import LossKit
from rl_marl.estimators.multi_agent_gae import MultiAgentGAE
from rl_marl.losses.mappo import IPPOLoss, MAPPOLoss
from rl_marl.losses.optimizers import optimizer_per_group
from rl_marl.value_norm import PopArtValueNorm, RunningValueNorm
from rl_modules import MaskedCategorical, ProbabilisticActor, SafeModule
from rl_objectives import ClipPPOLoss, TD0Estimator

GAMMA, LMBDA = 0.9, 0.8
B, N = 8, 3


class GaussianActor(nn.Module):
    """A policy shared by the agents of a group."""

    out_keys = ("action",)

    def __init__(self, group="agents", event=True):
        super().__init__()
        self.in_keys = [(group, "observation")]
        self.head = nn.Linear(3, 2 if event else 1)
        self.log_scale = nn.Parameter(torch.zeros(2 if event else 1))
        self.event = event

    def get_dist_tensors(self, observation):
        normal = Normal(self.head(observation), self.log_scale.exp(), validate_args=False)
        return Independent(normal, 1) if self.event else normal

    def get_dist(self, tensordict):
        return self.get_dist_tensors(tensordict.get(self.in_keys[0]))


def make_critic(in_key=("agents", "observation"), out_key=("agents", "state_value"), size=3):
    net = nn.Sequential(nn.Linear(size, 4), nn.Tanh(), nn.Linear(4, 1))
    return TensorDictModule(net, in_keys=[in_key], out_keys=[out_key])


def make_loss(kind=MAPPOLoss, group="agents", **options):
    torch.manual_seed(4)
    loss = kind(GaussianActor(group), make_critic((group, "observation"), (group, "state_value")), **options)
    loss.set_group(group)
    return loss


def make_batch(size=(B,), agents=N, group="agents", seed=3):
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(*size, agents, *shape, generator=generator)

    done = torch.rand(*size, agents, 1, generator=generator) < 0.2
    step = {"observation": randn(3), "reward": randn(1), "done": done, "terminated": done}
    now = {
        "observation": randn(3),
        "action": randn(2),
        "action_log_prob": randn() - 2,
        "advantage": randn(1),
        "value_target": randn(1),
        "state_value": randn(1),
    }
    return TensorDict(
        {group: TensorDict(now, (*size, agents)), "next": {group: TensorDict(step, (*size, agents))}}, size
    )


def some_idle(size=(B,), agents=N):
    return torch.rand(*size, agents, generator=torch.Generator().manual_seed(11)) < 0.6


def losses(result):
    return {key: value for key, value in result.items() if key.startswith("loss")}


def gradients(loss, batch):
    loss.zero_grad()
    sum(losses(loss(batch)).values()).backward()
    return [parameter.grad.clone() for parameter in loss.parameters()]


class TestMAPPOKeepsItsPromises(LossKit):
    gradients = {
        "loss_objective": {"actor_network"},
        "loss_critic": {"critic_network"},
        "loss_entropy": {"actor_network"},
    }

    def make_loss(self, **options):
        return make_loss(clip_value=0.2, **options)

    def make_batch(self):
        return make_batch()


class TestIPPOKeepsItsPromises(TestMAPPOKeepsItsPromises):
    def make_loss(self, **options):
        return make_loss(IPPOLoss, clip_epsilon=(0.1, 0.3), **options)

    def make_batch(self):
        batch = make_batch()
        batch["agents", "mask"] = torch.ones(B, N, dtype=torch.bool)
        batch["next", "done"] = torch.zeros(B, 1, dtype=torch.bool)
        return batch


class TestMAPPOWithATeamCriticKeepsItsPromises(TestMAPPOKeepsItsPromises):
    def make_loss(self, **options):
        torch.manual_seed(4)
        loss = MAPPOLoss(GaussianActor(), make_critic("state", "state_value"), **options)
        loss.set_group("agents")
        return loss

    def make_batch(self):
        batch = make_batch()
        batch["state"], batch["next", "state"] = torch.randn(B, 3), torch.randn(B, 3)
        return batch


class TestMAPPOWithValueNormKeepsItsPromises(TestMAPPOKeepsItsPromises):
    def make_loss(self, **options):
        loss = make_loss(value_norm=PopArtValueNorm(), clip_value=0.2, **options)
        loss.value_norm.update(torch.randn(100, 1, generator=torch.Generator().manual_seed(0)) * 3 + 1)
        return loss.eval()  # in training each call moves the statistics


# ------------------------------------------------------------------------------------------------- values, no masks


def test_without_masks_it_is_clipped_ppo():
    loss, batch = make_loss(normalize_advantage=False, clip_value=0.3), make_batch()
    plain = ClipPPOLoss(loss.actor_network, loss.critic_network, clip_value=0.3)
    plain.set_keys(**{name: getattr(loss.tensor_keys, name) for name in plain.key_names()})
    expected = plain(batch)
    result = loss(batch)
    assert set(result.keys()) == set(expected.keys())
    for key, value in expected.items():
        torch.testing.assert_close(result[key], value)


def test_advantages_are_standardised_for_each_agent():
    loss, batch = make_loss(), make_batch()
    batch["agents", "advantage"] *= torch.tensor([[1.0], [50.0], [0.1]])
    scaled = batch.clone()
    advantage = batch["agents", "advantage"]
    scaled["agents", "advantage"] = (advantage - advantage.mean(0)) / advantage.std(0)
    expected = make_loss(normalize_advantage=False)(scaled)["loss_objective"]
    torch.testing.assert_close(loss(batch)["loss_objective"], expected)


@pytest.mark.parametrize("kind", [MAPPOLoss, IPPOLoss])
def test_they_are_registered_with_their_estimator(kind):
    assert registry.losses.get("mappo" if kind is MAPPOLoss else "ippo") is kind
    assert type(make_loss(kind).value_estimator) is MultiAgentGAE
    assert issubclass(kind, ClipPPOLoss)


# ----------------------------------------------------------------------------------------- an agent dies mid-episode


def masked_actor():
    logits = SafeModule(nn.Linear(3, 4), in_keys=[("agents", "observation")], out_keys=[("agents", "logits")])
    return ProbabilisticActor(
        logits,
        in_keys={"logits": ("agents", "logits"), "mask": ("agents", "action_mask")},
        out_keys=[("agents", "action")],
        distribution_class=MaskedCategorical,
        return_log_prob=True,
    )


def death_of_b():
    """Agents a, b, c over five steps: b terminates at step 2 with reward -1, a and c are truncated at step 5."""
    generator = torch.Generator().manual_seed(7)
    seen = torch.randn(1, 6, 3, 3, generator=generator, dtype=torch.float64)
    terminated, truncated = torch.zeros(2, 1, 5, 3, 1, dtype=torch.bool)
    terminated[0, 1:, 1] = True
    truncated[0, 4, 0] = truncated[0, 4, 2] = True
    reward = torch.randn(1, 5, 3, 1, generator=generator, dtype=torch.float64)
    reward[0, 1, 1] = -1.0
    allowed = torch.rand(1, 5, 3, 4, generator=generator) < 0.7
    allowed[..., 0] = True
    mask = torch.ones(1, 5, 3, dtype=torch.bool)
    mask[0, 2:, 1] = False
    now = {
        "observation": seen[:, :5].clone(),
        "action_mask": allowed,
        "action": torch.zeros(1, 5, 3, dtype=torch.int64),
        "action_log_prob": torch.randn(1, 5, 3, generator=generator, dtype=torch.float64) * 0.3 - 1.0,
        "mask": mask,
    }
    step = {"observation": seen[:, 1:].clone(), "reward": reward, "done": terminated | truncated}
    step |= {"terminated": terminated, "truncated": truncated}
    ended = torch.tensor([0, 0, 0, 0, 1], dtype=torch.bool).view(1, 5, 1)
    root = {"done": ended, "terminated": torch.zeros_like(ended), "truncated": ended}
    following = TensorDict({"agents": TensorDict(step, (1, 5, 3)), **root}, (1, 5))
    return TensorDict({"agents": TensorDict(now, (1, 5, 3)), "next": following}, (1, 5))


def spoiled(batch):
    """The same with b's rows after its death full of nonsense."""
    batch = batch.clone()
    idle = ~batch["agents", "mask"]
    for key in (("agents", "observation"), ("agents", "action_log_prob")):
        batch[key][idle] = float("nan")
    for name in ("observation", "reward"):
        batch["next", "agents", name][idle] = float("nan")
    batch["agents", "action"][idle] = 99
    batch["agents", "action_mask"][idle] = False
    return batch


def make_masked_loss(**options):
    torch.manual_seed(6)
    loss = MAPPOLoss(masked_actor(), make_critic(), **options).double()
    loss.set_group("agents")
    return loss.make_value_estimator(gamma=GAMMA, lmbda=LMBDA)


def death_reference(loss, batch):
    """The losses of the twelve rows that were lived, agent by agent and row by row, in float64."""
    head, critic = loss.actor_network[0].module, loss.critic_network.module
    gains, errors, entropies = [], [], []
    for i, lived in ((0, 5), (1, 2), (2, 5)):
        group, following = batch["agents"][0, :lived, i], batch["next", "agents"][0, :lived, i]
        value = critic(group["observation"]).squeeze(-1)
        with torch.no_grad():
            old, after = value.detach(), critic(following["observation"]).squeeze(-1)
            advantage, ahead = torch.zeros(lived, dtype=torch.float64), 0.0
            for t in reversed(range(lived)):
                bootstrap = 0.0 if bool(following["terminated"][t]) else after[t]
                ahead = following["reward"][t, 0] + GAMMA * bootstrap - old[t] + GAMMA * LMBDA * ahead
                advantage[t] = ahead
            target = advantage + old
            advantage = (advantage - advantage.mean()) / advantage.std()
        logits = head(group["observation"]).masked_fill(~group["action_mask"], float("-inf"))
        policy = Categorical(logits=logits)
        ratio = (policy.log_prob(group["action"]) - group["action_log_prob"]).exp()
        gains.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
        errors.append(F.smooth_l1_loss(value, target, reduction="none"))
        plogp = policy.probs * policy.logits.masked_fill(~group["action_mask"], 0.0)
        entropies.append(-plogp.sum(-1))
    parts = [torch.cat(part) for part in (gains, errors, entropies)]
    assert all(len(part) == 12 for part in parts)
    gain, error, entropy = (part.mean() for part in parts)
    return {"loss_objective": -gain, "loss_critic": error, "loss_entropy": -0.01 * entropy}


@pytest.mark.parametrize("spoil", [False, True])
def test_the_loss_equals_that_of_data_without_the_dead_agents_rows(spoil):
    loss, batch = make_masked_loss(), death_of_b()
    twin = copy.deepcopy(loss)
    expected = death_reference(twin, batch)
    result = loss(spoiled(batch) if spoil else batch)
    for key, value in expected.items():
        torch.testing.assert_close(result[key], value)
    sum(losses(result).values()).backward()
    sum(expected.values()).backward()
    for one, other in zip(loss.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_the_gradient_does_not_change_by_a_bit_with_what_dead_rows_hold():
    loss, batch = make_masked_loss(), death_of_b()
    expected = gradients(loss, batch)
    for other in (spoiled(batch), batch.clone()):
        idle = ~batch["agents", "mask"]
        if not other["agents", "observation"].isnan().any():
            other["agents", "observation"][idle] = 1e3
            other["next", "agents", "reward"][idle] = -7.0
            other["agents", "action"][idle] = 3
        for one, changed in zip(expected, gradients(loss, other), strict=True):
            assert torch.equal(one, changed)


def test_a_living_agent_that_may_do_nothing_is_still_an_error():
    loss, batch = make_masked_loss(), death_of_b()
    batch["agents", "action_mask"][0, 1, 2] = False
    with pytest.raises(ValueError, match=r"allows no category in row \(0, 1, 2\)"):
        loss(batch)


def test_the_batch_with_its_nonsense_is_left_alone():
    loss, batch = make_masked_loss(), spoiled(death_of_b())
    before = batch.clone()
    loss(batch)
    assert set(batch.keys(True, True)) == set(before.keys(True, True))
    for key in before.keys(True, True):
        torch.testing.assert_close(batch[key], before[key], equal_nan=True, rtol=0, atol=0)


def test_logs_count_the_rows_that_were_lived():
    loss, batch = make_loss(clip_value=0.2), make_batch()
    mask = some_idle()
    batch["agents", "mask"] = mask
    out = loss(batch)
    group = batch["agents"][mask]  # [M], the rows that count
    policy = loss.actor_network.get_dist_tensors(group["observation"])
    log_ratio = (policy.log_prob(group["action"]) - group["action_log_prob"]).detach()
    ratio = log_ratio.exp()
    torch.testing.assert_close(out["kl_approx"], -log_ratio.mean())
    torch.testing.assert_close(out["ESS"], ratio.sum() ** 2 / (ratio**2).sum() / mask.sum())
    torch.testing.assert_close(out["clip_fraction"], ((ratio - 1).abs() > 0.2).float().mean())
    torch.testing.assert_close(out["max_ratio"], ratio.max())
    torch.testing.assert_close(out["entropy"], policy.entropy().mean().detach())
    value, target = loss.critic_network.module(group["observation"]).detach(), group["value_target"]
    torch.testing.assert_close(out["explained_variance"], 1 - (target - value).var() / target.var())
    torch.testing.assert_close(out["value_clip_fraction"], ((value - group["state_value"]).abs() > 0.2).float().mean())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_reductions_run_over_the_rows_that_count(reduction):
    mask = some_idle()
    batch, rows = make_batch(), make_batch()
    batch["agents", "mask"] = mask
    batch["collector", "mask"] = torch.arange(B) != 2
    mask = mask & (torch.arange(B) != 2).unsqueeze(-1)
    result = losses(make_loss(reduction=reduction, normalize_advantage=False)(batch))
    plain = losses(make_loss(reduction="none", normalize_advantage=False)(rows))
    for key, value in plain.items():
        kept = torch.where(mask, value, 0.0)
        expected = {"none": kept, "sum": kept.sum(), "mean": kept.sum() / mask.sum()}[reduction]
        torch.testing.assert_close(result[key], expected)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_batch_in_which_nobody_acts_has_losses_0(reduction):
    loss, batch = make_loss(reduction=reduction), make_batch()
    batch["agents", "mask"] = torch.zeros(B, N, dtype=torch.bool)
    result = loss(batch)
    assert set(result.keys()) == set(loss.out_keys)
    for key, value in result.items():
        assert (value == 0).all() and value.requires_grad == key.startswith("loss")
        assert value.shape == ((B, N) if key.startswith("loss") and reduction == "none" else ())
    sum(value.sum() for value in losses(result).values()).backward()
    assert all(parameter.grad is None for parameter in loss.parameters())


def test_a_central_critic_sees_what_waiting_agents_observe():
    """All observations enter each value; those of an agent that waits are data, only its own row is left out."""

    class Joint(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3 * N, 1)

        def forward(self, observation):
            return self.net(observation.flatten(-2)).unsqueeze(-2).expand(*observation.shape[:-1], 1)

    torch.manual_seed(0)
    critic = TensorDictModule(Joint(), in_keys=[("agents", "observation")], out_keys=[("agents", "state_value")])
    loss = MAPPOLoss(GaussianActor(), critic)
    loss.set_group("agents")
    batch, mask = make_batch(), torch.ones(B, N, dtype=torch.bool)
    mask[:, 1] = False
    batch["agents", "mask"] = mask
    value = critic.module(batch["agents", "observation"])
    error = F.smooth_l1_loss(value, batch["agents", "value_target"], reduction="none")
    torch.testing.assert_close(loss(batch)["loss_critic"], error[:, [0, 2]].mean())


# ------------------------------------------------------------------------------------------------ team and per agent


def test_identical_rewards_give_identical_updates_either_way():
    def updated(batch):
        loss = make_loss().make_value_estimator(gamma=GAMMA, lmbda=LMBDA)
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            sum(losses(loss(batch)).values()).backward()
            optimizer.step()
        return list(loss.parameters())

    batch = make_batch((2, 5)).exclude(("agents", "advantage"), ("agents", "value_target"), ("agents", "state_value"))
    signals = {"reward": torch.randn(2, 5, 1), "done": torch.rand(2, 5, 1) < 0.3}
    signals["terminated"] = signals["done"]
    team = batch.clone()
    for name, signal in signals.items():
        batch["next", "agents", name] = signal.unsqueeze(-2).expand(2, 5, N, 1).clone()
        del team["next", "agents", name]
        team["next", name] = signal
    for one, other in zip(updated(batch), updated(team), strict=True):
        assert torch.equal(one, other)


def test_a_team_critics_value_is_every_agents_value():
    torch.manual_seed(4)
    loss = MAPPOLoss(GaussianActor(), make_critic("state", "state_value"), clip_value=0.2)
    loss.set_group("agents")
    assert loss.tensor_keys.value == "state_value"
    batch = make_batch((2, 5)).exclude(("agents", "advantage"), ("agents", "value_target"), ("agents", "state_value"))
    batch["state"], batch["next", "state"] = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    batch = loss.value_estimator(batch)
    assert batch["agents", "advantage"].shape == (2, 5, N, 1) and batch["state_value"].shape == (2, 5, 1)
    value = loss.critic_network.module(batch["state"]).unsqueeze(-2)
    target = batch["agents", "value_target"]
    expected = F.smooth_l1_loss(value.expand_as(target), target)
    torch.testing.assert_close(loss(batch)["loss_critic"], expected)


def test_a_teams_advantage_is_every_agents_advantage():
    loss, batch = make_loss(), make_batch()
    names = ("advantage", "value_target")
    for name in names:
        batch[name] = batch["agents", name][:, 0]
        batch["agents", name] = batch[name].unsqueeze(-2).expand(B, N, 1).clone()
    expected = loss(batch)
    loss.set_keys(**{name: name for name in names})
    for key, value in loss(batch).items():
        torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize(
    ("name", "shape"),
    [("advantage", (B, 2, 1)), ("advantage", (B, N)), ("value_target", (B,)), ("value", (B, N + 1, 1))],
)
def test_an_entry_of_another_team_size_is_refused(name, shape):
    loss, batch = make_loss(clip_value=0.2), make_batch()
    loss.set_keys(**{name: f"odd_{name}"})
    batch[f"odd_{name}"] = torch.zeros(shape)
    with pytest.raises(SpecError) as error:
        loss(batch)
    for part in ("MAPPOLoss", f'"odd_{name}" {list(shape)}', "'agents' has 3 agents", '("agents", "action_log_prob")'):
        assert part in str(error.value)


def test_a_critic_of_another_team_size_is_refused():
    class Two(nn.Module):
        def forward(self, observation):
            return observation[..., :2, :1]

    critic = TensorDictModule(Two(), in_keys=[("agents", "observation")], out_keys=[("agents", "state_value")])
    loss = IPPOLoss(GaussianActor(), critic)
    loss.set_group("agents")
    with pytest.raises(SpecError, match=r'IPPOLoss: \("agents", "state_value"\) \[8, 2, 1\] .* 3 agents'):
        loss(make_batch())


# --------------------------------------------------------------------------------------------------- log-probabilities


def test_log_probabilities_may_have_a_trailing_dimension():
    loss, batch = make_loss(), make_batch()
    expected = loss(batch)
    batch["agents", "action_log_prob"] = batch["agents", "action_log_prob"].unsqueeze(-1)
    for key, value in loss(batch).items():
        torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize("agents", [1, N])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_policy_may_give_them_with_a_trailing_dimension(agents, reduction):
    """A scalar action without Independent: the distribution's log-probability and entropy are [*B, n, 1]."""
    torch.manual_seed(4)
    actor, batch = GaussianActor(event=False), make_batch(agents=agents)
    batch["agents", "action"] = batch["agents", "action"][..., :1]
    loss = MAPPOLoss(actor, make_critic(), reduction=reduction)
    loss.set_group("agents")
    result = loss(batch)
    actor.event = True
    for key, value in loss(batch).items():
        torch.testing.assert_close(result[key], value)
    if reduction == "none":
        assert all(value.shape == (B, agents) for value in losses(result).values())


def test_log_probabilities_summed_over_agents_are_refused():
    loss, batch = make_loss(), make_batch()
    batch["joint_log_prob"] = torch.zeros(B)
    loss.set_keys(sample_log_prob="joint_log_prob")
    with pytest.raises(SpecError, match=r'"joint_log_prob" \[8\] must hold one log-probability per agent'):
        loss(batch)


def test_log_probabilities_that_clash_name_both_keys():
    loss, batch = make_loss(), make_batch()
    joint = loss.actor_network.get_dist_tensors
    loss.actor_network.get_dist_tensors = lambda observation: Independent(joint(observation), 1)
    with pytest.raises(
        SpecError, match=r'\("agents", "action"\).*\[8\], but \("agents", "action_log_prob"\) has \[8, 3\]'
    ):
        loss(batch)


# -------------------------------------------------------------------------------------------------- value normalisation


def value_loss(loss, batch, mean, std, limit=None):
    """The critic's loss by hand: the critic's own output is in normalised units."""
    value = loss.critic_network.module(batch["agents", "observation"])
    target = (batch["agents", "value_target"] - mean) / std
    error = F.smooth_l1_loss(value, target, reduction="none")
    if limit is not None:
        old = (batch["agents", "state_value"] - mean) / std
        kept = old + (value - old).clamp(-limit, limit)
        error = torch.maximum(error, F.smooth_l1_loss(kept, target, reduction="none"))
    return error


@pytest.mark.parametrize("limit", [None, 0.1])
@pytest.mark.parametrize("masked", [False, True])
def test_targets_and_old_values_are_normalised_for_the_critic(limit, masked):
    loss, batch = make_loss(value_norm=RunningValueNorm(), clip_value=limit), make_batch()
    batch["agents", "value_target"] = batch["agents", "value_target"] * 30 + 100
    batch["agents", "state_value"] = batch["agents", "state_value"] * 30 + 100
    mask = some_idle() if masked else torch.ones(B, N, dtype=torch.bool)
    if masked:
        batch["agents", "mask"] = mask
    seen = batch["agents", "value_target"][mask]
    expected = value_loss(loss, batch, seen.mean(), seen.std(correction=0), limit)[mask].mean()
    torch.testing.assert_close(loss(batch)["loss_critic"], expected)


def test_the_statistics_move_once_per_call_and_only_in_training():
    loss, batch = make_loss(value_norm=RunningValueNorm(), clip_value=0.2), make_batch()
    loss(batch)
    assert loss.value_norm.count.item() == B * N
    loss(batch)
    assert loss.value_norm.count.item() == 2 * B * N
    loss.eval()
    loss(batch)
    assert loss.value_norm.count.item() == 2 * B * N
    assert {"value_norm.count", "value_norm.mean", "value_norm.squares"} <= set(loss.state_dict())


def norm_of(mean, std):
    norm = RunningValueNorm()
    norm.update(torch.tensor([[mean - std], [mean + std]]))
    return norm


@pytest.mark.parametrize("choice", [None, "td0", "instance"])
def test_the_losss_estimator_reads_the_critic_in_raw_units(choice):
    loss = make_loss(value_norm=norm_of(10.0, 4.0)).eval()
    batch = make_batch((2, 5)).exclude(("agents", "advantage"), ("agents", "value_target"), ("agents", "state_value"))
    if choice == "instance":
        loss.make_value_estimator(MultiAgentGAE(gamma=GAMMA, lmbda=0.0, value_network=loss.critic_network))
    elif choice == "td0":
        loss.make_value_estimator("td0", gamma=GAMMA)
    else:
        loss.make_value_estimator(gamma=GAMMA, lmbda=0.0)
    assert isinstance(loss.value_estimator, TD0Estimator if choice == "td0" else MultiAgentGAE)
    out = loss.value_estimator(batch)
    raw = 10 + 4 * loss.critic_network.module(batch["next", "agents", "observation"]).detach()
    bootstrap = raw.masked_fill(batch["next", "agents", "terminated"], 0)
    torch.testing.assert_close(out["agents", "value_target"], batch["next", "agents", "reward"] + GAMMA * bootstrap)
    torch.testing.assert_close(
        out["agents", "state_value"], 10 + 4 * loss.critic_network.module(batch["agents", "observation"]).detach()
    )


def test_renaming_the_value_reaches_the_estimators_critic():
    loss = MAPPOLoss(GaussianActor(), make_critic(out_key="v"), value_norm=norm_of(10.0, 4.0)).eval()
    loss.set_group("agents")
    loss.make_value_estimator(gamma=GAMMA, lmbda=LMBDA)
    loss.set_keys(value="v")
    batch = make_batch((2, 5))
    raw = 10 + 4 * loss.critic_network.module(batch["agents", "observation"]).detach()
    torch.testing.assert_close(loss.value_estimator(batch)["v"], raw)


def test_estimating_on_the_fly_equals_estimating_before():
    batch = make_batch((2, 5)).exclude(("agents", "advantage"), ("agents", "value_target"), ("agents", "state_value"))
    loss, twin = (make_loss(value_norm=norm_of(1.0, 2.0), clip_value=0.2) for _ in range(2))
    expected = twin(twin.value_estimator(batch.clone()))
    for key, value in loss(batch).items():
        torch.testing.assert_close(value, expected[key])


def test_popart_rescales_the_critic_that_it_is_given():
    torch.manual_seed(0)
    critic = make_critic()
    loss = IPPOLoss(GaussianActor(), critic, value_norm=PopArtValueNorm(beta=0.5, layer=critic.module[-1]))
    loss.set_group("agents")
    batch = make_batch()
    loss(batch)
    raw = loss.value_norm.denormalize(critic.module(batch["agents", "observation"]))
    batch["agents", "value_target"] += 50
    loss(batch)["loss_critic"].backward()
    torch.testing.assert_close(loss.value_norm.denormalize(critic.module(batch["agents", "observation"])), raw)


def test_a_copy_of_the_loss_estimates_with_its_own_networks():
    loss = make_loss(value_norm=norm_of(1.0, 2.0)).make_value_estimator(gamma=GAMMA, lmbda=LMBDA)
    twin = copy.deepcopy(loss)
    assert twin.value_estimator.value_network.critic is twin.critic_network
    assert twin.value_estimator.value_network.value_norm is twin.value_norm


def test_value_norm_without_a_critic_is_refused():
    with pytest.raises(SpecError, match="value_norm needs a critic_network"):
        MAPPOLoss(GaussianActor(), None, value_norm=RunningValueNorm())
    with pytest.raises(SpecError, match="value_norm is a ValueNorm"):
        MAPPOLoss(GaussianActor(), make_critic(), value_norm="popart")


# --------------------------------------------------------------------------------------------------------------- groups


def test_groups_have_losses_of_their_own():
    batch = make_batch(group="hunters", agents=2, seed=1).update(make_batch(group="prey", agents=4, seed=2))
    both = {group: make_loss(IPPOLoss, group) for group in ("hunters", "prey")}
    optimizers = optimizer_per_group(both, lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    before = [p.clone() for p in both["prey"].parameters()]
    alone = {group: loss(batch.select(group, ("next", group))) for group, loss in both.items()}
    for group, loss in both.items():
        for key, value in loss(batch).items():
            torch.testing.assert_close(value, alone[group][key])
    sum(losses(both["hunters"](batch)).values()).backward()
    optimizers.step()
    assert all(torch.equal(p, old) for p, old in zip(both["prey"].parameters(), before, strict=True))


def test_set_group_points_every_entry_at_the_group():
    loss = make_loss(IPPOLoss, "prey")
    keys = loss.tensor_keys
    assert keys.action == ("prey", "action") and keys.sample_log_prob == ("prey", "action_log_prob")
    assert keys.agent_mask == ("prey", "mask") and keys.value == ("prey", "state_value")
    assert loss.path("reward") == ("next", "prey", "reward") and loss.path("mask") == ("collector", "mask")
    assert loss.value_estimator.path("advantage") == ("prey", "advantage")
    assert loss.value_estimator.path("agent_mask") == ("prey", "mask")


def test_the_mask_of_the_group_is_read_and_no_other():
    loss, batch = make_loss(IPPOLoss, "prey"), make_batch(group="prey")
    expected = loss(batch)
    batch["agents", "mask"] = torch.zeros(B, N, dtype=torch.bool)
    for key, value in loss(batch).items():
        torch.testing.assert_close(value, expected[key])


@pytest.mark.parametrize("absent", ["action", "action_log_prob", "observation"])
def test_a_missing_entry_is_named(absent):
    batch = make_batch()
    batch["agents", "mask"] = some_idle()
    del batch["agents", absent]
    with pytest.raises(KeyMissingError, match=rf'MAPPOLoss needs \("agents", "{absent}"\)'):
        make_loss()(batch)


def test_a_missing_advantage_without_a_critic_is_named():
    loss = MAPPOLoss(GaussianActor(), None)
    loss.set_group("agents")
    with pytest.raises(KeyMissingError, match=r'needs \("agents", "advantage"\)'):
        loss(make_batch().exclude(("agents", "advantage")))


def test_keyword_tensors_tell_agents_from_rows():
    """Where every tensor is per agent the leading shape they share is [*B, n]."""
    loss, batch = make_loss(normalize_advantage=True), make_batch()
    expected = loss(batch)
    now = {f"agents_{name}": batch["agents", name] for name in ("observation", "action", "action_log_prob")}
    now |= {f"agents_{name}": batch["agents", name] for name in ("advantage", "value_target")}
    for key, value in zip(loss.out_keys, loss(**now), strict=True):
        torch.testing.assert_close(value, expected[key])
