"""Joint actions of several parts through ProbabilisticActor, with tensordict's CompositeDistribution."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import CompositeDistribution, TensorDictModule, TensorDictSequential, set_composite_lp_aggregate
from torch import nn
from torch.distributions import Normal

from rl_core import Composite, ExplorationType, set_exploration_type
from rl_core.errors import KeyMissingError
from rl_core.specs import Bounded
from rl_core.specs import Categorical as CategoricalSpec
from rl_modules import Categorical, ProbabilisticActor, TanhNormal

KWARGS = {
    "distribution_map": {"a": Categorical, "b": TanhNormal},
    "name_map": {"a": ("x", "action"), "b": ("y", "action")},
    "extra_kwargs": {"b": {"low": 0, "high": 2}},
}


def parameters(observation):
    joint = observation.repeat_interleave(3, -1)[..., :7]
    return joint[..., :3], joint[..., 3:5], joint[..., 5:].exp()


def make_actor(whole=False, **kwargs):
    """The parameters as single entries, or as one TensorDict."""
    keys = [("params", "a", "logits"), ("params", "b", "loc"), ("params", "b", "scale")]
    if whole:

        def module(td):
            logits, loc, scale = parameters(td["observation"])
            params = {"a": {"logits": logits}, "b": {"loc": loc, "scale": scale}}
            return td.set("params", TensorDict(params, td.batch_size))

        module.in_keys, module.out_keys = ["observation"], ["params"]
        first = Whole(module)
    else:
        first = TensorDictSequential(TensorDictModule(parameters, in_keys=["observation"], out_keys=keys))
    return ProbabilisticActor(
        first,
        in_keys=["params"],
        distribution_class=CompositeDistribution,
        **{"distribution_kwargs": KWARGS, "return_log_prob": True, **kwargs},
    )


class Whole(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.in_keys, self.out_keys = function, function.in_keys, function.out_keys

    def forward(self, td):
        return self.function(td)


def data():
    torch.manual_seed(0)
    return TensorDict({"observation": torch.randn(5, 3)}, [5])


def expected(td):
    """Log-probabilities of the written actions, part by part."""
    logits, loc, scale = parameters(td["observation"])
    return (
        Categorical(logits=logits).log_prob(td["x", "action"]),
        TanhNormal(loc, scale, low=0, high=2).log_prob(td["y", "action"]),
    )


@pytest.mark.parametrize("whole", [False, True], ids=["leaves", "one TensorDict"])
@pytest.mark.parametrize("how", [ExplorationType.RANDOM, ExplorationType.DETERMINISTIC])
def test_each_part_is_written_with_its_log_probability(how, whole):
    actor = make_actor(whole)
    assert actor.out_keys[-4:] == [("x", "action"), ("y", "action"), ("x", "action_log_prob"), ("y", "action_log_prob")]
    with set_exploration_type(how):
        td = actor(data())
    for found, wanted in zip((td["x", "action_log_prob"], td["y", "action_log_prob"]), expected(td), strict=True):
        torch.testing.assert_close(found, wanted)
    assert ((td["y", "action"] >= 0) & (td["y", "action"] <= 2)).all()
    scores = actor.log_prob(td)
    torch.testing.assert_close(scores["x", "action_log_prob"], td["x", "action_log_prob"])


def test_the_sum_is_written_where_aggregation_is_on_or_a_key_is_given():
    with set_composite_lp_aggregate(True):
        summed = make_actor()
    named = make_actor(log_prob_key="total")
    assert summed.log_prob_key == "sample_log_prob" and named.log_prob_key == "total"
    for actor in (summed, named):
        with set_exploration_type(ExplorationType.RANDOM):
            td = actor(data())
        torch.testing.assert_close(td[actor.log_prob_key], sum(expected(td)))
        torch.testing.assert_close(actor.log_prob(td), sum(expected(td)))
        assert ("x", "action_log_prob") not in td.keys(True)


def test_dimensions_beyond_the_batch_are_summed_too():
    kwargs = {**KWARGS, "distribution_map": {"a": Categorical, "b": Normal}, "extra_kwargs": {}}
    actor = make_actor(distribution_kwargs=kwargs, log_prob_key="total")
    with set_exploration_type(ExplorationType.RANDOM):
        td = actor(data())
    logits, loc, scale = parameters(td["observation"])
    wanted = Categorical(logits=logits).log_prob(td["x", "action"]) + Normal(loc, scale).log_prob(
        td["y", "action"]
    ).sum(-1)
    torch.testing.assert_close(td["total"], wanted)


def test_the_distribution_is_tensordicts():
    actor, td = make_actor(), data()
    dist = actor.get_dist(td)
    assert isinstance(dist, CompositeDistribution) and dist.batch_shape == (5,)
    torch.testing.assert_close(dist.mode["y", "action"], actor(td)["y", "action"])


def test_bare_tensors_give_what_a_tensordict_gives():
    actor, td = make_actor(), data()
    values = dict(zip(actor.out_keys, actor.forward_tensors(td["observation"]), strict=True))
    written = actor(td)
    for key in actor.out_keys:
        torch.testing.assert_close(values[key], written[key])


def test_several_draws_have_leading_dims():
    with set_exploration_type(ExplorationType.RANDOM):
        td = make_actor(num_samples=7, log_prob_key="total")(data())
    assert td.batch_size == (7, 5) and td["y", "action"].shape == (7, 5, 2) and td["total"].shape == (7, 5)


def test_specs_cast_and_project():
    spec = Composite({("x", "action"): CategoricalSpec(3, dtype=torch.int32), ("y", "action"): Bounded(0.0, 0.5, (2,))})
    td = make_actor(spec=spec, safe=True)(data())
    assert td["x", "action"].dtype == torch.int32 and (td["y", "action"] <= 0.5).all()


def test_one_key_is_asked_where_there_are_two():
    with pytest.raises(KeyMissingError, match="log_prob_keys"):
        make_actor().log_prob_key  # noqa: B018


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"out_keys": ["other", ("y", "action")]}, "name_map"),
        ({"distribution_kwargs": {}}, "distribution_map"),
        ({"log_prob_keys": ["one"]}, "2 parts"),
    ],
)
def test_keys_that_do_not_fit_are_refused(kwargs, match):
    with pytest.raises(ValueError, match=match):
        make_actor(**kwargs)


def test_a_missing_part_is_named():
    kwargs = {"distribution_map": {"a": Categorical, "c": Categorical}}
    actor = make_actor(whole=True, distribution_kwargs=kwargs)
    with pytest.raises(KeyMissingError, match="'c'"):
        actor(data())
