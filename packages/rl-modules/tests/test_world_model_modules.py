"""The parts of world models: priors and posteriors, block GRU, two-hot head, images, actors, what carries beliefs."""

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import Bounded, Categorical, ExplorationType, OneHot, carried_state, registry, set_exploration_type
from rl_core.errors import SpecError
from rl_modules import (
    DreamerActor,
    DreamerV3BlockGRU,
    DreamerV3BlockGRUCell,
    DreamerV3DiscreteActor,
    DreamerV3ImageDecoder,
    DreamerV3ImageEncoder,
    DreamerV3MLP,
    ObsDecoder,
    ObsEncoder,
    ProbabilisticActor,
    RSSMBeliefCarrier,
    RSSMPosterior,
    RSSMPosteriorV3,
    RSSMPrior,
    RSSMPriorV3,
    RSSMStateEstimatorV3,
    SafeModule,
    SafeSequential,
    SymExpTwoHot,
    TanhNormal,
    WorldModelWrapper,
)
from rl_modules.world_models.categorical import mix_uniform, sample_classes
from rl_modules.world_models.parts import BlockLinear, ChannelRMSNorm, JointLinear, RMSNorm


def test_a_sample_is_mean_plus_scaled_noise():
    prior = RSSMPrior(action_dim=2, hidden_dim=6, rnn_hidden_dim=5, state_dim=3, scale_lb=0.7)
    noise = torch.randn(4, 3)
    mean, std, state, belief = prior(torch.zeros(4, 3), torch.zeros(4, 5), torch.ones(4, 2), noise)
    torch.testing.assert_close(state, mean + std * noise)
    assert bool((std >= 0.7).all()) and belief.shape == (4, 5)
    mean, std, state = RSSMPosterior(6, 3)(belief, torch.randn(4, 7), noise)  # sizes found at the call
    torch.testing.assert_close(state, mean + std * noise)


def test_the_belief_is_a_gru_of_state_and_action():
    prior = RSSMPrior(action_dim=2, hidden_dim=6, rnn_hidden_dim=5, state_dim=3).double()
    state, belief, action = (torch.randn(2, 4, size, dtype=torch.float64) for size in (3, 5, 2))
    inputs = nn.functional.elu(prior.projection[0](torch.cat([state, action], -1)))
    wi, wh, bi, bh = (getattr(prior.rnn, name) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    reset, update, new = (inputs @ wi.T + bi).chunk(3, -1)
    hidden = (belief @ wh.T + bh).chunk(3, -1)
    update = torch.sigmoid(update + hidden[1])
    candidate = torch.tanh(new + torch.sigmoid(reset + hidden[0]) * hidden[2])
    torch.testing.assert_close(prior.next_belief(state, belief, action), update * belief + (1 - update) * candidate)


def test_classes_are_one_hot_with_the_gradient_of_the_probabilities():
    logits = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    state = sample_classes(logits)
    rows = state.reshape(3, 2, 4)
    assert torch.equal(rows.sum(-1).round(decimals=9), torch.ones(3, 2, dtype=torch.float64))
    assert torch.equal(rows.detach().round(decimals=9).sort(-1).values[..., :3], torch.zeros(3, 2, 3).double())
    weight = torch.randn(3, 8, dtype=torch.float64)
    found = torch.autograd.grad((state * weight).sum(), logits)[0]
    expected = torch.autograd.grad((logits.softmax(-1).flatten(-2) * weight).sum(), logits)[0]
    torch.testing.assert_close(found, expected)


def test_given_numbers_decide_the_classes_by_their_shares():
    logits = torch.tensor([0.2, 0.3, 0.5]).log().expand(1000, 1, 3)
    uniform = (torch.arange(1000) + 0.5) / 1000
    assert sample_classes(logits, uniform.unsqueeze(-1)).sum(0).round().tolist() == [200.0, 300.0, 500.0]
    torch.manual_seed(0)
    share = sample_classes(logits.expand(20, 1000, 1, 3)).mean((0, 1))
    torch.testing.assert_close(share, torch.tensor([0.2, 0.3, 0.5]), atol=0.02, rtol=0)


def test_the_uniform_share_is_in_the_logits():
    shape = {"hidden_dim": 6, "num_categoricals": 2, "num_classes": 4}
    prior = RSSMPriorV3(action_dim=2, rnn_hidden_dim=5, unimix=0.4, **shape)
    with torch.no_grad():
        prior.head[1].weight.mul_(1e3)
    logits, state, _ = prior(torch.zeros(3, 8), torch.randn(3, 5), torch.zeros(3, 2))
    probs = logits.exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, 2))
    assert probs.min().item() == pytest.approx(0.1, rel=1e-4) and state.shape == (3, 8)
    assert mix_uniform(logits, 0.0) is logits
    with pytest.raises(SpecError, match="unimix"):
        RSSMPosteriorV3(6, unimix=1.5)


def test_large_actions_are_scaled_to_one():
    prior = RSSMPriorV3(action_dim=2, hidden_dim=6, rnn_hidden_dim=5, num_categoricals=2, num_classes=4)
    state, belief = torch.zeros(1, 8), torch.randn(1, 5)
    large = prior.next_belief(state, belief, torch.tensor([[50.0, -0.5]]))
    torch.testing.assert_close(large, prior.next_belief(state, belief, torch.tensor([[1.0, -0.5]])))


def test_actions_are_vectors():
    assert RSSMPrior(OneHot(4)).action_dim == 4
    assert RSSMPriorV3(Bounded(-1, 1, shape=(3,)), 8, 8, 2, 2).action_dim == 3
    assert (
        RSSMPriorV3(hidden_dim=8, rnn_hidden_dim=8, num_categoricals=2, num_classes=2, action_shape=(3, 2)).action_dim
        == 6
    )
    for wrong in (Categorical(4), None):
        with pytest.raises(SpecError, match=r"action_spec|one-hot"):
            RSSMPrior(wrong)


def test_the_two_summands_are_one_linear_map():
    layer = JointLinear(3, 4, 5)
    x, y = torch.randn(2, 3), torch.randn(2, 4)
    torch.testing.assert_close(layer.first(x) + layer.second(x, y), layer.layer(torch.cat([x, y], -1)))
    lazy = JointLinear(None, None, 5)
    lazy.second(x, y)
    other = JointLinear(None, None, 5)
    other.load_state_dict(lazy.state_dict())
    torch.testing.assert_close(other.second(x, y) + other.first(x), lazy.layer(torch.cat([x, y], -1)))


def test_blocks_are_maps_of_their_own():
    layer = BlockLinear(6, 4, 2)
    value = torch.randn(3, 5, 6)
    parts = [value[..., 3 * i : 3 * i + 3] @ layer.weight[i] + layer.bias[i] for i in range(2)]
    torch.testing.assert_close(layer(value), torch.cat(parts, -1))
    with pytest.raises(SpecError, match="blocks"):
        BlockLinear(6, 4, 4)


def test_norms_divide_by_the_root_of_the_mean_square():
    value = torch.randn(2, 3, 4, 5)
    norm = ChannelRMSNorm(3)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    expected = value / (value.square().mean(1, keepdim=True) + 1e-4).sqrt() * norm.weight.reshape(3, 1, 1)
    torch.testing.assert_close(norm(value), expected)
    same = RMSNorm(3)
    same.load_state_dict(norm.state_dict())
    torch.testing.assert_close(same(value.movedim(1, -1)), expected.movedim(1, -1))


def slow_block_gru(cell, inputs, hidden):
    """Every block of gates sees its own part of the hidden state and both projections."""
    blocks, size = cell.num_blocks, cell.hidden_size // cell.num_blocks
    shared = torch.cat([cell.hidden_projection(hidden), cell.input_projection(inputs)], -1)
    layer, norm, activation = cell.hidden_layers
    mixed = []
    for i in range(blocks):
        seen = torch.cat([hidden[:, i * size : (i + 1) * size], shared], -1)
        mixed.append(seen @ layer.weight[i] + layer.bias[i])
    mixed = activation(norm(torch.cat(mixed, -1)))
    following = []
    for i in range(blocks):
        gates = mixed[:, i * size : (i + 1) * size] @ cell.gates.weight[i] + cell.gates.bias[i]
        reset, candidate, update = gates.chunk(3, -1)
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        update = torch.sigmoid(update - 1)
        following.append(update * candidate + (1 - update) * hidden[:, i * size : (i + 1) * size])
    return torch.cat(following, -1)


def test_the_block_gru_is_the_papers():
    torch.manual_seed(0)
    cell = DreamerV3BlockGRUCell(3, 8, projection_size=5, num_blocks=2).double()
    inputs, hidden = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(cell(inputs, hidden), slow_block_gru(cell, inputs, hidden))
    torch.testing.assert_close(cell(inputs), cell(inputs, torch.zeros_like(hidden)))
    with pytest.raises(SpecError, match="num_blocks"):
        DreamerV3BlockGRUCell(3, 8, num_blocks=3)


def test_the_block_gru_begins_anew_at_flags():
    torch.manual_seed(0)
    net = DreamerV3BlockGRU(3, 8, projection_size=5, num_blocks=2)
    inputs, flags = torch.randn(2, 5, 3), torch.zeros(2, 5, 1, dtype=torch.bool)
    flags[0, 3] = True
    output, last = net(inputs, torch.randn(2, 8), flags)
    torch.testing.assert_close(output[0, 3:], net(inputs[:1, 3:])[0][0])
    torch.testing.assert_close(last, output[:, -1])
    torch.testing.assert_close(net(inputs, None, flags.squeeze(-1))[0][0, 3:], output[0, 3:])


def test_numbers_go_through_their_code():
    code, numbers = SymExpTwoHot(255), torch.tensor([[-3e6, 0.0, 0.3], [2.0, 11.0, 1e5]])
    torch.testing.assert_close(code.decode(code.encode(numbers).log()), numbers)
    assert code(torch.zeros(4, 255)).tolist() == [[0.0]] * 4
    logits = torch.randn(2, 3, 255)
    expected = -(code.encode(numbers) * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(code.loss(logits, numbers.unsqueeze(-1)), expected)
    with pytest.raises(SpecError, match=r"\[2, 3, 1\]"):
        code.loss(logits, numbers)


def test_images_have_the_shapes_of_the_papers():
    assert ObsEncoder()(torch.zeros(2, 3, 64, 64)).shape == (2, 1024)
    assert ObsEncoder(channels=8, num_layers=3)(torch.zeros(2, 4, 3, 64, 64)).shape == (2, 4, 1152)
    assert ObsDecoder()(torch.zeros(2, 30), torch.zeros(2, 200)).shape == (2, 3, 64, 64)
    for layers, size in ((1, 6), (2, 16), (3, 32)):
        decoder = ObsDecoder(4, layers, latent_dim=9, out_channels=1)
        assert decoder(torch.zeros(2, 5, 4), torch.zeros(2, 5, 5)).shape == (2, 5, 1, size, size)
    encoder = DreamerV3ImageEncoder(1, depth=2, mults=(1, 2))
    for side in (16, 15):
        features = encoder(torch.zeros(2, 3, 1, side, side)).shape
        assert features == (2, 3, encoder.output_features((1, side, side)))
    decoder = DreamerV3ImageDecoder(12, (2, 8, 16), depth=2, mults=(1, 2), num_blocks=4, squash=True)
    image = decoder(50 * torch.randn(3, 5, 8), torch.randn(3, 5, 4))
    assert image.shape == (3, 5, 2, 8, 16) and bool(((image >= 0) & (image <= 1)).all())
    with pytest.raises(SpecError, match="multiple"):
        DreamerV3ImageDecoder(12, (1, 10, 10), mults=(1, 2))
    with pytest.raises(SpecError, match="kernel_sizes"):
        ObsDecoder(num_layers=3, kernel_sizes=[5, 5])


def test_a_perceptron_starts_at_zero_where_asked():
    net = DreamerV3MLP(5, 3, depth=2, num_cells=8, outscale=0.0)
    assert bool((net(torch.randn(4, 2), torch.randn(4, 3)) == 0).all())
    assert DreamerV3MLP(5, None, depth=2, num_cells=8)(torch.zeros(4, 5)).shape == (4, 8)
    torch.manual_seed(0)
    weight = DreamerV3MLP(300, 200, depth=0).layers[0].weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.02)


def test_the_normal_actor_gives_bounded_actions():
    actor = ProbabilisticActor(
        SafeModule(DreamerActor(2, depth=1, num_cells=8), ["state", "belief"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"tanh_loc": True},
    )
    td = actor(TensorDict({"state": torch.zeros(4, 3), "belief": torch.zeros(4, 5)}, [4]))
    assert td["action"].shape == (4, 2) and bool((td["action"].abs() <= 1).all())
    bias = nn.Linear(8, 4)
    net = DreamerActor(2, depth=1, num_cells=8, std_bias=5.0)
    net(torch.zeros(1, 3), torch.zeros(1, 5))
    nn.init.zeros_(net.backbone[-1].weight)
    nn.init.zeros_(net.backbone[-1].bias)
    torch.testing.assert_close(net(torch.zeros(1, 3), torch.zeros(1, 5))[1], torch.full((1, 2), 5.0), atol=1e-3, rtol=0)
    assert bias.out_features == 4


def test_the_discrete_actor_draws_unless_told_otherwise():
    torch.manual_seed(0)
    actor = DreamerV3DiscreteActor(8, 3, depth=1, num_cells=8, unimix=0.3)
    with torch.no_grad():
        actor[0].module.network.layers[-1].bias.copy_(torch.tensor([0.0, 100.0, 0.0]))
    td = TensorDict({"state": torch.zeros(500, 3), "belief": torch.zeros(500, 5)}, [500])
    share = actor(td.copy())["action"].float().mean(0)
    torch.testing.assert_close(share, torch.tensor([0.1, 0.8, 0.1]), atol=0.05, rtol=0)
    torch.testing.assert_close(actor(td.copy())["logits"][0].exp(), torch.tensor([0.1, 0.8, 0.1]))
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert bool((actor(td.copy())["action"][:, 1] == 1).all())
    out = actor(td.copy())
    torch.testing.assert_close(out["action_log_prob"], (out["logits"] * out["action"]).sum(-1))


def test_the_carrier_writes_the_belief_that_the_policy_will_read():
    prior = RSSMPriorV3(action_dim=3, hidden_dim=6, rnn_hidden_dim=5, num_categoricals=2, num_classes=4)
    posterior = RSSMPosteriorV3(6, 2, 4, rnn_hidden_dim=5, obs_embed_dim=7)
    policy = SafeSequential(
        SafeModule(posterior, ["belief", "encoded_latents"], ["_", "state"]),
        DreamerV3DiscreteActor(13, 3, depth=1, num_cells=8),
        RSSMBeliefCarrier(prior),
    )
    state = carried_state(policy)
    assert list(state.specs) == ["belief"] and state.specs["belief"].shape == (5,) and state.init_keys == []
    td = policy(TensorDict({"belief": torch.randn(4, 5), "encoded_latents": torch.randn(4, 7)}, [4]))
    expected = prior.next_belief(td["state"], td["belief"], td["action"])
    torch.testing.assert_close(td["next", "belief"], expected)
    with pytest.raises(SpecError, match="RSSMPrior"):
        RSSMBeliefCarrier(posterior)


def test_the_estimator_filters_one_step_and_forgets_at_first_steps():
    prior = RSSMPriorV3(action_dim=2, hidden_dim=6, rnn_hidden_dim=5, num_categoricals=2, num_classes=4)
    posterior = RSSMPosteriorV3(6, 2, 4, rnn_hidden_dim=5, obs_embed_dim=7)
    estimator = RSSMStateEstimatorV3(prior, posterior)
    td = TensorDict(
        {
            "state": torch.randn(2, 8),
            "belief": torch.randn(2, 5),
            "previous_action": torch.rand(2, 2),
            "encoded_latents": torch.randn(2, 7),
            "is_init": torch.tensor([[True], [False]]),
        },
        [2],
    )
    torch.manual_seed(5)
    out = estimator(td.clone())
    kept = td.clone()
    for key in ("state", "belief", "previous_action"):
        kept[key][0] = 0
    belief = prior.next_belief(kept["state"], kept["belief"], kept["previous_action"])
    torch.manual_seed(5)
    torch.testing.assert_close(out["belief"], belief)
    torch.testing.assert_close(out["state"], posterior(belief, td["encoded_latents"])[-1])


def test_the_wrapper_is_a_chain_that_gives_its_parts_back():
    transition = TensorDictModule(nn.Linear(3, 3), ["state"], ["state"])
    reward = TensorDictModule(nn.Linear(3, 1), ["state"], ["reward"])
    model = WorldModelWrapper(transition, reward)
    assert model.get_transition_model_operator() is transition and model.get_reward_operator() is reward
    td = model(TensorDict({"state": torch.zeros(2, 3)}, [2]))
    torch.testing.assert_close(td["reward"], reward.module(transition.module(torch.zeros(2, 3))))


def test_all_are_found_by_name():
    names = ("rssm_prior", "rssm_posterior", "rssm_rollout", "rssm_prior_v3", "rssm_posterior_v3", "rssm_rollout_v3")
    found = [registry.modules.get(name).__name__ for name in names]
    assert found[:3] == ["RSSMPrior", "RSSMPosterior", "RSSMRollout"]
    assert found[3:] == ["RSSMPriorV3", "RSSMPosteriorV3", "RSSMRolloutV3"]
    assert registry.modules.get("dreamer_v3_discrete_actor") is DreamerV3DiscreteActor
