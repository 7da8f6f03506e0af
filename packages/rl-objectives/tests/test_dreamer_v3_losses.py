"""DreamerV3's losses against the paper's equations: values, gradients, ends of episodes, and whom each moves."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torch.distributions import Independent, Normal, OneHotCategorical

from rl_core import Composite, ModelBasedEnvBase, OneHot, Unbounded, registry
from rl_core.errors import LossError, SpecError
from rl_core.testing import LossKit
from rl_objectives import DreamerV3ActorLoss, DreamerV3ModelLoss, DreamerV3ValueLoss, SoftUpdate, ValueEstimators
from rl_objectives.functional.symlog import symexp_bins, two_hot, two_hot_mean

STATE, BELIEF, ACTIONS, BINS = 4, 3, 3, 9


class Joined(nn.Sequential):
    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, -1))


def under_next(*names):
    return [("next", name) for name in names]


class Predictions(nn.Module):
    """A world model whose every output is a number times a weight of 1; prior and posterior have one of their own."""

    def __init__(self):
        super().__init__()
        self.weight, self.prior, self.posterior = (nn.Parameter(torch.ones(())) for _ in range(3))

    def forward(self, pixels, observation):
        def full(value, *shape):
            return torch.full((*pixels.shape[:2], *shape), value) * self.weight

        logits = torch.tensor([[0.0, 2.0]]).expand(*pixels.shape[:2], 1, 2)
        images = full(0.0, 1, 2, 2), full(0.0, 3)
        return *images, full(0.0, BINS), full(0.0, 1), full(1.0, 1), logits * self.prior, -logits * self.posterior


OUTPUTS = ("reco_pixels", "reco_observation", "reward_logits", "reward", "continue_pred", "prior_logits")


def make_world_model():
    outputs = under_next(*OUTPUTS, "posterior_logits")
    return TensorDictModule(Predictions(), under_next("pixels", "observation"), outputs)


def make_sequences():
    step = {
        "pixels": torch.full((2, 3, 1, 2, 2), 2.0),
        "observation": torch.full((2, 3, 3), 7.0),
        "reward": torch.full((2, 3, 1), 3.0),
        "terminated": torch.tensor([[[False], [True], [False]]] * 2),
    }
    return TensorDict({"next": step}, [2, 3])


def model_losses(batch=None, **options):
    options = {"num_reward_bins": BINS, **options}
    losses, data = DreamerV3ModelLoss(make_world_model(), **options)(make_sequences() if batch is None else batch)
    return losses, data


KL = math.tanh(1.0) * 2  # of Cat(softmax(0, -2)) against Cat(softmax(0, 2)): the log-ratios are +-2


def test_the_reconstructions_by_hand():
    assert model_losses(reco_symlog=False)[0]["loss_model_reco"].item() == 16.0
    symlogged = 4 * math.log(3) ** 2
    assert model_losses()[0]["loss_model_reco"].item() == pytest.approx(symlogged)
    assert model_losses(global_average=True)[0]["loss_model_reco"].item() == pytest.approx(symlogged / 4)
    assert model_losses(reco_loss="l1", reco_symlog=False, lambda_reco=0.5)[0]["loss_model_reco"].item() == 4.0


def test_images_and_vectors_are_reconstructed_together():
    losses, _ = model_losses(reconstructs=("pixels", "vector"), reco_symlog=[False, True])
    assert losses["loss_model_reco"].item() == pytest.approx(16.0 + 3 * math.log(8) ** 2)
    vector = DreamerV3ModelLoss(make_world_model(), reconstructs=["vector"], num_reward_bins=BINS)
    vector.set_keys(vector="pixels", reco_vector="reco_pixels")
    assert vector(make_sequences())[0]["loss_model_reco"].item() == pytest.approx(4 * math.log(3) ** 2)
    with pytest.raises(SpecError, match="reco_symlog"):
        model_losses(reconstructs=("pixels", "vector"), reco_symlog=[True])
    with pytest.raises(SpecError, match="reconstructs"):
        model_losses(reconstructs=("sound",))


def test_rewards_are_predicted_over_bins_or_as_a_symlog():
    assert model_losses()[0]["loss_model_reward"].item() == pytest.approx(math.log(BINS))
    assert model_losses(reward_two_hot=False)[0]["loss_model_reward"].item() == pytest.approx(math.log(4) ** 2)


def test_the_divergences_by_hand():
    losses, _ = model_losses(kl_mode="separate")
    assert losses["loss_model_dynamic"].item() == pytest.approx(KL, rel=1e-5)
    assert losses["loss_model_representation"].item() == pytest.approx(0.1 * KL, rel=1e-5)
    assert losses["kl"].item() == pytest.approx(KL, rel=1e-5) and not losses["kl"].requires_grad
    free, _ = model_losses(kl_mode="separate", free_bits=5.0, lambda_kl=2.0)
    assert free["loss_model_dynamic"].item() == 10.0 and free["loss_model_representation"].item() == 1.0
    assert model_losses()[0]["loss_model_kl"].item() == pytest.approx(KL, rel=1e-5)
    mixed = model_losses(unimix=0.5, free_bits=0.0)[0]["loss_model_kl"].item()
    high, low = 0.25 + 0.5 / (1 + math.exp(-2)), 0.25 + 0.5 / (1 + math.exp(2))
    assert mixed == pytest.approx((high - low) * math.log(high / low), rel=1e-5)


def test_the_two_divergences_move_the_prior_and_the_posterior_by_their_weights():
    loss = DreamerV3ModelLoss(make_world_model(), kl_mode="balanced", kl_alpha=0.8, num_reward_bins=BINS)
    weights = loss.world_model.module
    both = [weights.prior, weights.posterior]
    balanced = torch.autograd.grad(loss(make_sequences())[0]["loss_model_kl"], both)
    loss = DreamerV3ModelLoss(loss.world_model, kl_mode="separate", num_reward_bins=BINS)
    losses, _ = loss(make_sequences())
    dynamics = torch.autograd.grad(losses["loss_model_dynamic"], both, allow_unused=True, retain_graph=True)
    representation = torch.autograd.grad(losses["loss_model_representation"], both, allow_unused=True)
    assert dynamics[1] is None and representation[0] is None
    torch.testing.assert_close(balanced[0], 0.8 * dynamics[0])
    torch.testing.assert_close(balanced[1], 0.2 * representation[1] / 0.1)


def test_below_the_free_bits_there_is_no_gradient():
    loss = DreamerV3ModelLoss(make_world_model(), free_bits=3.0, num_reward_bins=BINS)
    loss(make_sequences())[0]["loss_model_kl"].backward()
    assert loss.world_model.module.prior.grad.item() == loss.world_model.module.posterior.grad.item() == 0.0


def test_the_continuation_learns_from_terminations_alone():
    batch = make_sequences()
    batch["next", "truncated"] = torch.ones(2, 3, 1, dtype=torch.bool)
    losses, _ = model_losses(batch, lambda_continue=2.0)
    on, off = math.log1p(math.exp(-1)), math.log1p(math.exp(1))
    assert losses["loss_model_continue"].item() == pytest.approx(2 * (2 * on + off) / 3)
    scaled, _ = model_losses(lambda_continue=1.0, continue_target_scale=0.9)
    assert scaled["loss_model_continue"].item() == pytest.approx((2 * (0.9 * on + 0.1 * off) + off) / 3)
    assert "loss_model_continue" not in model_losses()[0]
    batch["next", "terminated"] = batch["next", "terminated"].float()
    with pytest.raises(LossError, match="terminated"):
        model_losses(batch, lambda_continue=1.0)


def test_masked_steps_do_not_count_and_the_data_has_no_graph():
    batch = make_sequences()
    batch["next", "pixels"][0] = 1e5
    batch.set(("collector", "mask"), torch.tensor([[False] * 3, [True, True, False]]))
    losses, data = model_losses(batch, reco_symlog=False)
    assert losses["loss_model_reco"].item() == 16.0 and not data["next", "posterior_logits"].requires_grad
    assert model_losses(detach_output=False)[1]["next", "posterior_logits"].requires_grad
    rows = model_losses(batch, reco_symlog=False, reduction="none")[0]["loss_model_reco"]
    assert rows.tolist() == [[0.0, 0.0, 0.0], [16.0, 16.0, 0.0]]


# ---------------------------------------------------------------- actor


class Dynamics(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(STATE + BELIEF + ACTIONS, STATE + BELIEF + 1)

    def forward(self, state, belief, action):
        joined = torch.cat([state, belief, action.to(state.dtype)], -1)
        return torch.tanh(self.net(joined)).split([STATE, BELIEF, 1], -1)


class Imagination(ModelBasedEnvBase):
    def __init__(self, world_model, action_spec):
        super().__init__(world_model)
        latent = Composite(state=Unbounded(shape=(STATE,)), belief=Unbounded(shape=(BELIEF,)))
        self.observation_spec, self.state_spec = latent, latent.clone()
        self.action_spec = action_spec
        self.reward_spec = Unbounded(shape=(1,))


class LocAndScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(STATE + BELIEF, 2 * ACTIONS)

    def forward(self, *inputs):
        loc, scale = self.net(torch.cat(inputs, -1)).chunk(2, -1)
        return loc, scale.exp()


class SumNormal(Independent):
    def __init__(self, loc, scale):
        super().__init__(Normal(loc, scale), 1)


def make_parts(discrete=True):
    torch.manual_seed(0)
    model = TensorDictModule(Dynamics(), ["state", "belief", "action"], ["state", "belief", "reward"])
    inputs = ["state", "belief"]
    if discrete:
        net, names, kind = Joined(nn.Linear(STATE + BELIEF, ACTIONS)), ["logits"], OneHotCategorical
    else:
        net, names, kind = LocAndScale(), ["loc", "scale"], SumNormal
    head = ProbabilisticTensorDictModule(
        names, ["action"], distribution_class=kind, default_interaction_type=InteractionType.RANDOM
    )
    actor = ProbabilisticTensorDictSequential(TensorDictModule(net, inputs, names), head)
    value = TensorDictModule(Joined(nn.Linear(STATE + BELIEF, 1)), inputs, ["state_value"])
    goes_on = TensorDictModule(Joined(nn.Linear(STATE + BELIEF, 1), nn.Sigmoid()), inputs, ["continuation"])
    spec = OneHot(ACTIONS) if discrete else Unbounded(shape=(ACTIONS,))
    return Imagination(model, spec), actor, value, goes_on


def make_states(*batch):
    torch.manual_seed(1)
    return TensorDict({"state": torch.randn(*batch, STATE), "belief": torch.randn(*batch, BELIEF)}, list(batch))


def slow_returns(data, value, goes_on, gamma, lmbda):
    """R_t = r_t + gamma c_t ((1 - lambda) v_{t+1} + lambda R_{t+1}), and w_t = prod_{k < t} gamma c_k."""
    following = data["next"]
    v, c = (net.module(following["state"], following["belief"]) for net in (value, goes_on))
    steps = data.shape[-1]
    returns, weights = [None] * steps, [torch.ones_like(v[..., 0, :])]
    after = v[..., -1, :]
    for t in reversed(range(steps)):
        ahead = (1 - lmbda) * v[..., t, :] + lmbda * after
        returns[t] = after = following["reward"][..., t, :] + gamma * c[..., t, :] * ahead
    for t in range(steps - 1):
        weights.append(weights[-1] * gamma * c[..., t, :])
    return torch.stack(returns, -2), torch.stack(weights, -2)


@pytest.mark.parametrize("discount", [True, False])
def test_the_policy_gradient_of_the_paper(discount):
    env, actor, value, goes_on = make_parts()
    gamma, lmbda, bonus = 0.9, 0.7, 0.05
    loss = DreamerV3ActorLoss(
        actor,
        value,
        env,
        continuation_model=goes_on,
        imagination_horizon=4,
        discount_loss=discount,
        entropy_bonus=bonus,
        use_reinforce=True,
        return_normalization_rate=1.0,
        return_normalization_min_scale=0.1,
        gamma=gamma,
        lmbda=lmbda,
    )
    losses, data = loss(make_states(5))
    parameters = list(actor.parameters())
    gradients = torch.autograd.grad(losses["loss_actor"], parameters)

    with torch.no_grad():
        returns, weights = slow_returns(data, value, goes_on, gamma, lmbda)
        low, high = (torch.quantile(returns, share) for share in (0.05, 0.95))
        scale = max(0.1, (high - low).item())
        advantage = (returns - value.module(data["state"], data["belief"])) / scale
    logits = actor[0].module(data["state"], data["belief"])
    log_probs = logits.log_softmax(-1)
    chosen = (log_probs * data["action"]).sum(-1, keepdim=True)
    entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
    weights = weights if discount else torch.ones_like(weights)
    expected = -(weights * (advantage * chosen + bonus * entropy)).mean()

    torch.testing.assert_close(data["lambda_target"], returns)
    torch.testing.assert_close(data["discount_weight"], weights)
    torch.testing.assert_close(losses["loss_actor"], expected)
    for found, right in zip(gradients, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(found, right)
    torch.testing.assert_close(losses["return_scale"], torch.tensor(scale))
    torch.testing.assert_close(losses["entropy"], entropy.mean())
    assert losses["return_low"].item() == pytest.approx(low.item(), rel=1e-4)


def test_gradients_through_the_world_model_take_the_place_of_the_policy_gradient():
    env, actor, value, goes_on = make_parts(discrete=False)
    loss = DreamerV3ActorLoss(
        actor, value, env, continuation_model=goes_on, imagination_horizon=3, entropy_bonus=0.0, gamma=0.9, lmbda=0.7
    )
    torch.manual_seed(7)
    losses, data = loss(make_states(5))
    gradients = torch.autograd.grad(losses["loss_actor"], list(actor.parameters()))

    torch.manual_seed(7)
    td, steps = make_states(5), []
    for _ in range(3):
        root = actor(td)
        steps.append(env.world_model(root.copy()).select("state", "belief", "reward"))
        td = steps[-1].exclude("reward")
    seen = TensorDict({"next": torch.stack(steps, -1)}, [5, 3])
    returns, weights = slow_returns(seen, value, goes_on, 0.9, 0.7)
    torch.testing.assert_close(data["lambda_target"], returns)
    expected = -(weights.detach() * returns).mean()  # the range is below 1, the smallest scale
    for found, right in zip(gradients, torch.autograd.grad(expected, list(actor.parameters())), strict=True):
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("reinforce", [True, False])
def test_the_actor_loss_moves_the_actor_and_lists_nothing_else(reinforce):
    env, actor, value, goes_on = make_parts(discrete=reinforce)
    loss = DreamerV3ActorLoss(
        actor, value, env, continuation_model=goes_on, imagination_horizon=3, use_reinforce=reinforce
    )
    assert {id(p) for p in loss.parameters()} == {id(p) for p in actor.parameters()}
    loss(make_states(4))[0]["loss_actor"].backward()
    assert all(p.grad is not None for p in actor.parameters())
    others = [*env.world_model.parameters(), *value.parameters(), *goes_on.parameters()]
    assert all(p.grad is None and p.requires_grad for p in others)


def test_nothing_counts_behind_a_predicted_end():
    env, actor, value, goes_on = make_parts()
    nn.init.constant_(goes_on.module[0].bias, -200.0)
    nn.init.zeros_(goes_on.module[0].weight)
    loss = DreamerV3ActorLoss(actor, value, env, continuation_model=goes_on, imagination_horizon=4, use_reinforce=True)
    losses, data = loss(make_states(5))
    assert losses["continuation_mean"].item() == 0.0
    torch.testing.assert_close(data["lambda_target"], data["next", "reward"])
    assert data["discount_weight"].squeeze(-1).tolist() == [[1.0, 0.0, 0.0, 0.0]] * 5


def test_the_range_of_returns_moves_in_training_alone_and_is_saved():
    env, actor, value, _ = make_parts()
    loss = DreamerV3ActorLoss(actor, value, env, imagination_horizon=3, use_reinforce=True)
    loss(make_states(5))
    moved = loss.return_norm.high.clone()
    assert moved.item() != 0.0
    loss.eval()
    loss(make_states(5))
    assert torch.equal(loss.return_norm.high, moved)
    other = DreamerV3ActorLoss(make_parts()[1], value, env, imagination_horizon=3)
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other.return_norm.high, moved)
    plain = DreamerV3ActorLoss(actor, value, env, use_reinforce=True, return_normalization=False)
    assert plain(make_states(5))[0]["return_scale"].item() == 1.0


def test_masked_starts_do_not_count():
    env, actor, value, goes_on = make_parts()
    nn.init.zeros_(actor[0].module[0].weight)
    actor[0].module[0].bias.data = torch.tensor([50.0, 0.0, 0.0])  # always the first action
    loss = DreamerV3ActorLoss(actor, value, env, continuation_model=goes_on, imagination_horizon=3, use_reinforce=True)
    loss.eval()
    states, mask = make_states(2, 3), torch.tensor([[True, True, False], [True, False, False]])
    expected = loss(states[mask])[0]
    states["state"][~mask] = 1e3
    losses, data = loss(states.set(("collector", "mask"), mask))
    for key in ("loss_actor", "entropy", "continuation_mean"):
        torch.testing.assert_close(losses[key], expected[key])
    assert data["collector", "mask"].shape == (2, 3, 3)


def test_options_of_returns_are_checked():
    env, actor, value, _ = make_parts()
    loss = DreamerV3ActorLoss(actor, value, env, use_reinforce=True)
    loss.make_value_estimator(ValueEstimators.TD1, gamma=0.5)
    loss.make_value_estimator("td0", gamma=0.5)
    _, data = loss(make_states(5))
    following = value.module(data["next", "state"], data["next", "belief"])
    torch.testing.assert_close(data["lambda_target"], data["next", "reward"] + 0.5 * following)
    with pytest.raises(SpecError, match="GAE"):
        loss.make_value_estimator(ValueEstimators.GAE)


# ---------------------------------------------------------------- value


def make_value():
    torch.manual_seed(2)
    return TensorDictModule(Joined(nn.Linear(STATE + BELIEF, BINS)), ["state", "belief"], ["state_value_logits"])


def make_imagined(*batch):
    data = make_states(*batch)
    data.set("lambda_target", torch.randn(*batch, 1) * 20)
    return data.set("discount_weight", torch.rand(*batch, 1))


def test_the_value_loss_is_the_weighted_cross_entropy():
    value, data, bins = make_value(), make_imagined(3, 4), symexp_bins(BINS)
    log_probs = value.module(data["state"], data["belief"]).log_softmax(-1)
    cross = -(two_hot(data["lambda_target"].squeeze(-1), bins) * log_probs).sum(-1)
    found = DreamerV3ValueLoss(value, "two_hot", num_value_bins=BINS)(data)[0]["loss_value"]
    torch.testing.assert_close(found, (data["discount_weight"].squeeze(-1) * cross).mean())
    found = DreamerV3ValueLoss(value, "two_hot", False, num_value_bins=BINS)(data)[0]["loss_value"]
    torch.testing.assert_close(found, cross.mean())


def test_the_slow_copy_pulls_and_is_moved_by_an_updater():
    value, data, bins = make_value(), make_imagined(3, 4), symexp_bins(BINS)
    loss = DreamerV3ValueLoss(value, "two_hot", num_value_bins=BINS, slow_critic_regularization=0.5)
    plain = DreamerV3ValueLoss(value, "two_hot", num_value_bins=BINS)(data)[0]["loss_value"]
    with torch.no_grad():
        for weight in loss.target_value_model.buffers():
            weight.mul_(0.5)
        slow = loss.target_value_model.module(data["state"], data["belief"])
    log_probs = value.module(data["state"], data["belief"]).log_softmax(-1)
    pull = -(two_hot(two_hot_mean(slow, bins), bins) * log_probs).sum(-1)
    expected = plain + 0.5 * (data["discount_weight"].squeeze(-1) * pull).mean()
    torch.testing.assert_close(loss(data)[0]["loss_value"], expected)
    SoftUpdate(loss, tau=1.0).step()
    assert torch.equal(loss.target_value_model.module[0].weight, value.module[0].weight)
    assert len(list(loss.parameters())) == 2


def test_a_value_that_is_a_number_is_compared_by_symlogs():
    value = TensorDictModule(nn.Linear(1, 1), ["state"], ["state_value"])
    nn.init.zeros_(value.module.weight)
    nn.init.constant_(value.module.bias, 3.0)
    data = TensorDict({"state": torch.zeros(2, 3, 1), "lambda_target": torch.full((2, 3, 1), 7.0)}, [2, 3])
    found = DreamerV3ValueLoss(value, discount_loss=False)(data)[0]["loss_value"].item()
    assert found == pytest.approx((math.log(8) - math.log(4)) ** 2)
    with pytest.raises(SpecError, match="value_loss"):
        DreamerV3ValueLoss(value, "l2")
    with pytest.raises(LossError, match="lambda_target"):
        DreamerV3ValueLoss(value, discount_loss=False)(data.set("lambda_target", torch.zeros(2, 3)))


class TestDreamerV3ValueLoss(LossKit):
    distribution = "rl-objectives"
    gradients = {"loss_value": {"value_model"}}
    network_outputs = {"value", "value_logits"}

    def make_loss(self, **options):
        return DreamerV3ValueLoss(
            make_value(), "two_hot", num_value_bins=BINS, slow_critic_regularization=1.0, **options
        )

    def make_batch(self):
        return make_imagined(6)

    def run(self, loss, batch):
        return loss(batch)[0]


def test_a_policy_learns_the_rewarded_action_in_imagination():
    env, actor, _, _ = make_parts()

    def dynamics(state, belief, action):
        return state, belief, action[..., :1] * 2.0 - 1.0 + 0.0 * state[..., :1]

    env.world_model = TensorDictModule(dynamics, ["state", "belief", "action"], ["state", "belief", "reward"])
    decoded = TensorDictModule(
        lambda logits: two_hot_mean(logits, symexp_bins(BINS)).unsqueeze(-1), ["state_value_logits"], ["state_value"]
    )
    head = make_value()
    nn.init.zeros_(head.module[0].weight)
    nn.init.zeros_(head.module[0].bias)
    critic = TensorDictSequential(head, decoded)
    actor_loss = registry.losses.get("dreamer_v3_actor")(actor, critic, env, imagination_horizon=5, use_reinforce=True)
    value_loss = registry.losses.get("dreamer_v3_value")(critic, "two_hot", num_value_bins=BINS)
    optimizers = [torch.optim.Adam(loss.parameters(), 3e-2) for loss in (actor_loss, value_loss)]
    for _ in range(80):
        losses, data = actor_loss(make_states(16))
        other, _ = value_loss(data)
        for optimizer, total in zip(optimizers, (losses["loss_actor"], other["loss_value"]), strict=True):
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
    assert data["next", "reward"].mean() > 0.6
    assert registry.losses.get("dreamer_v3_model") is DreamerV3ModelLoss
