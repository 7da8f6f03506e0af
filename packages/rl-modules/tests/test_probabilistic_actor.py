"""ProbabilisticActor: keys, exploration types, log-probabilities, distributions for losses."""

from __future__ import annotations

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.nn import NormalParamExtractor as TensorDictExtractor
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_core import ExplorationType, set_exploration_type
from rl_core.specs import Bounded, Composite, OneHot
from rl_modules import (
    MLP,
    Categorical,
    IndependentNormal,
    MaskedCategorical,
    NormalParamExtractor,
    OneHotCategorical,
    ProbabilisticActor,
    SafeModule,
    TanhDelta,
    TanhNormal,
    ValueOperator,
)

RANDOM = ExplorationType.RANDOM
DETERMINISTIC = ExplorationType.DETERMINISTIC


def discrete(**options):
    net = TensorDictModule(MLP(4, 2, num_cells=[8]), in_keys=["observation"], out_keys=["logits"])
    options = {"distribution_class": Categorical, "return_log_prob": True, **options}
    return ProbabilisticActor(net, in_keys=["logits"], **options)


def continuous(**options):
    net = nn.Sequential(nn.Linear(3, 2), TensorDictExtractor())
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"])
    options = {"distribution_kwargs": {"low": -2.0, "high": 2.0}, "return_log_prob": True, **options}
    return ProbabilisticActor(module, in_keys=["loc", "scale"], distribution_class=TanhNormal, **options)


def batch(features, *sizes):
    return TensorDict({"observation": torch.randn(*sizes, features)}, list(sizes))


def test_the_readme_actor_and_critic_read_and_write_their_keys():
    actor = continuous(spec=Bounded(low=-2.0, high=2.0, shape=(1,)))
    critic = ValueOperator(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), in_keys=["observation"])
    assert actor.in_keys == ["observation"]
    assert actor.out_keys == ["loc", "scale", "action", "action_log_prob"]
    assert critic.out_keys == ["state_value"]
    with set_exploration_type(RANDOM):
        data = critic(actor(batch(3, 5)))
    assert set(data.keys()) == {"observation", *actor.out_keys, "state_value"}
    assert (data["action"].shape, data["action_log_prob"].shape) == ((5, 1), (5,))
    assert actor.spec["action"].is_in(data["action"])


@pytest.mark.parametrize("make, features", [(discrete, 4), (continuous, 3)])
def test_log_prob_of_the_sample_equals_the_recomputed_one(make, features):
    actor, data = make(), batch(features, 7)
    with torch.no_grad(), set_exploration_type(RANDOM):
        actor(data)
    torch.testing.assert_close(actor.log_prob(data), data["action_log_prob"], atol=1e-4, rtol=1e-4)
    dist = actor.get_dist_tensors(data["observation"])
    torch.testing.assert_close(dist.log_prob(data["action"]), data["action_log_prob"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make, features", [(discrete, 4), (continuous, 3)])
@pytest.mark.parametrize("how", [None, RANDOM, DETERMINISTIC])
@pytest.mark.parametrize("grad", [False, True])
def test_bare_tensors_give_what_the_tensordict_gets(make, features, how, grad):
    actor, data = make(), batch(features, 2, 3)
    with torch.set_grad_enabled(grad), set_exploration_type(how):
        torch.manual_seed(1)
        actor(data)
        torch.manual_seed(1)
        outputs = actor.forward_tensors(data["observation"])
    for key, output in zip(actor.out_keys, outputs, strict=True):
        torch.testing.assert_close(output, data[key])
    assert outputs[-1].requires_grad is grad


def test_outside_of_a_context_the_default_exploration_type_decides():
    data = batch(4, 64)
    actor = discrete()
    assert torch.equal(actor(data)["action"], data["logits"].argmax(-1))
    torch.manual_seed(0)
    random = discrete(default_interaction_type="random")
    assert not torch.equal(random(data)["action"], data["logits"].argmax(-1))


def test_each_exploration_type_takes_its_value():
    loc = torch.tensor([[0.5]])
    actor = ProbabilisticActor(
        TensorDictModule(lambda x: (loc, torch.ones(1, 1)), ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        n_empirical_estimate=20_000,
    )
    torch.manual_seed(0)
    values = {}
    for how in (ExplorationType.MODE, ExplorationType.MEDIAN, ExplorationType.MEAN, DETERMINISTIC):
        with set_exploration_type(how):
            values[how] = actor(batch(1, 1))["action"].item()
    squashed = loc.tanh().item()
    for how in (ExplorationType.MODE, ExplorationType.MEDIAN, DETERMINISTIC):
        assert values[how] == pytest.approx(squashed)
    noise = torch.linspace(-6, 6, 20_001)
    weights = (-0.5 * noise**2).softmax(0)
    assert values[ExplorationType.MEAN] == pytest.approx(((0.5 + noise).tanh() * weights).sum().item(), abs=0.02)


def test_an_exploration_type_that_the_distribution_lacks_raises():
    actor = discrete(distribution_class=OneHotCategorical)
    with (
        set_exploration_type(ExplorationType.MEDIAN),
        pytest.raises(RuntimeError, match="OneHotCategorical has no median"),
    ):
        actor(batch(4, 2))


@pytest.mark.parametrize("how, expected", [(DETERMINISTIC, 0.5), (ExplorationType.MODE, 0.5)])
def test_torchs_own_distributions_work(how, expected):
    actor = ProbabilisticActor(
        TensorDictModule(lambda x: (x * 0 + 0.5, x * 0 + 1), ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=torch.distributions.Normal,
        return_log_prob=True,
    )
    with set_exploration_type(how):
        data = actor(batch(1, 3))
    assert data["action"].flatten().tolist() == [expected] * 3
    assert data["action_log_prob"].shape == (3, 1)  # Normal scores each element


def test_torchs_categorical_acts_by_its_mode_and_samples():
    actor = discrete(distribution_class=torch.distributions.Categorical)
    data = batch(4, 5)
    assert torch.equal(actor(data)["action"], data["logits"].argmax(-1))
    with set_exploration_type(RANDOM):
        actor(data)
    torch.testing.assert_close(data["action_log_prob"], actor.get_dist(data).log_prob(data["action"]))


def test_get_dist_writes_nothing():
    actor, data = continuous(), batch(3, 2)
    actor.get_dist(data)
    assert list(data.keys()) == ["observation"]
    params = actor.get_dist_params(data)
    assert list(data.keys()) == ["observation"]
    torch.testing.assert_close(actor.build_dist_from_params(params).loc, actor.get_dist(data).loc)


def test_parameters_may_be_named_by_a_dict_and_come_from_the_data():
    net = TensorDictModule(nn.Linear(4, 3), in_keys=["observation"], out_keys=["scores"])
    actor = ProbabilisticActor(
        net, in_keys={"logits": "scores", "mask": ("info", "mask")}, distribution_class=MaskedCategorical
    )
    assert actor.in_keys == ["observation", ("info", "mask")]
    data = batch(4, 50)
    data["info", "mask"] = torch.tensor([False, True, False]).expand(50, 3)
    with set_exploration_type(RANDOM):
        assert actor(data)["action"].unique().tolist() == [1]
        assert actor.forward_tensors(data["observation"], data["info", "mask"])[1].unique().tolist() == [1]


def test_nested_keys_are_read_and_written():
    net = TensorDictModule(nn.Linear(4, 2), [("agents", "observation")], [("agents", "logits")])
    actor = ProbabilisticActor(
        net, [("agents", "logits")], [("agents", "action")], distribution_class=Categorical, return_log_prob=True
    )
    assert actor.out_keys == [("agents", "logits"), ("agents", "action"), ("agents", "action_log_prob")]
    data = TensorDict({"agents": TensorDict({"observation": torch.randn(2, 3, 4)}, [2, 3])}, [2])
    actor(data)
    assert data["agents", "action"].shape == (2, 3)
    assert data["agents"].batch_size == (2, 3)


def test_lazy_stacks_are_written_through():
    stack = LazyStackedTensorDict(*[batch(4) for _ in range(3)], stack_dim=0)
    discrete()(stack)
    assert stack["action"].shape == (3,)
    assert stack.tensordicts[1]["action"].shape == ()


def test_a_locked_tensordict_raises():
    with pytest.raises(RuntimeError, match="lock"):
        discrete()(batch(4, 2).lock_())


def test_a_view_is_written_through():
    data = TensorDict({"observation": torch.randn(4, 4), "logits": torch.zeros(4, 2), "action": torch.full((4,), 7), "action_log_prob": torch.zeros(4)}, [4])  # fmt: skip  # noqa: E501
    discrete()(data._get_sub_tensordict(slice(0, 2)))
    assert data["action"][2:].tolist() == [7, 7]
    assert (data["action"][:2] < 2).all()


def test_a_missing_input_names_the_key_and_the_reader():
    with pytest.raises(KeyError, match=r"ProbabilisticActor needs 'observation'.*the data holds 'pixels'"):
        discrete()(TensorDict({"pixels": torch.zeros(2, 4)}, [2]))


def test_a_parameter_that_nobody_writes_becomes_an_input():
    net = TensorDictModule(nn.Linear(3, 1), ["observation"], ["loc"])
    actor = ProbabilisticActor(net, ["loc", "scale"], distribution_class=TanhNormal)
    assert actor.in_keys == ["observation", "scale"]
    with pytest.raises(KeyError, match="needs 'scale'"):
        actor(batch(3, 2))


def test_too_few_outputs_for_the_out_keys_raise():
    net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(net, ["loc", "scale"], distribution_class=TanhNormal)
    with pytest.raises(
        RuntimeError, match=r"Linear returned 1 output\(s\) for out_keys \['loc', 'scale'\].*NormalParam"
    ):
        actor(batch(3, 2))


def test_outputs_that_do_not_fit_the_batch_size_raise():
    actor = ProbabilisticActor(lambda x: x.sum(0), ["logits"], distribution_class=Categorical)
    with pytest.raises(RuntimeError, match=r"'logits' of shape \[4\].*batch size \[2\]"):
        actor(batch(4, 2))


def test_a_plain_network_reads_the_observation():
    actor = ProbabilisticActor(nn.Linear(4, 2), ["logits"], distribution_class=Categorical)
    assert (actor.in_keys, actor.out_keys) == (["observation"], ["logits", "action"])


def test_modules_of_tensordict_and_chains_of_them_are_unrolled():
    first = TensorDictModule(nn.Linear(4, 8), ["observation"], ["hidden"])
    second = TensorDictModule(nn.Linear(8, 2), ["hidden"], ["logits"])
    actor = ProbabilisticActor(TensorDictSequential(first, second), ["logits"], distribution_class=Categorical)
    assert actor.out_keys == ["hidden", "logits", "action"]
    assert actor._current_plan().runs_on_tensors()
    obs = torch.randn(3, 4)
    torch.testing.assert_close(actor.forward_tensors(obs)[1], second.module(first.module(obs)))


def test_keyword_and_positional_tensors_return_outputs():
    actor, obs = discrete(), torch.randn(3, 4)
    by_name, by_place = actor(observation=obs), actor(obs)
    assert len(by_name) == len(by_place) == 3
    torch.testing.assert_close(by_name[0], by_place[0])
    with pytest.raises(TypeError, match="no input"):
        actor(obs=obs)
    with pytest.raises(TypeError, match="2 tensors"):
        actor(obs, obs)


def test_selected_out_keys_are_the_only_ones_written():
    actor = continuous().select_out_keys("action")
    data = actor(batch(3, 2))
    assert set(data.keys()) == {"observation", "action"}
    assert len(actor.forward_tensors(data["observation"])) == 1
    assert actor.reset_out_keys().out_keys == ["loc", "scale", "action", "action_log_prob"]


def test_num_samples_expands_the_output_and_leaves_the_input():
    actor, data = continuous(num_samples=5), batch(3, 2)
    with set_exploration_type(RANDOM):
        out = actor(data)
    assert out.batch_size == (5, 2)
    assert (out["action"].shape, out["action_log_prob"].shape) == ((5, 2, 1), (5, 2))
    assert list(data.keys()) == ["observation"]


def test_a_generator_makes_draws_independent_of_the_global_seed():
    draws = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        actor = continuous(generator=torch.Generator().manual_seed(7))
        with set_exploration_type(RANDOM):
            draws.append(actor[-1].forward_tensors(torch.zeros(9), torch.ones(9))[0])
    assert torch.equal(*draws)
    with pytest.raises(ValueError, match="generator"):
        discrete(distribution_class=torch.distributions.Categorical, generator=torch.Generator())


def test_a_safe_actor_projects_onto_its_spec():
    actor = ProbabilisticActor(
        TensorDictModule(lambda x: x * 0 + 9.0, ["observation"], ["param"]),
        in_keys=["param"],
        spec=Bounded(low=-1.0, high=1.0, shape=(1,)),
        distribution_class=TanhDelta,
        distribution_kwargs={"low": -3.0, "high": 3.0},
        safe=True,
    )
    assert actor(batch(1, 2))["action"].flatten().tolist() == [1.0, 1.0]


def test_safe_without_a_spec_raises():
    with pytest.raises(ValueError, match="needs spec="):
        discrete(safe=True)


def test_one_hot_actions_take_the_specs_dtype():
    spec = OneHot(2)
    actor = discrete(distribution_class=OneHotCategorical, spec=spec)
    with set_exploration_type(RANDOM):
        data = actor(batch(4, 3))
    assert spec.is_in(data["action"])
    assert actor.log_prob(data).shape == (3,)


def test_a_composite_spec_names_the_action():
    spec = Composite({"torque": Bounded(low=-2.0, high=2.0, shape=(1,))})
    actor = continuous(spec=spec)
    assert actor.out_keys == ["loc", "scale", "torque", "torque_log_prob"]
    with pytest.raises(ValueError, match="none of which"):
        continuous(spec=spec, out_keys=["action"])


def test_gradients_reach_the_network_through_sample_and_log_prob():
    actor = continuous()
    with set_exploration_type(RANDOM):
        data = actor(batch(3, 8))
    (data["action"].sum() + data["action_log_prob"].sum()).backward()
    assert all(parameter.grad is not None for parameter in actor.parameters())


def test_a_single_unbatched_observation_works():
    data = continuous()(TensorDict({"observation": torch.zeros(3)}))
    assert (data["action"].shape, data["action_log_prob"].shape) == ((1,), ())


def test_a_normal_head_with_our_extractor():
    net = SafeModule(nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()), ["observation"], ["loc", "scale"])
    actor = ProbabilisticActor(net, ["loc", "scale"], distribution_class=IndependentNormal)
    assert actor(batch(3, 2))["action"].shape == (2, 2)
