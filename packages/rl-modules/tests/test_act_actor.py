"""ACTNetwork, ACTActor and TemporalEnsemble against Zhao et al., 2023, written step by step in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import nn

from rl_core import carried_state
from rl_core.errors import PolicyError, SpecError
from rl_modules import ACTActor, ACTNetwork, TemporalEnsemble

OBSERVATION, ACTION, CHUNK, STYLE, WIDTH, HEADS = 3, 2, 5, 4, 8, 2


def make_network(**options):
    torch.manual_seed(0)
    sizes = {"latent_dim": STYLE, "n_embd": WIDTH, "n_head": HEADS, "n_inner": 16}
    depth = {"n_encoder_layer": 2, "n_decoder_layer": 2, "dropout": 0.0}
    network = ACTNetwork(OBSERVATION, ACTION, CHUNK, **sizes, **depth, **options).double()
    network.positions = reference_positions(CHUNK + 2, WIDTH)  # made in the default dtype, which is less exact
    for parameter in network.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))  # biases and norms too
    return network


def reference_positions(count, width):
    """Section 3.5 of Vaswani et al.: sin(p / 10000^(2 i / d)) at 2 i, the cosine at 2 i + 1."""
    rows = []
    for place in range(count):
        angles = [place / 10_000 ** (2 * i / width) for i in range(width // 2)]
        rows.append([value for angle in angles for value in (math.sin(angle), math.cos(angle))])
    return torch.tensor(rows, dtype=torch.float64)


def attend(attention, queries, keys, unread=None):
    """Multi-head attention of one row, head by head."""
    size = WIDTH // HEADS
    weights, biases = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    q, k, v = (x @ w.T + b for x, w, b in zip((queries, keys, keys), weights, biases, strict=True))
    heads = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = q[:, part] @ k[:, part].T / size**0.5
        if unread is not None:
            scores = scores.masked_fill(unread, float("-inf"))
        heads.append(scores.softmax(-1) @ v[:, part])
    return attention.out_proj(torch.cat(heads, -1))


def reference_layer(layer, tokens, memory=None, unread=None):
    """A layer of one row; with a memory, one of the decoder's."""
    tokens = layer.norm1(tokens + attend(layer.self_attn, tokens, tokens, unread))
    norm = layer.norm2
    if memory is not None:
        tokens, norm = layer.norm2(tokens + attend(layer.multihead_attn, tokens, memory)), layer.norm3
    return norm(tokens + layer.linear2(layer.linear1(tokens).relu()))


def reference_encode(network, action, padding, observation):
    rows = []
    for row in range(action.shape[0]):
        tokens = [network.style_token, network.style_observation(observation[row]), *network.style_action(action[row])]
        tokens = torch.stack(tokens) + reference_positions(CHUNK + 2, WIDTH)
        for layer in network.style_layers:
            tokens = reference_layer(layer, tokens, unread=torch.cat([torch.zeros(2, dtype=torch.bool), padding[row]]))
        rows.append(network.style_head(tokens[0]))
    rows = torch.stack(rows)
    return rows[:, :STYLE], rows[:, STYLE:]


def reference_decode(network, latent, observation, places=()):
    rows = []
    for row in range(latent.shape[0]):
        tokens = [network.latent(latent[row]) + network.token_kinds[0]]
        tokens.append(network.observation(observation[row]) + network.token_kinds[1])
        tokens = torch.stack([*tokens, *(places[row] if len(places) else [])])
        for layer in network.encoder_layers:
            tokens = reference_layer(layer, tokens)
        chunk = reference_positions(CHUNK, WIDTH)
        for layer in network.decoder_layers:
            chunk = reference_layer(layer, chunk, tokens)
        rows.append(network.head(network.norm(chunk)))
    return torch.stack(rows)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


# ---------------------------------------------------------------- the network
def test_the_style_is_read_from_the_chunk_without_its_padding():
    network = make_network()
    action, observation = draw(4, CHUNK, ACTION), draw(4, OBSERVATION)
    padding = torch.arange(CHUNK).expand(4, CHUNK) >= torch.tensor([[5], [1], [3], [4]])
    found = network.encode(action, padding, observation)
    torch.testing.assert_close(found, reference_encode(network, action, padding, observation))
    none = torch.zeros_like(padding)
    whole = network.encode(action, None, observation)
    torch.testing.assert_close(whole, reference_encode(network, action, none, observation))


def test_a_chunk_is_written_from_style_and_observation():
    network = make_network()
    latent, observation = draw(4, STYLE), draw(4, OBSERVATION)
    expected = reference_decode(network, latent, observation)
    torch.testing.assert_close(network.decode(latent, observation), expected)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(network.decode(latent, observation), expected)
        rows = network.decode(latent.reshape(2, 2, -1), observation.reshape(2, 2, -1))
        torch.testing.assert_close(rows, expected.reshape(2, 2, CHUNK, ACTION))
        torch.testing.assert_close(network.decode(latent[0], observation[0]), expected[0])


def test_the_places_of_all_cameras_maps_are_read_side_by_side():
    network = make_network(backbone=nn.Conv2d(1, 6, 2, stride=2), backbone_features=6)
    latent, observation = draw(3, STYLE), draw(3, OBSERVATION)
    images = draw(3, 1, 4, 6), draw(3, 1, 4, 4)
    maps = torch.cat([network.image_features(network.backbone(image)) for image in images], -1)
    places, half = [], reference_positions(5, WIDTH // 2)
    for row in range(3):
        places.append([maps[row, :, y, x] + torch.cat([half[y], half[x]]) for y in range(2) for x in range(5)])
    expected = reference_decode(network, latent, observation, places)
    found = network.decode(latent, observation, *images)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # places of maps are made in single precision
    with pytest.raises(PolicyError, match="with a backbone got 0 images"):
        network.decode(latent, observation)
    with pytest.raises(PolicyError, match="without a backbone got 1 images"):
        make_network().decode(latent, observation, images[0])


def test_layers_begin_with_weights_of_their_own():
    first, second = ACTNetwork(3, 2, 4, n_embd=8, n_head=2, n_inner=8, n_decoder_layer=2).decoder_layers
    assert not torch.equal(first.linear1.weight, second.linear1.weight)


# ---------------------------------------------------------------- the policy
def test_it_acts_with_the_style_0():
    network = make_network()
    actor = ACTActor(network)
    observation = draw(4, OBSERVATION)
    found = actor(TensorDict({"observation": observation}, [4]))["action"]
    torch.testing.assert_close(found, reference_decode(network, torch.zeros(4, STYLE).double(), observation))
    assert actor.encode(draw(4, CHUNK, ACTION), None, observation)[1].shape == (4, STYLE)


def test_wrong_options_networks_and_chunks_are_refused():
    with pytest.raises(SpecError, match="multiple of 4 and of n_head=8; got 20"):
        ACTNetwork(3, 2, n_embd=20)
    with pytest.raises(SpecError, match="backbone and backbone_features together"):
        ACTNetwork(3, 2, backbone=nn.Conv2d(1, 1, 1))
    with pytest.raises(SpecError, match=r"latent_dim, encode and decode.*got Linear"):
        ACTActor(nn.Linear(3, 2))
    with pytest.raises(PolicyError, match=r"a chunk of actions is \[4, 5, 2\]; got \[4, 3, 2\]"):
        make_network().encode(draw(4, 3, ACTION), None, draw(4, OBSERVATION))


# ---------------------------------------------------------------- temporal ensembling
class Told(TensorDictModuleBase):
    """A policy that writes the chunk it is given."""

    in_keys, out_keys = ["told"], ["action"]

    def forward(self, td):
        return td.set("action", td["told"])


def act(policy, chunks, firsts):
    """The actions of each step, with the state carried as an environment does."""
    state = {key: spec.zero((chunks.shape[1],)) for key, spec in carried_state(policy).specs.items()}
    actions = []
    for chunk, first in zip(chunks, firsts, strict=True):
        td = TensorDict({"told": chunk, "is_init": first.unsqueeze(-1), **state}, [chunks.shape[1]])
        td = policy(td)
        actions.append(td["action"])
        state = {key: td["next", key] for key in state}
    return torch.stack(actions)


@given(decay=st.floats(-0.5, 2.0), steps=st.integers(1, 4), seed=st.integers(0, 99))
def test_an_action_is_the_weighted_mean_of_all_proposals_of_its_episode(decay, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    chunks = torch.randn(9, 2, steps, 3, generator=generator, dtype=torch.float64)
    firsts = torch.zeros(9, 2, dtype=torch.bool)
    firsts[0], firsts[4, 1], firsts[7, 0] = True, True, True
    policy = TemporalEnsemble(Told(), (steps, 3), decay=decay).double()
    found = act(policy, chunks, firsts)
    for row in range(2):
        begin = 0
        for t in range(9):
            begin = t if firsts[t, row] else begin
            proposals = [chunks[s, row, t - s] for s in range(begin, t + 1) if t - s < steps]
            weights = [math.exp(-decay * i) for i in range(len(proposals))]
            mean = sum(w * a for w, a in zip(weights, proposals, strict=True)) / sum(weights)
            torch.testing.assert_close(found[t, row], mean, rtol=1e-5, atol=1e-5)  # shares begin as single precision


def test_three_proposals_by_hand():
    chunks = torch.tensor([[8.0, 4.0, 2.0], [6.0, 5.0, 0.0], [3.0, 0.0, 0.0]]).reshape(3, 1, 3, 1)
    firsts = torch.tensor([[True], [False], [False]])
    found = act(TemporalEnsemble(Told(), (3, 1), decay=math.log(2)), chunks, firsts).flatten()
    # 8; (4 + 6 / 2) / (3 / 2); (2 + 5 / 2 + 3 / 4) / (7 / 4)
    torch.testing.assert_close(found, torch.tensor([8.0, 14 / 3, 3.0]))


def test_what_was_carried_into_a_new_episode_is_not_even_multiplied():
    policy = TemporalEnsemble(Told(), (2, 1))
    td = TensorDict({"told": torch.ones(1, 2, 1), "is_init": torch.ones(1, 1, dtype=torch.bool)}, [1])
    td["action_means"], td["action_age"] = torch.full((1, 2, 1), float("nan")), torch.full((1, 1), 2)
    assert policy(td)["action"].item() == 1.0 and td["next", "action_means"].flatten().tolist() == [1.0, 0.0]
    assert td["next", "action_age"].item() == 1


def test_chunks_that_do_not_fit_are_refused():
    actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
    with pytest.raises(PolicyError, match="needs 'chunk'; Told writes"):
        TemporalEnsemble(Told(), (2, 1), action_key="chunk")
    for shape, decay in (((2,), 0.0), ((0, 1), 0.0), ((2, 1), math.inf)):
        with pytest.raises(SpecError, match="chunk_shape"):
            TemporalEnsemble(Told(), shape, decay=decay)
    policy = TemporalEnsemble(actor, (4, 2))
    state = {key: spec.zero((5,)) for key, spec in carried_state(policy).specs.items()}
    flags = torch.ones(5, 1, dtype=torch.bool)
    with pytest.raises(
        PolicyError, match=r"'action' of shape \[5, 2\]; with chunk_shape=\(4, 2\) it must be \[5, 4, 2\]"
    ):
        policy(TensorDict({"observation": torch.zeros(5, 3), "is_init": flags, **state}, [5]))


def test_it_asks_an_act_actor_at_each_step():
    actor = ACTActor(make_network()).eval()
    policy = TemporalEnsemble(actor, (CHUNK, ACTION), decay=0.1).double()
    td = TensorDict({"observation": draw(4, OBSERVATION), "is_init": torch.ones(4, 1, dtype=torch.bool)}, [4])
    for key, spec in carried_state(policy).specs.items():
        td[key] = spec.zero((4,))
    torch.testing.assert_close(policy(td)["action"], actor(td["observation"])[:, 0])
