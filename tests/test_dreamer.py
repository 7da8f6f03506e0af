"""Dreamer with all packages together: a tiny world model on a pixel game, trained for a few steps, in both versions."""

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_collectors import SyncDataCollector
from rl_core import with_carried_state
from rl_envs import CatchEnv, DreamerEnv, InitTracker
from rl_modules import (
    MLP,
    DreamerV3DiscreteActor,
    DreamerV3ImageDecoder,
    DreamerV3ImageEncoder,
    DreamerV3MLP,
    ObsEncoder,
    OneHotCategorical,
    ProbabilisticActor,
    ReparamGradientStrategy,
    RSSMBeliefCarrier,
    RSSMPosterior,
    RSSMPosteriorV3,
    RSSMPrior,
    RSSMPriorV3,
    RSSMRollout,
    RSSMRolloutV3,
    SafeModule,
    SafeSequential,
    SymExpTwoHot,
    WorldModelWrapper,
)
from rl_objectives import (
    DreamerActorLoss,
    DreamerModelLoss,
    DreamerV3ActorLoss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    DreamerValueLoss,
    SoftUpdate,
)

BELIEF, STATE, SIDE = 16, 16, 8
LATENT = ["state", "belief"]
NEXT = [("next", "state"), ("next", "belief")]


class Bytes(nn.Module):
    """A network on images, fed with bytes."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, pixels):
        return self.net(pixels.float() / 255)


def first_version():
    """Prior, posterior, encoder, decoder, and the names of what the beliefs hold."""
    prior = RSSMPrior(action_dim=3, hidden_dim=16, rnn_hidden_dim=BELIEF, state_dim=STATE)
    posterior = RSSMPosterior(hidden_dim=16, state_dim=STATE, rnn_hidden_dim=BELIEF, obs_embed_dim=4 * 3 * 3)
    decoder = nn.Sequential(nn.Linear(STATE + BELIEF, 64), nn.Unflatten(-1, (1, SIDE, SIDE)))
    return prior, posterior, ObsEncoder(4, 1, in_channels=1), decoder, ["mean", "std"]


def third_version():
    shape = {"hidden_dim": 16, "num_categoricals": 4, "num_classes": 4, "unimix": 0.01}
    encoder = DreamerV3ImageEncoder(1, depth=4, mults=(1, 2))
    features = encoder.output_features((1, SIDE, SIDE))
    prior = RSSMPriorV3(action_dim=3, rnn_hidden_dim=BELIEF, recurrent_model="block_gru", num_blocks=2, **shape)
    posterior = RSSMPosteriorV3(rnn_hidden_dim=BELIEF, obs_embed_dim=features, use_rms_norm=True, **shape)
    decoder = DreamerV3ImageDecoder(STATE + BELIEF, (1, SIDE, SIDE), depth=4, mults=(1, 2), num_blocks=2)
    return prior, posterior, encoder, decoder, ["logits"]


class Joined(nn.Module):
    """A network of state and belief side by side."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, state, belief):
        return self.net(torch.cat([state, belief], -1))


def make_world_model(parts, heads):
    """From sequences to beliefs, reconstructions and what the heads predict."""
    prior, posterior, encoder, decoder, names = parts
    transition = TensorDictSequential(
        TensorDictModule(encoder, [("next", "pixels")], [("next", "encoded_latents")]),
        (RSSMRollout if names[0] == "mean" else RSSMRolloutV3)(
            TensorDictModule(
                prior,
                ["state", "belief", "action"],
                [*(("next", f"prior_{name}") for name in names), "_", ("next", "belief")],
            ),
            TensorDictModule(
                posterior,
                [("next", "belief"), ("next", "encoded_latents")],
                [*(("next", f"posterior_{name}") for name in names), ("next", "state")],
            ),
        ),
        TensorDictModule(Joined(decoder), NEXT, [("next", "reco_pixels")]),
    )
    (name, head), *others = heads.items()
    rest = [TensorDictModule(Joined(head), NEXT, [("next", name)]) for name, head in others]
    reward = TensorDictModule(Joined(head), NEXT, [("next", name)])
    return WorldModelWrapper(transition, TensorDictSequential(reward, *rest) if rest else reward)


def make_policy(parts, actor):
    prior, posterior, encoder, _, names = parts
    return SafeSequential(
        SafeModule(Bytes(encoder), ["pixels"], ["encoded_latents"]),
        SafeModule(posterior, ["belief", "encoded_latents"], [*("_" for _ in names), "state"]),
        actor,
        RSSMBeliefCarrier(prior),
    )


def collect(policy, frames):
    env = CatchEnv(num_envs=8, size=SIDE, seed=1).append_transform(InitTracker())
    collector = SyncDataCollector(env, policy, frames_per_batch=frames, total_frames=frames)
    (batch,) = list(collector)
    collector.shutdown()
    batch["next", "pixels"] = batch["next", "pixels"].float() / 255
    return batch


def descend(optimizer, losses):
    total = sum(value for key, value in losses.items() if key.startswith("loss_"))
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    return total.item()


def train(batch, model_loss, actor_loss, value_loss, steps):
    optimizers = [torch.optim.Adam(loss.parameters(), lr=3e-3) for loss in (model_loss, actor_loss, value_loss)]
    history = []
    for _ in range(steps):
        losses, data = model_loss(batch)
        model = descend(optimizers[0], losses)
        losses, imagined = actor_loss(data)
        descend(optimizers[1], losses)
        losses, _ = value_loss(imagined)
        history.append((model, descend(optimizers[2], losses)))
    return torch.tensor(history), data, imagined


def assert_losses_fall(history):
    assert bool(history.isfinite().all())
    first, last = history[:3].mean(0), history[-3:].mean(0)
    assert last[0] < 0.6 * first[0], f"the world model's loss went from {first[0]:.2f} to {last[0]:.2f}"
    assert last[1] < first[1], f"the value model's loss went from {first[1]:.3f} to {last[1]:.3f}"


def test_the_first_version_learns_from_collected_pixels():
    torch.manual_seed(0)
    parts = prior, *_ = first_version()
    actor = ProbabilisticActor(
        SafeModule(Joined(MLP(STATE + BELIEF, 3, num_cells=[16])), LATENT, ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        distribution_kwargs={"grad_method": ReparamGradientStrategy.PassThrough},
        default_interaction_type="random",
    )
    batch = collect(make_policy(parts, actor), 8 * 14)
    reward = MLP(STATE + BELIEF, 1, num_cells=[16])
    imagined = WorldModelWrapper(
        SafeModule(prior, ["state", "belief", "action"], ["_", "_", "state", "belief"]),
        SafeModule(Joined(reward), LATENT, ["reward"]),
    )
    env = DreamerEnv(imagined, prior_shape=(STATE,), belief_shape=(BELIEF,))
    env.set_specs_from_env(CatchEnv(num_envs=8, size=SIDE))
    value = SafeModule(Joined(MLP(STATE + BELIEF, 1, num_cells=[16])), LATENT, ["state_value"])
    model_loss = DreamerModelLoss(make_world_model(parts, {"reward": reward}), free_nats=1.0)
    actor_loss = DreamerActorLoss(actor, value, env, imagination_horizon=5, gamma=0.9)
    history, data, _ = train(batch, model_loss, actor_loss, DreamerValueLoss(value, gamma=0.9), 25)
    assert_losses_fall(history)
    first = batch["is_init"].squeeze(-1)
    assert bool((data["belief"][first] == 0).all()) and int(first.sum()) == 16


def test_the_third_version_learns_from_collected_pixels():
    torch.manual_seed(0)
    parts = prior, *_ = third_version()
    actor = DreamerV3DiscreteActor(STATE + BELIEF, 3, depth=1, num_cells=16)
    policy = make_policy(parts, actor)
    batch = collect(policy, 8 * 14)

    def head(outputs):
        return DreamerV3MLP(STATE + BELIEF, outputs, depth=1, num_cells=16, outscale=0.0)

    reward, goes_on, code = head(31), head(1), SymExpTwoHot(31)
    imagined = WorldModelWrapper(
        SafeModule(prior, ["state", "belief", "action"], ["_", "state", "belief"]),
        SafeSequential(SafeModule(reward, LATENT, ["reward_logits"]), SafeModule(code, ["reward_logits"], ["reward"])),
    )
    env = DreamerEnv(imagined, prior_shape=(STATE,), belief_shape=(BELIEF,))
    env.set_specs_from_env(CatchEnv(num_envs=8, size=SIDE))
    value = SafeSequential(
        SafeModule(head(31), LATENT, ["state_value_logits"]),
        SafeModule(code, ["state_value_logits"], ["state_value"]),
    )
    continuation = SafeModule(Joined(nn.Sequential(goes_on, nn.Sigmoid())), LATENT, ["continuation"])
    model_loss = DreamerV3ModelLoss(
        make_world_model(parts, {"reward_logits": reward, "continue_pred": goes_on}),
        kl_mode="separate",
        lambda_continue=1.0,
        reco_symlog=False,
        num_reward_bins=31,
    )
    actor_loss = DreamerV3ActorLoss(
        actor, value, env, continuation_model=continuation, imagination_horizon=5, use_reinforce=True, gamma=0.95
    )
    value_loss = DreamerV3ValueLoss(value, "two_hot", num_value_bins=31, slow_critic_regularization=1.0)
    updater = SoftUpdate(value_loss, tau=0.02)
    history, data, seen = train(batch, model_loss, actor_loss, value_loss, 25)
    updater.step()
    assert_losses_fall(history)
    assert seen.batch_size == (8, 14, 5) and not data["next", "state"].requires_grad
    names = {"model": model_loss, "actor": actor_loss, "value": value_loss}
    owned = [{id(parameter) for parameter in loss.parameters()} for loss in names.values()]
    assert not owned[0] & owned[1] and not owned[0] & owned[2] and not owned[1] & owned[2]


def test_acting_and_filtering_see_the_same_states():
    """The belief that a policy carries through an episode is that which the rollout recomputes from its record."""
    torch.manual_seed(0)
    parts = prior, posterior, encoder, *_ = third_version()
    actor = DreamerV3DiscreteActor(STATE + BELIEF, 3, depth=1, num_cells=16)
    policy = make_policy(parts, actor)
    env = with_carried_state(CatchEnv(num_envs=4, size=SIDE, seed=1).append_transform(InitTracker()), policy)
    with torch.no_grad():
        data = env.rollout(12, policy, break_when_any_done=False)
    # Beliefs follow from recorded states and actions, step by step, and begin at zero.
    following = prior.next_belief(data["state"], data["belief"], data["action"])
    torch.testing.assert_close(following, data["next", "belief"], atol=1e-5, rtol=1e-4)
    first = data["is_init"].squeeze(-1)
    assert int(first.sum()) == 8 and bool((data["belief"][first] == 0).all())
    inside = ~first[:, 1:]
    torch.testing.assert_close(data["belief"][:, 1:][inside], data["next", "belief"][:, :-1][inside])
    logits = posterior(data["belief"], encoder(data["pixels"].float() / 255))[0].exp()
    taken = (logits * data["state"].unflatten(-1, (4, 4))).sum(-1)
    assert bool((taken > 0).all())
