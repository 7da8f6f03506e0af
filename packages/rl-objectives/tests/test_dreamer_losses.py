"""Dreamer's three losses against the paper's equations: values, gradients, and whom each of them moves."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_core import Bounded, Composite, ModelBasedEnvBase, Unbounded, registry
from rl_core.errors import KeyMissingError, LossError, SpecError
from rl_core.testing import LossKit
from rl_objectives import DreamerActorLoss, DreamerModelLoss, DreamerValueLoss, ValueEstimators

STATE, BELIEF, ACTION = 2, 3, 2


class Joined(nn.Sequential):
    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, -1))


def under_next(*names):
    return [("next", name) for name in names]


class Predictions(nn.Module):
    """A world model whose every output is a number times a weight of 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, pixels):
        def full(value, *shape):
            return torch.full((*pixels.shape[:2], *shape), value) * self.weight

        return full(0.0, 1, 2, 2), full(1.0, 1), full(0.0, 2), full(1.0, 2), full(3.0, 2), full(1.0, 2)


def make_world_model():
    outputs = ("reco_pixels", "reward", "prior_mean", "prior_std", "posterior_mean", "posterior_std")
    return TensorDictModule(Predictions(), under_next("pixels"), under_next(*outputs))


def make_sequences():
    step = {"pixels": torch.full((2, 3, 1, 2, 2), 2.0), "reward": torch.full((2, 3, 1), 4.0)}
    return TensorDict({"next": step}, [2, 3])


class Dynamics(nn.Module):
    """Linear latent dynamics."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(STATE + BELIEF + ACTION, STATE + BELIEF + 1)

    def forward(self, *inputs):
        return torch.tanh(self.net(torch.cat(inputs, -1))).split([STATE, BELIEF, 1], -1)


class Imagination(ModelBasedEnvBase):
    def __init__(self, world_model):
        super().__init__(world_model)
        latent = Composite(state=Unbounded(shape=(STATE,)), belief=Unbounded(shape=(BELIEF,)))
        self.observation_spec, self.state_spec = latent, latent.clone()
        self.action_spec = Bounded(low=-1.0, high=1.0, shape=(ACTION,), dtype=torch.float32)
        self.reward_spec = Unbounded(shape=(1,))


def make_parts():
    torch.manual_seed(0)
    model = TensorDictModule(Dynamics(), ["state", "belief", "action"], ["state", "belief", "reward"])
    actor = TensorDictModule(Joined(nn.Linear(STATE + BELIEF, ACTION), nn.Tanh()), ["state", "belief"], ["action"])
    value = TensorDictModule(Joined(nn.Linear(STATE + BELIEF, 1)), ["state", "belief"], ["state_value"])
    return Imagination(model), actor, value


def make_states(*batch):
    torch.manual_seed(1)
    return TensorDict({"state": torch.randn(*batch, STATE), "belief": torch.randn(*batch, BELIEF)}, list(batch))


def slow_lambda_returns(rewards, values, gamma, lmbda):
    """V_lambda of the last step is r + gamma v; before it r + gamma ((1 - lambda) v + lambda V_lambda')."""
    following, returns = values[-1], []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        following = reward + gamma * ((1 - lmbda) * value + lmbda * following)
        returns.insert(0, following)
    return returns


# ---------------------------------------------------------------- model


def test_the_model_loss_by_hand():
    losses, data = DreamerModelLoss(make_world_model())(make_sequences())
    # two components with means 3 apart: KL = 2 * 4.5; four pixels 2 apart: 16; rewards 3 apart: 9
    assert {key: value.item() for key, value in losses.items()} == {
        "loss_model_kl": 9.0,
        "loss_model_reco": 16.0,
        "loss_model_reward": 9.0,
    }
    assert torch.equal(data["next", "true_reward"], torch.full((2, 3, 1), 4.0))
    assert torch.equal(data["next", "reward"], torch.ones(2, 3, 1)) and not data["next", "reco_pixels"].requires_grad


def test_free_nats_weights_and_averages():
    def losses(**options):
        return [value.item() for value in DreamerModelLoss(make_world_model(), **options)(make_sequences())[0].values()]

    assert losses(free_nats=20) == losses(free_nats=20, delayed_clamp=True) == [20.0, 16.0, 9.0]
    assert losses(global_average=True) == [4.5, 4.0, 9.0]
    assert losses(lambda_kl=0.5, lambda_reco=0.25, lambda_reward=2.0) == [4.5, 4.0, 18.0]
    assert losses(reco_loss="l1", reward_loss="l1") == [9.0, 8.0, 3.0]


def test_free_nats_are_of_each_step_or_of_the_mean():
    class Uneven(Predictions):
        def forward(self, pixels):
            outputs = list(super().forward(pixels))
            outputs[4] = outputs[4] * torch.tensor([0.0, 2.0, 0.0]).reshape(1, 3, 1)
            return tuple(outputs)

    model = make_world_model()
    model.module = Uneven()
    # divergences 0, 36, 0 per step
    each = DreamerModelLoss(model, free_nats=6)(make_sequences())[0]["loss_model_kl"]
    mean = DreamerModelLoss(model, free_nats=6, delayed_clamp=True)(make_sequences())[0]["loss_model_kl"]
    assert (each.item(), mean.item()) == (16.0, 12.0)
    with pytest.raises(SpecError, match="delayed_clamp"):
        DreamerModelLoss(model, delayed_clamp=True, reduction="none")


def test_vectors_are_reconstructed_under_other_keys():
    model = make_world_model()
    loss = DreamerModelLoss(model)
    loss.set_keys(pixels="observation", reco_pixels="guess", reward="gain")
    model.in_keys, model.out_keys = (
        under_next("observation"),
        [("next", "guess"), ("next", "gain"), *model.out_keys[2:]],
    )
    batch = make_sequences().rename_key_(("next", "pixels"), ("next", "observation"))
    losses, _ = loss(batch.rename_key_(("next", "reward"), ("next", "gain")))
    assert losses["loss_model_reco"].item() == 16.0 and losses["loss_model_reward"].item() == 9.0


def test_masked_steps_do_not_count_and_the_batch_stays_as_it_is():
    batch = make_sequences()
    batch["next", "reward"][1] = 1e6
    mask = torch.tensor([[True, True, False], [False, False, False]])
    batch.set(("collector", "mask"), mask)
    before = batch.clone()
    losses, _ = DreamerModelLoss(make_world_model())(batch)
    assert losses["loss_model_reward"].item() == 9.0
    assert set(batch.keys(True, True)) == set(before.keys(True, True))
    assert torch.equal(batch["next", "reward"], before["next", "reward"])
    assert DreamerModelLoss(make_world_model(), reduction="none")(batch)[0]["loss_model_kl"].tolist() == [
        [9.0, 9.0, 0.0],
        [0.0, 0.0, 0.0],
    ]


def test_what_a_world_model_or_a_batch_lacks_is_named():
    model = make_world_model()
    model.out_keys[1] = ("next", "gain")
    with pytest.raises(KeyMissingError, match='"reward"'):
        DreamerModelLoss(model)(make_sequences())
    with pytest.raises(KeyMissingError, match='"reward"'):
        DreamerModelLoss(make_world_model())(make_sequences().exclude(("next", "reward")))
    batch = make_sequences()
    batch["next", "pixels"] = batch["next", "pixels"].squeeze(2)
    with pytest.raises(LossError, match="reconstruction"):
        DreamerModelLoss(make_world_model())(batch)


# ---------------------------------------------------------------- actor


@pytest.mark.parametrize("discount", [True, False])
def test_the_actor_loss_is_minus_the_lambda_return_with_its_gradient(discount):
    env, actor, value = make_parts()
    gamma, lmbda, steps = 0.9, 0.8, 4
    loss = DreamerActorLoss(
        actor, value, env, imagination_horizon=steps, discount_loss=discount, gamma=gamma, lmbda=lmbda
    )
    losses, data = loss(make_states(3))
    gradients = torch.autograd.grad(losses["loss_actor"], list(actor.parameters()))
    assert data.batch_size == (3, steps) and data["lambda_target"].shape == (3, steps, 1)
    assert not data["lambda_target"].requires_grad and not data["action"].requires_grad

    td = make_states(3)
    rewards, values = [], []
    for _ in range(steps):
        td = env.world_model(actor(td))
        rewards.append(td["reward"])
        values.append(value.module(td["state"], td["belief"]))
    returns = slow_lambda_returns(rewards, values, gamma, lmbda)
    torch.testing.assert_close(data["lambda_target"], torch.stack(returns, 1))
    expected = -sum((gamma**t if discount else 1.0) * target.mean() for t, target in enumerate(returns)) / steps
    torch.testing.assert_close(losses["loss_actor"], expected)
    for found, right in zip(gradients, torch.autograd.grad(expected, list(actor.parameters())), strict=True):
        torch.testing.assert_close(found, right)


def test_the_actor_loss_moves_the_actor_and_lists_nothing_else():
    env, actor, value = make_parts()
    loss = DreamerActorLoss(actor, value, env, imagination_horizon=3)
    assert {id(p) for p in loss.parameters()} == {id(p) for p in actor.parameters()}
    loss(make_states(2, 3))[0]["loss_actor"].backward()
    assert all(p.grad is not None for p in actor.parameters())
    others = [*env.world_model.parameters(), *value.parameters()]
    assert all(p.grad is None and p.requires_grad for p in others)


def test_imagination_starts_from_every_state_and_masked_ones_do_not_count():
    env, actor, value = make_parts()
    loss = DreamerActorLoss(actor, value, env, imagination_horizon=3)
    states = make_states(2, 3)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    expected = loss(states[mask])[0]["loss_actor"]
    states["state"][~mask] = 1e3
    states.set(("collector", "mask"), mask)
    losses, data = loss(states)
    torch.testing.assert_close(losses["loss_actor"], expected)
    assert data.batch_size == (2, 3, 3)
    value_loss = DreamerValueLoss(value)(data)[0]["loss_value"]
    torch.testing.assert_close(
        value_loss, DreamerValueLoss(value)(loss(states[mask].exclude("collector"))[1])[0]["loss_value"]
    )


def test_other_estimators_and_their_errors():
    env, actor, value = make_parts()
    loss = DreamerActorLoss(actor, value, env, imagination_horizon=1, gamma=0.5, lmbda=0.3)
    one = loss(make_states(4))[1]["lambda_target"]
    loss.make_value_estimator(ValueEstimators.TD0, gamma=0.5)
    torch.testing.assert_close(loss(make_states(4))[1]["lambda_target"], one)  # of a single step all agree
    with pytest.raises(SpecError, match="at least 1"):
        DreamerActorLoss(actor, value, env, imagination_horizon=0)
    with pytest.raises(KeyMissingError, match="belief"):
        loss(make_states(4).exclude("belief"))
    loss.set_keys(state="latent")
    with pytest.raises(KeyMissingError, match="latent"):
        loss(make_states(4))


def test_a_world_model_that_ends_episodes_is_refused():
    env, actor, value = make_parts()

    class Ending(Imagination):
        def _step(self, tensordict):
            done = torch.ones(*tensordict.batch_size, 1, dtype=torch.bool)
            return super()._step(tensordict).set("terminated", done)

    loss = DreamerActorLoss(actor, value, Ending(env.world_model), imagination_horizon=3)
    with pytest.raises(LossError, match="ends no episode"):
        loss(make_states(4))


# ---------------------------------------------------------------- value


def test_the_value_loss_by_hand():
    value = TensorDictModule(nn.Linear(1, 1), ["state"], ["state_value"])
    nn.init.zeros_(value.module.weight)
    nn.init.constant_(value.module.bias, 3.0)
    data = TensorDict({"state": torch.zeros(2, 3, 1), "lambda_target": torch.full((2, 3, 1), 7.0)}, [2, 3])
    losses, same = DreamerValueLoss(value, gamma=0.5)(data)
    assert losses["loss_value"].item() == pytest.approx(16 * (1 + 0.5 + 0.25) / 3) and same is data
    assert DreamerValueLoss(value, value_loss="l1", discount_loss=False)(data)[0]["loss_value"].item() == 4.0
    with pytest.raises(LossError, match="lambda_target"):
        DreamerValueLoss(value)(data.set("lambda_target", torch.zeros(2, 3)))


class TestDreamerValueLoss(LossKit):
    distribution = "rl-objectives"
    gradients = {"loss_value": {"value_model"}}

    def make_loss(self, **options):
        return DreamerValueLoss(make_parts()[2], discount_loss=False, **options)

    def make_batch(self):
        return make_states(6).set("lambda_target", torch.randn(6, 1))

    def run(self, loss, batch):
        return loss(batch)[0]


def test_the_three_are_found_by_name_and_train_together():
    names = {name: registry.losses.get(f"dreamer_{name}") for name in ("model", "actor", "value")}
    assert list(names.values()) == [DreamerModelLoss, DreamerActorLoss, DreamerValueLoss]
    env, actor, value = make_parts()
    actor_loss = DreamerActorLoss(actor, value, env, imagination_horizon=5, gamma=0.5)
    value_loss = DreamerValueLoss(value, gamma=0.5)
    optimizers = [torch.optim.Adam(actor.parameters(), 3e-2), torch.optim.Adam(value.parameters(), 3e-2)]
    history = []
    for _ in range(60):
        losses, data = actor_loss(make_states(16))
        other, _ = value_loss(data)
        for optimizer, total in zip(optimizers, (losses["loss_actor"], other["loss_value"]), strict=True):
            optimizer.zero_grad()
            total.backward()
            optimizer.step()
        history.append((data["next", "reward"].mean().item(), other["loss_value"].item()))
    assert history[-1][0] > history[0][0] + 0.1 and history[-1][1] < history[0][1]


def test_a_chain_of_modules_is_a_world_model_too():
    chain = TensorDictSequential(make_world_model())
    assert DreamerModelLoss(chain)(make_sequences())[0]["loss_model_kl"].item() == 9.0
