"""An actor's flat plan never hides a change: copies, swapped modules, hooks, overrides."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import ExplorationType, set_exploration_type
from rl_modules import (
    MLP,
    Categorical,
    NormalParamExtractor,
    ProbabilisticActor,
    SafeModule,
    SafeSequential,
    TanhNormal,
)

OBS = torch.randn(5, 3)


def make(kind="discrete"):
    if kind == "discrete":
        net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"])
        return ProbabilisticActor(net, ["logits"], distribution_class=Categorical)
    net = nn.Sequential(nn.Linear(3, 2), NormalParamExtractor())
    bounds = {"low": torch.tensor([-2.0]), "high": torch.tensor([2.0])}
    return ProbabilisticActor(
        SafeModule(net, ["observation"], ["loc", "scale"]),
        ["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs=bounds,
        return_log_prob=True,
    )


def zero(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda actor: pickle.loads(pickle.dumps(actor))])
def test_a_copy_uses_its_own_networks(kind, duplicate):
    actor = make(kind)
    before = actor.forward_tensors(OBS)[0]
    twin = duplicate(actor)
    torch.testing.assert_close(twin.forward_tensors(OBS)[0], before)
    zero(twin)
    assert (twin.forward_tensors(OBS)[0] == 0).all()
    torch.testing.assert_close(actor.forward_tensors(OBS)[0], before)


def test_state_dicts_carry_over():
    source, target = make(), make()
    assert list(source.state_dict()) == ["module.0.module.weight", "module.0.module.bias"]
    target.load_state_dict(source.state_dict())
    torch.testing.assert_close(target.forward_tensors(OBS)[0], source.forward_tensors(OBS)[0])


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_change_of_dtype_is_followed(kind):
    actor = make(kind)
    actor.forward_tensors(OBS)
    actor.double()
    with set_exploration_type(ExplorationType.RANDOM):
        outputs = actor.forward_tensors(OBS.double())
    assert outputs[0].dtype == torch.float64
    assert outputs[-1].dtype == (torch.float64 if kind == "continuous" else torch.int64)


def test_swapped_parameters_are_used():
    actor = make()
    actor.forward_tensors(OBS)
    params = TensorDict.from_module(actor).data.clone().zero_()
    with params.to_module(actor):
        assert (actor.forward_tensors(OBS)[0] == 0).all()
    assert not (actor.forward_tensors(OBS)[0] == 0).all()


def test_a_replaced_network_is_used():
    actor = make()
    actor.forward_tensors(OBS)
    actor.module[0].module = nn.Sequential(nn.Linear(3, 2))
    zero(actor)
    assert (actor.forward_tensors(OBS)[0] == 0).all()


def test_a_replaced_module_of_the_chain_is_used():
    actor = make()
    actor.forward_tensors(OBS)
    actor.module[0] = TensorDictModule(lambda x: x[..., :2] * 0, ["observation"], ["logits"])
    assert (actor.forward_tensors(OBS)[0] == 0).all()
    assert (actor(TensorDict({"observation": OBS}, [5]))["logits"] == 0).all()


def test_hooks_of_the_network_run():
    actor, calls = make(), []
    actor.module[0].module.register_forward_hook(lambda *_: calls.append(1))
    actor.forward_tensors(OBS)
    actor(TensorDict({"observation": OBS}, [5]))
    assert len(calls) == 2


def test_hooks_of_an_inner_module_and_of_the_actor_run():
    actor, calls = make(), []
    actor.forward_tensors(OBS)
    actor.module[0].register_forward_hook(lambda *_: calls.append("inner"))
    actor.register_forward_hook(lambda *_: calls.append("outer"))
    actor.forward_tensors(OBS)
    actor(TensorDict({"observation": OBS}, [5]))
    assert calls == ["inner", "outer"] * 2


def test_a_subclass_that_overrides_forward_is_not_skipped():
    class Loud(ProbabilisticActor):
        def forward(self, tensordict):
            data = super().forward(tensordict)
            return data.set("action", data["action"] * 0 + 42)

    net = TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"])
    actor = Loud(net, ["logits"], distribution_class=Categorical)
    assert actor.forward_tensors(OBS)[1].tolist() == [42] * 5
    chain = SafeSequential(actor, TensorDictModule(lambda a: a + 1, ["action"], ["next_action"]))
    assert chain.forward_tensors(OBS)[-1].tolist() == [43] * 5


def test_inner_modules_with_options_run_by_their_own_forward():
    inner = TensorDictModule(lambda *, x: x[..., :2], in_keys={"x": "observation"}, out_keys=["logits"])
    actor = ProbabilisticActor(inner, ["logits"], distribution_class=Categorical, return_log_prob=True)
    assert not actor._current_plan().runs_on_tensors()
    data = actor(TensorDict({"observation": OBS}, [5]))
    torch.testing.assert_close(actor.forward_tensors(OBS)[1], data["action"])
    torch.testing.assert_close(actor.get_dist(data).logits, actor.get_dist_tensors(OBS).logits)
    assert data["action_log_prob"].shape == (5,)


def test_selected_out_keys_hold_where_the_chain_needs_a_tensordict():
    inner = TensorDictModule(lambda *, x: x[..., :2], in_keys={"x": "observation"}, out_keys=["logits"])
    actor = ProbabilisticActor(inner, ["logits"], distribution_class=Categorical).select_out_keys("action")
    assert set(actor(TensorDict({"observation": OBS}, [5])).keys()) == {"observation", "action"}


def test_lazy_layers_are_made_at_the_first_call():
    net = TensorDictModule(MLP(out_features=2, num_cells=[8]), ["observation"], ["logits"])
    actor = ProbabilisticActor(net, ["logits"], distribution_class=Categorical)
    assert actor.forward_tensors(OBS)[0].shape == (5, 2)
    assert actor.module[0].module[0].weight.shape == (8, 3)


def test_train_and_eval_reach_the_networks():
    net = TensorDictModule(nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)), ["observation"], ["logits"])
    actor = ProbabilisticActor(net, ["logits"], distribution_class=Categorical).eval()
    torch.testing.assert_close(actor.forward_tensors(OBS)[0], actor.forward_tensors(OBS)[0])
