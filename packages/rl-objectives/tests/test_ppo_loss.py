"""PPO losses against a plain-torch reference from the paper, and the contract that scripts rely on."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_core.errors import KeyMissingError, SpecError
from rl_core.testing import LossKit
from rl_objectives import GAE, ClipPPOLoss, PPOLoss, TD0Estimator, ValueEstimators


class GaussianActor(nn.Module):
    """A stochastic policy as small as the contract allows."""

    in_keys = ("observation",)
    out_keys = ("action",)

    def __init__(self, trunk=None, squashed=False):
        super().__init__()
        self.trunk = trunk if trunk is not None else nn.Identity()
        self.head = nn.Linear(3, 2)
        self.log_scale = nn.Parameter(torch.zeros(2))
        self.squashed = squashed

    def get_dist(self, tensordict):
        tensordict["loc"] = self.head(self.trunk(tensordict["observation"]))
        normal = Normal(tensordict["loc"], self.log_scale.exp())
        squashed = TransformedDistribution(normal, TanhTransform(cache_size=1)) if self.squashed else normal
        return Independent(squashed, 1)


def make_critic(trunk=None):
    layers = [nn.Linear(3, 1)] if trunk is None else [trunk, nn.Linear(3, 1)]
    return TensorDictModule(nn.Sequential(*layers), in_keys=["observation"], out_keys=["state_value"])


def make_batch(size=16):
    torch.manual_seed(3)
    done = torch.rand(size, 1) < 0.3
    step = {"observation": torch.randn(size, 3), "reward": torch.randn(size, 1), "done": done, "terminated": done}
    return TensorDict(
        {
            "observation": torch.randn(size, 3),
            "action": torch.rand(size, 2) * 1.8 - 0.9,
            "action_log_prob": torch.randn(size) - 2,
            "advantage": torch.randn(size, 1),
            "value_target": torch.randn(size, 1),
            "state_value": torch.randn(size, 1),
            "next": step,
        },
        [size],
    )


def make_loss(kind=ClipPPOLoss, **options):
    torch.manual_seed(4)
    return kind(GaussianActor(), make_critic(), **options)


class TestClipPPOKeepsItsPromises(LossKit):
    gradients = {
        "loss_objective": {"actor_network"},
        "loss_critic": {"critic_network"},
        "loss_entropy": {"actor_network"},
    }

    def make_loss(self, **options):
        return make_loss(clip_value=0.2, **options)

    def make_batch(self):
        return make_batch()


class TestPPOKeepsItsPromises(TestClipPPOKeepsItsPromises):
    def make_loss(self, **options):
        return make_loss(PPOLoss, **options)


def reference(loss, batch, *, clip, epsilon=0.2, normalize=False, critic="smooth_l1", value_clip=None):
    """Schulman et al., 2017, eq. 6, 7 and 9, in plain torch."""
    actor, net = loss.actor_network, loss.critic_network.module
    normal = Normal(actor.head(batch["observation"]), actor.log_scale.exp())
    ratio = (normal.log_prob(batch["action"]).sum(-1) - batch["action_log_prob"]).exp()
    advantage = batch["advantage"].squeeze(-1)
    if normalize:
        advantage = (advantage - advantage.mean()) / advantage.std()
    gain = ratio * advantage
    if clip:
        gain = torch.min(gain, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage)
    distance = {"smooth_l1": F.smooth_l1_loss, "l2": F.mse_loss, "l1": F.l1_loss}[critic]
    value, target, old = net(batch["observation"]), batch["value_target"], batch["state_value"]
    error = distance(value, target, reduction="none")
    if value_clip:
        kept = old + (value - old).clamp(-value_clip, value_clip)
        error = torch.max(error, distance(kept, target, reduction="none"))
    entropy = normal.entropy().sum(-1)
    return {"loss_objective": -gain.mean(), "loss_critic": error.mean(), "loss_entropy": -0.01 * entropy.mean()}


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("critic", ["smooth_l1", "l2", "l1"])
@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("kind", [PPOLoss, ClipPPOLoss])
def test_values_and_gradients_equal_plain_torch(kind, normalize, critic, value_clip):
    loss = make_loss(kind, normalize_advantage=normalize, loss_critic_type=critic, clip_value=value_clip)
    twin, batch = copy.deepcopy(loss), make_batch()
    expected = reference(
        twin, batch, clip=kind is ClipPPOLoss, normalize=normalize, critic=critic, value_clip=value_clip
    )
    result = loss(batch)
    for key, value in expected.items():
        torch.testing.assert_close(result[key], value)
    sum(value for key, value in result.items() if key.startswith("loss")).backward()
    sum(expected.values()).backward()
    for one, other in zip(loss.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_pair_clips_each_side_at_its_own_distance():
    loss, batch = make_loss(clip_epsilon=(0.1, 0.4)), make_batch()
    actor = loss.actor_network
    log_prob = Normal(actor.head(batch["observation"]), actor.log_scale.exp()).log_prob(batch["action"]).sum(-1)
    ratio = (log_prob - batch["action_log_prob"]).exp()
    advantage = batch["advantage"].squeeze(-1)
    expected = -torch.min(ratio * advantage, ratio.clamp(0.9, 1.4) * advantage).mean()
    torch.testing.assert_close(loss(batch)["loss_objective"], expected)


def test_logs_are_scalars_with_their_textbook_values():
    loss, batch = make_loss(), make_batch()
    actor = loss.actor_network
    log_prob = Normal(actor.head(batch["observation"]), actor.log_scale.exp()).log_prob(batch["action"]).sum(-1)
    log_ratio = (log_prob - batch["action_log_prob"]).detach()
    ratio, out = log_ratio.exp(), loss(batch)
    torch.testing.assert_close(out["kl_approx"], -log_ratio.mean())
    torch.testing.assert_close(out["ESS"], ratio.sum() ** 2 / (ratio**2).sum() / 16)
    torch.testing.assert_close(out["clip_fraction"], ((ratio - 1).abs() > 0.2).float().mean())
    torch.testing.assert_close(out["max_ratio"], ratio.max())
    torch.testing.assert_close(out["mean_ratio"], ratio.mean())
    value, target = loss.critic_network.module(batch["observation"]).detach(), batch["value_target"]
    torch.testing.assert_close(out["explained_variance"], 1 - (target - value).var() / target.var())


def test_logs_stay_scalars_on_batches_with_time():
    batch = make_batch().reshape(4, 4)
    flat, shaped = make_loss()(make_batch()), make_loss()(batch)
    for key, value in shaped.items():
        assert value.shape == (), key
        torch.testing.assert_close(value, flat[key])


def test_on_policy_data_has_ratio_1():
    loss, batch = make_loss(), make_batch()
    with torch.no_grad():
        batch["action_log_prob"] = loss.actor_network.get_dist(batch.clone()).log_prob(batch["action"])
    out = loss(batch)
    assert out["ESS"].item() == pytest.approx(1.0) and out["clip_fraction"].item() == 0.0
    torch.testing.assert_close(out["loss_objective"], -batch["advantage"].mean())


def test_the_entropy_of_a_squashed_policy_is_sampled():
    torch.manual_seed(0)
    loss = ClipPPOLoss(GaussianActor(squashed=True), make_critic(), samples_mc_entropy=4000)
    batch = make_batch()
    # H(tanh x) = H(x) + E[log(1 - tanh(x)^2)], by Gauss-Hermite quadrature
    loc, scale = loss.actor_network.head(batch["observation"]).detach(), torch.ones(2)
    nodes, weights = (torch.from_numpy(x).float() for x in __import__("numpy").polynomial.hermite_e.hermegauss(60))
    x = loc.unsqueeze(-1) + nodes
    stretch = ((1 - x.tanh() ** 2).clamp_min(1e-30).log() * weights / weights.sum()).sum(-1)
    expected = (Normal(loc, scale).entropy() + stretch).sum(-1).mean()
    out = loss(batch)
    assert out["entropy"].item() == pytest.approx(expected.item(), abs=0.03)
    out["loss_entropy"].backward()
    assert loss.actor_network.head.weight.grad.abs().sum() > 0


def test_a_distribution_that_gives_sample_and_log_prob_at_once_is_asked_for_both():
    class Joint(Independent):
        def entropy(self):
            raise NotImplementedError

        def rsample_and_log_prob(self, shape):
            samples = self.rsample(shape)
            return samples, torch.full(samples.shape[:-1], -7.0) + 0 * self.log_prob(samples)

    loss, batch = make_loss(samples_mc_entropy=3), make_batch()
    loss.actor_network.get_dist = lambda td: Joint(Normal(loss.actor_network.head(td["observation"]), 1.0), 1)
    out = loss(batch)
    assert out["entropy"].item() == pytest.approx(7.0)
    assert out["loss_entropy"].item() == pytest.approx(-0.07)


def test_agents_are_normalised_apart_when_asked():
    torch.manual_seed(0)
    advantage = torch.randn(8, 2, 1) * torch.tensor([[1.0], [50.0]]) + 7
    batch = make_batch(8)
    batch["observation"] = torch.randn(8, 2, 3)
    batch["action"], batch["action_log_prob"] = torch.randn(8, 2, 2), torch.randn(8, 2)
    batch["advantage"], batch["value_target"] = advantage, torch.randn(8, 2, 1)
    loss = make_loss(normalize_advantage=True, normalize_advantage_exclude_dims=(-2,))
    scaled = batch.clone()
    scaled["advantage"] = (advantage - advantage.mean(0)) / advantage.std(0)
    torch.testing.assert_close(loss(batch)["loss_objective"], make_loss()(scaled)["loss_objective"])


def test_a_missing_advantage_is_estimated_without_touching_the_batch():
    loss, batch = make_loss(), make_batch().exclude("advantage", "value_target", "state_value").reshape(2, 8)
    loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.8)
    keys = set(batch.keys(include_nested=True))
    out = loss(batch)
    assert set(batch.keys(include_nested=True)) == keys
    ready = GAE(gamma=0.9, lmbda=0.8, value_network=loss.critic_network)(batch)
    torch.testing.assert_close(out["loss_objective"], loss(ready)["loss_objective"])
    torch.testing.assert_close(out["loss_critic"], loss(ready)["loss_critic"])


def test_set_keys_reaches_the_value_estimator():
    loss, batch = make_loss(), make_batch().exclude("advantage", "value_target", "state_value")
    expected = loss(batch)["loss_objective"]
    batch.rename_key_(("next", "reward"), ("next", "gain"))
    loss.set_keys(reward="gain")
    torch.testing.assert_close(loss(batch)["loss_objective"], expected)
    loss.make_value_estimator()
    torch.testing.assert_close(loss(batch)["loss_objective"], expected)


@pytest.mark.parametrize("choice", ["td0", "TD0", ValueEstimators.TD0, TD0Estimator, "instance"])
def test_the_value_estimator_can_be_named_in_every_way(choice):
    loss = make_loss()
    if choice == "instance":
        loss.make_value_estimator(TD0Estimator(gamma=0.5, value_network=loss.critic_network))
    else:
        loss.make_value_estimator(choice, gamma=0.5)
    assert type(loss.value_estimator) is TD0Estimator and loss.value_estimator.gamma == 0.5
    assert not [key for key in loss.state_dict() if "estimator" in key]


def test_a_shared_trunk_is_trained_by_both_losses_and_listed_once():
    trunk = nn.Linear(3, 3)
    loss = ClipPPOLoss(GaussianActor(trunk), make_critic(trunk))
    assert sum(parameter is trunk.weight for parameter in loss.parameters()) == 1
    loss(make_batch())["loss_critic"].backward()
    assert trunk.weight.grad.abs().sum() > 0


def test_separate_losses_keep_the_critic_from_moving_the_shared_trunk():
    trunk = nn.Linear(3, 3)
    loss = ClipPPOLoss(GaussianActor(trunk), make_critic(trunk), separate_losses=True)
    together = ClipPPOLoss(loss.actor_network, loss.critic_network)
    out = loss(make_batch())
    torch.testing.assert_close(out["loss_critic"], together(make_batch())["loss_critic"])
    out["loss_critic"].backward(retain_graph=True)
    assert trunk.weight.grad is None
    assert loss.critic_network.module[1].weight.grad.abs().sum() > 0
    out["loss_objective"].backward()
    assert trunk.weight.grad.abs().sum() > 0


def test_coefficients_follow_a_schedule():
    loss, batch = make_loss(), make_batch()
    before = loss(batch)
    loss.entropy_coeff = 0.02
    loss.critic_coeff = 0.5
    after = loss(batch)
    torch.testing.assert_close(after["loss_entropy"], 2 * before["loss_entropy"])
    torch.testing.assert_close(after["loss_critic"], 0.5 * before["loss_critic"])
    loss.clip_epsilon = 1e9
    torch.testing.assert_close(loss(batch)["loss_objective"], make_loss(PPOLoss)(batch)["loss_objective"])
    assert loss.state_dict()["entropy_coeff"].item() == pytest.approx(0.02)


def test_clip_value_true_follows_clip_epsilon():
    loss, batch = make_loss(clip_value=True), make_batch()
    torch.testing.assert_close(loss(batch)["loss_critic"], make_loss(clip_value=0.2)(batch)["loss_critic"])
    loss.clip_epsilon = 0.05
    torch.testing.assert_close(loss(batch)["loss_critic"], make_loss(clip_value=0.05)(batch)["loss_critic"])


def test_parts_can_be_left_out():
    batch = make_batch()
    for absent, options in (("loss_entropy", {"entropy_bonus": False}), ("loss_critic", {"critic_coeff": None})):
        loss = make_loss(**options)
        assert set(loss(batch).keys()) == set(loss.out_keys) and absent not in loss.out_keys
    alone = ClipPPOLoss(GaussianActor())
    assert set(alone(batch).keys()) == set(alone.out_keys)


def test_out_keys_can_be_selected():
    loss, batch = make_loss().select_out_keys("loss_objective", "ESS"), make_batch()
    assert list(loss(batch).keys()) == ["loss_objective", "ESS"]
    with pytest.raises(SpecError, match="does not return 'nonsense'"):
        loss.select_out_keys("nonsense")


def test_views_of_the_parameters_build_optimisers():
    loss = make_loss()
    actor = list(loss.actor_network_params.values(True, True))
    critic = list(loss.critic_network_params.flatten_keys().values())
    assert {id(p) for p in actor + critic} == {id(p) for p in loss.parameters()}
    torch.optim.Adam(actor), torch.optim.Adam(critic)
    with pytest.raises(AttributeError):
        _ = loss.nonsense_params


def test_data_that_carries_a_graph_is_refused():
    for key in ("action", "action_log_prob"):
        batch = make_batch()
        batch[key] = batch[key].requires_grad_()
        with pytest.raises(SpecError, match=f'stored "{key}" requires grad.*no_grad'):
            make_loss()(batch)


def test_log_probabilities_that_would_broadcast_are_refused():
    batch = make_batch()
    batch["action_log_prob"] = torch.randn(16, 2)
    with pytest.raises(SpecError, match=r'"action_log_prob" has \[16, 2\]'):
        make_loss()(batch)
    batch = make_batch()
    batch["advantage"] = torch.randn(16)
    with pytest.raises(
        SpecError, match=r'"action_log_prob" \[16\] and "advantage" \[16\]|must have one shape'
    ) as error:
        make_loss(critic_coeff=None)(batch.set("advantage", torch.randn(16, 2)))
    assert "advantage" in str(error.value)
    batch = make_batch()
    batch["value_target"] = torch.randn(16, 2)
    with pytest.raises(SpecError, match=r'"state_value" \[16, 1\] and "value_target" \[16, 2\]'):
        make_loss()(batch)


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ("action_log_prob", ["return_log_prob=True", "loss.set_keys(sample_log_prob=...)"]),
        (("next", "reward"), ['GAE needs ("next", "reward")', "environment writes it"]),
        ("value_target", ["GAE", "loss.set_keys(value_target=...)"]),
        ("observation", ['ClipPPOLoss needs "observation"', "GaussianActor"]),
        ("action", ["collecting policy writes it", "loss.set_keys(action=...)"]),
    ],
)
def test_a_missing_entry_names_key_producer_and_cure(absent, words):
    batch = make_batch().exclude(absent)
    if absent == ("next", "reward"):
        batch = batch.exclude("advantage")
    with pytest.raises(KeyMissingError) as error:
        make_loss()(batch)
    for word in words:
        assert word in str(error.value)


def test_a_near_miss_is_suggested():
    batch = make_batch()
    batch.rename_key_("action_log_prob", "action_logprob")
    with pytest.raises(KeyMissingError, match='Did you mean "action_logprob"'):
        make_loss()(batch)


def test_without_critic_a_missing_advantage_is_an_error():
    with pytest.raises(KeyMissingError, match=r'ClipPPOLoss needs "advantage".*run GAE'):
        ClipPPOLoss(GaussianActor())(make_batch().exclude("advantage"))


def test_wrong_arguments_say_what_is_right():
    with pytest.raises(TypeError, match=r"make_value_estimator\(gamma=0.99"):
        make_loss(gamma=0.99)
    with pytest.raises(SpecError, match="actor_network with get_dist"):
        ClipPPOLoss(make_critic(), make_critic())
    with pytest.raises(SpecError, match="critic_network to be a module with in_keys; got Linear"):
        ClipPPOLoss(GaussianActor(), nn.Linear(3, 1))
    with pytest.raises(SpecError, match="'smooth_l1'; got 'huber'"):
        make_loss(loss_critic_type="huber")
    with pytest.raises(SpecError, match="'none'; got 'avg'"):
        make_loss(reduction="avg")
    with pytest.raises(TypeError, match="reads no 'rewards'"):
        make_loss()(rewards=torch.ones(3, 1))


def test_it_can_be_copied_and_moved_to_another_precision():
    loss = make_loss()
    loss.make_value_estimator(gamma=0.9)
    twin = copy.deepcopy(loss).double()
    assert twin.value_estimator.value_network is twin.critic_network
    out = twin(make_batch().double())
    assert out["loss_objective"].dtype == torch.float64
