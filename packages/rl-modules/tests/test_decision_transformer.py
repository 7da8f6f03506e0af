"""The decision transformer: what each output may depend on, masks, positions, actors, and the inference wrapper."""

import copy
import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import ExplorationType, registry, set_exploration_type
from rl_core.errors import KeyMissingError, PolicyError, SpecError
from rl_core.specs import Bounded
from rl_modules import (
    DecisionTransformer,
    DecisionTransformerInferenceWrapper,
    DTActor,
    DTConfig,
    OnlineDTActor,
    ProbabilisticActor,
    SafeModule,
    TanhDelta,
    TanhNormal,
)
from rl_modules.networks.causal_transformer import CausalTransformer

TINY = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 32, "n_positions": 12}
WINDOWS = ["observation", "action", "return_to_go"]


def make_model(**changes):
    torch.manual_seed(0)
    model = DecisionTransformer(3, 2, {**TINY, **changes}).double().eval()
    for weight in model.parameters():  # GPT-2's small weights would make every effect tiny
        nn.init.normal_(weight, std=0.3)
    return model


def make_windows(rows=2, steps=5):
    torch.manual_seed(1)
    sizes = {"observation": 3, "action": 2, "return_to_go": 1}
    return {name: torch.randn(rows, steps, size, dtype=torch.float64) for name, size in sizes.items()}


def reference_attention(transformer, tokens, allowed):
    """Pre-norm blocks with softmax(QK / sqrt d) V, one head and one pair of tokens at a time."""
    for block in transformer.blocks:
        query, key, value = block.read(block.attention_norm(tokens)).chunk(3, -1)
        mixed, size = torch.zeros_like(tokens), tokens.shape[-1] // block.heads
        for head in range(block.heads):
            part = slice(head * size, (head + 1) * size)
            for i in range(len(tokens)):
                seen = [j for j in range(len(tokens)) if allowed(i, j)]
                scores = torch.stack([query[i, part] @ key[j, part] for j in seen]) / math.sqrt(size)
                weights = scores.softmax(0)
                mixed[i, part] = sum(w * value[j, part] for w, j in zip(weights, seen, strict=True))
        tokens = tokens + block.write(mixed)
        tokens = tokens + block.contract(block.expand(block.mlp_norm(tokens)).relu())
    return transformer.norm(tokens)


@pytest.mark.parametrize("padded", [False, True])
def test_the_transformer_equals_attention_written_out(padded):
    model = make_model().transformer
    torch.manual_seed(2)
    tokens = torch.randn(1, 6, 16, dtype=torch.float64)
    mask = torch.tensor([[False, False, True, True, True, True]]) if padded else None

    def allowed(i, j):
        return i == j or (j < i and (not padded or bool(mask[0, j])))

    expected = reference_attention(model, tokens[0], allowed)
    torch.testing.assert_close(model(tokens, mask)[0], expected)


def test_a_step_becomes_return_observation_action_and_the_observation_answers():
    model, data = make_model(), make_windows(1, 4)
    tokens = []
    for t in range(4):
        place = model.embed_position.weight[t]
        for layer, name in (
            (model.embed_return, "return_to_go"),
            (model.embed_state, "observation"),
            (model.embed_action, "action"),
        ):
            tokens.append(model.embed_norm(layer(data[name][0, t]) + place))
    expected = model.transformer(torch.stack(tokens)[None])[0, 1::3]
    torch.testing.assert_close(model(**data)[0], expected)


@pytest.mark.parametrize("name", WINDOWS)
def test_later_entries_never_change_earlier_outputs(name):
    model, data = make_model(), make_windows()
    before = model(**data)
    changed = {**data, name: data[name].clone()}
    changed[name][:, 2] += 1.0
    after = model(**changed)
    first = 3 if name == "action" else 2  # the output at t must not see the action at t, which it predicts
    assert torch.equal(after[:, :first], before[:, :first])
    assert ((after[:, first:] - before[:, first:]).abs().amax(-1) > 1e-6).all()


def test_masked_steps_do_not_touch_the_others_and_give_no_nan():
    model, data = make_model(), make_windows()
    mask = torch.tensor([[False, False, True, True, True], [True, True, True, True, True]])
    first = model(**data, mask=mask)
    changed = {name: value.clone() for name, value in data.items()}
    for value in changed.values():
        value[0, :2] = 100.0
        value.requires_grad_(True)
    second = model(**changed, mask=mask)
    assert torch.equal(first[0, 2:], second[0, 2:])
    assert torch.equal(first[1], second[1])
    torch.testing.assert_close(second[1], model(**data)[1])
    assert second.isfinite().all()
    second[:, 2:].sum().backward()
    for name, value in changed.items():
        assert value.grad.isfinite().all(), name
        assert (value.grad[0, :2] == 0).all(), name


def test_timesteps_choose_the_position_and_the_default_is_the_place_in_the_window():
    model, data = make_model(), make_windows()
    places = torch.arange(5).expand(2, 5)
    assert torch.equal(model(**data, timesteps=places), model(**data))
    assert torch.equal(model(**data, timesteps=places.unsqueeze(-1)), model(**data))
    assert not torch.allclose(model(**data, timesteps=places + 3), model(**data))


def test_any_leading_shape_gives_the_rows_one_by_one():
    model, data = make_model(), make_windows(6, 5)
    flat = model(**data)
    nested = model(**{name: value.view(2, 3, 5, -1) for name, value in data.items()})
    torch.testing.assert_close(nested.view(6, 5, -1), flat)
    torch.testing.assert_close(model(**{name: value[4] for name, value in data.items()}), flat[4])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("action", (2, 4, 2)),
        ("action", (2, 5, 1)),
        ("return_to_go", (2, 5)),
        ("return_to_go", (1, 5, 1)),
        ("observation", (2, 5, 4)),
    ],
)
def test_windows_that_would_broadcast_are_refused_by_name(name, shape):
    with pytest.raises(SpecError, match=name if name != "observation" else "observation|action"):
        make_model()(**{**make_windows(), name: torch.zeros(shape, dtype=torch.float64)})


def test_a_mask_of_another_kind_is_refused():
    model, data = make_model(), make_windows()
    for mask in (torch.ones(2, 5), torch.ones(5, dtype=torch.bool), torch.ones(2, 5, 1, dtype=torch.bool)):
        with pytest.raises(SpecError, match="mask"):
            model(**data, mask=mask)


def test_more_steps_than_positions_are_refused_with_the_cure():
    with pytest.raises(SpecError, match="n_positions=12"):
        make_model()(**make_windows(1, 13))


def test_a_config_takes_a_mapping_of_some_fields_and_no_others():
    assert DTActor(3, 2, {"n_layer": 1, "n_embd": 8}).transformer.config == DTConfig(
        n_embd=8, n_layer=1, n_head=4, n_inner=2048
    )
    assert DecisionTransformer(3, 2, DTConfig(n_embd=8, n_head=1)).hidden_size == 8
    with pytest.raises(ValueError, match="n_heads"):
        DTActor(3, 2, {"n_heads": 2})
    with pytest.raises(ValueError, match="n_head must divide"):
        DTActor(3, 2, {"n_embd": 10, "n_head": 4})
    with pytest.raises(ValueError, match="swishy"):
        CausalTransformer(8, 1, 1, 8, "swishy")


def test_dropout_acts_in_training_only():
    model, data = make_model(resid_pdrop=0.5, attn_pdrop=0.5), make_windows()
    assert torch.equal(model(**data), model(**data))
    model.train()
    assert not torch.equal(model(**data), model(**data))


def deterministic_actor(steps=None, mask=False):
    torch.manual_seed(3)
    net = DTActor(3, 2, {**TINY, "resid_pdrop": 0.0, "attn_pdrop": 0.0})
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.3)
    keys = [*WINDOWS, *(["timesteps"] if steps or mask else []), *(["mask"] if mask else [])]
    return ProbabilisticActor(
        SafeModule(net, in_keys=keys, out_keys=["param"]),
        in_keys=["param"],
        distribution_class=TanhDelta,
        distribution_kwargs={"low": -2.0, "high": 2.0},
    )


def float_windows(rows=2, steps=5):
    return {name: value.float() for name, value in make_windows(rows, steps).items()}


def test_the_online_actor_bounds_the_logarithm_of_its_scale():
    net = OnlineDTActor(3, 2, TINY)
    data = float_windows()
    with torch.no_grad():
        net.action_layer_logstd.weight.zero_()
        for bias, expected in ((0.0, math.exp(-1.5)), (50.0, math.exp(2.0)), (-50.0, math.exp(-5.0))):
            net.action_layer_logstd.bias.fill_(bias)
            scale = net(**data)[1]
            torch.testing.assert_close(scale, torch.full((2, 5, 2), expected))


def test_the_online_actor_is_a_policy_with_a_log_prob_per_step():
    net = SafeModule(OnlineDTActor(3, 2, TINY), in_keys=WINDOWS, out_keys=["loc", "scale"])
    actor = ProbabilisticActor(net, in_keys=["loc", "scale"], distribution_class=TanhNormal, return_log_prob=True)
    data = TensorDict(float_windows(), [2, 5])
    with set_exploration_type(ExplorationType.RANDOM):
        out = actor(data.clone())
    assert out["action"].shape == (2, 5, 2)
    assert out["action_log_prob"].shape == (2, 5)


def test_a_tiny_model_learns_to_act_by_the_return_that_is_asked_for():
    torch.manual_seed(5)
    net = DTActor(1, 1, {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_inner": 32, "resid_pdrop": 0, "attn_pdrop": 0})
    observation, wanted = torch.zeros(32, 4, 1), torch.rand(32, 1, 1).expand(32, 4, 1) * 2 - 1
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    action = wanted.clone()
    errors = []
    for _ in range(150):
        error = (net(observation, action, wanted) - action).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[0] > 0.2
    assert errors[-1] < 0.01


def make_wrapper(actor=None, **options):
    return DecisionTransformerInferenceWrapper(actor or deterministic_actor(), **options)


def test_the_wrapper_moves_past_actions_back_by_a_step_and_returns_the_last_action():
    actor, data = deterministic_actor(), TensorDict(float_windows(), [2])
    before = data.clone()
    policy = make_wrapper(actor, inference_context=5)
    policy.set_tensor_keys(out_action="action")
    taken = policy(data)["action"]
    moved = torch.cat([before["action"][:, 1:], torch.zeros(2, 1, 2)], 1)
    expected = actor.module[0].module(before["observation"], moved, before["return_to_go"])[:, -1].tanh() * 2
    torch.testing.assert_close(taken, expected)
    for name in ("observation", "return_to_go"):
        assert torch.equal(data[name], before[name])
    assert set(data.keys()) == set(WINDOWS)


def test_the_wrapper_looks_at_the_last_steps_only():
    policy = make_wrapper(inference_context=3)
    first, second = float_windows(), float_windows()
    for name, value in second.items():
        # of the actions one more lies before the context: they are moved back by a step
        value[:, : 3 if name == "action" else 2] = 50.0
    assert torch.equal(policy(*first.values()), policy(*second.values()))
    second["action"][:, 3] += 1.0
    assert not torch.equal(policy(*first.values()), policy(*second.values()))


def test_a_window_shorter_than_the_context_is_used_whole():
    data = float_windows()
    torch.testing.assert_close(
        make_wrapper(inference_context=5)(*data.values()), make_wrapper(inference_context=50)(*data.values())
    )


def test_steps_before_the_episode_are_masked_where_the_data_count_steps():
    policy = make_wrapper(deterministic_actor(mask=True), inference_context=4)
    policy.set_tensor_keys(step_count="step_count")
    assert policy.in_keys == [*WINDOWS, "timesteps", "step_count"]
    steps = torch.arange(5).expand(2, 5)
    data = TensorDict(
        {**float_windows(), "timesteps": steps, "step_count": torch.tensor([[1], [9]])},
        [2],
    )
    changed = data.clone()
    for name in WINDOWS:
        # row 0 is in its second step: only two steps of the window are its episode's, and one past action
        changed[name][0, : 4 if name == "action" else 3] = 9.0
    first = policy(data.clone())["action"]
    torch.testing.assert_close(policy(changed.clone())["action"], first)
    changed["observation"][1, 1] += 1.0
    changed["observation"][0, 3] += 1.0  # the first step of the episode of row 0
    second = policy(changed)["action"]
    assert (second != first).any(-1).all()


def test_an_entry_without_the_steps_of_the_window_is_refused():
    data = {**float_windows(), "action": torch.zeros(2, 4, 2)}
    with pytest.raises(SpecError, match="'action'"):
        make_wrapper()(*data.values())


def test_the_wrapper_passes_a_stored_mask_on():
    policy = make_wrapper(deterministic_actor(mask=True), inference_context=4)
    mask = torch.tensor([[False] * 3 + [True] * 2, [True] * 5])
    steps = torch.arange(5).expand(2, 5)
    data = TensorDict({**float_windows(), "timesteps": steps, "mask": mask}, [2])
    changed = data.clone()
    changed["observation"][0, :3] = 9.0
    assert torch.equal(policy(data)["action"], policy(changed)["action"])


def test_the_wrapper_follows_renamed_keys_and_a_container_policy():
    torch.manual_seed(3)
    names = [f"{name}_cat" for name in WINDOWS]

    class Doubled(TensorDictModule):
        """A policy that can only be called on a TensorDict."""

        def forward(self, tensordict):
            return super().forward(tensordict).update({"action": tensordict["action"] * 2})

    net = Doubled(DTActor(3, 2, TINY).eval(), in_keys=names, out_keys=["action"])
    policy = make_wrapper(net, spec=Bounded(-1.0, 1.0, (2,)))
    with pytest.raises(PolicyError, match="set_tensor_keys"):
        policy(TensorDict(dict(zip(names, float_windows().values(), strict=True)), [2]))
    policy.set_tensor_keys(**dict(zip(WINDOWS, names, strict=True)))
    windows = float_windows()
    data = TensorDict(dict(zip(names, windows.values(), strict=True)), [2])
    moved = torch.cat([windows["action"][:, 1:], torch.zeros(2, 1, 2)], 1)
    expected = 2 * net.module(windows["observation"], moved, windows["return_to_go"])[:, -1]
    torch.testing.assert_close(policy(data)["action"], expected)
    with pytest.raises(KeyMissingError, match="return_to_go_cat"):
        policy(data.exclude("return_to_go_cat"))
    with pytest.raises(SpecError, match="reward"):
        policy.set_tensor_keys(reward="r")
    policy.set_tensor_keys(observation=None)
    assert policy.policy is net
    with pytest.raises(PolicyError, match="'observation'"):
        policy(data)


def test_a_context_without_a_step_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        make_wrapper(inference_context=0)


def test_copies_and_state_dicts_give_the_same_actions():
    actor, data = deterministic_actor(), float_windows()
    other = deterministic_actor()
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.1)
    other.load_state_dict(actor.state_dict())
    expected = actor(*data.values())[1]
    assert torch.equal(other(*data.values())[1], expected)
    assert torch.equal(copy.deepcopy(actor)(*data.values())[1], expected)


def test_the_names_are_registered():
    assert registry.modules.get("dt_actor") is DTActor
    assert registry.modules.get("online_dt_actor") is OnlineDTActor
    assert registry.modules.get("decision_transformer") is DecisionTransformer
