"""SafeModule, SafeSequential, Actor, ValueOperator, and TanhModule."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_core.specs import Bounded
from rl_core.specs import Categorical as CategoricalSpec
from rl_modules import MLP, Actor, SafeModule, SafeSequential, TanhModule, ValueOperator

OBS = torch.randn(5, 3)


def data():
    return TensorDict({"observation": OBS.clone()}, [5])


def test_a_safe_module_passes_inputs_in_order():
    module = SafeModule(lambda a, b: a - b, in_keys=["a", "b"], out_keys=["difference"])
    out = module(TensorDict({"a": torch.ones(2), "b": torch.zeros(2)}, [2]))
    assert out["difference"].tolist() == [1.0, 1.0]
    assert module.forward_tensors(torch.zeros(2), torch.ones(2))[0].tolist() == [-1.0, -1.0]


def test_a_safe_module_passes_inputs_by_name():
    module = SafeModule(lambda *, x, y: x - y, in_keys={"y": "a", "x": "b"}, out_keys=["difference"])
    assert module.forward_tensors(torch.tensor(1.0), torch.tensor(3.0))[0].item() == 2.0


def test_dict_outputs_are_read_by_key_and_underscore_drops_one():
    module = SafeModule(lambda x: {"b": x + 1, "a": x}, ["observation"], ["a", "b"])
    out = module(data())
    torch.testing.assert_close(out["b"], out["a"] + 1)
    dropped = SafeModule(lambda x: (x, x + 1), ["observation"], ["_", "b"])(data())
    assert set(dropped.keys()) == {"observation", "b"}


def test_a_safe_module_projects_only_on_request():
    spec = Bounded(low=-1.0, high=1.0, shape=(3,))
    grow = lambda x: x * 0 + 5.0  # noqa: E731
    assert SafeModule(grow, ["observation"], ["action"], spec)(data())["action"].max() == 5.0
    assert SafeModule(grow, ["observation"], ["action"], spec, safe=True)(data())["action"].max() == 1.0


def test_too_many_outputs_raise():
    with pytest.raises(RuntimeError, match=r"returned 2 output\(s\) for out_keys \['a'\]"):
        SafeModule(lambda x: (x, x), ["observation"], ["a"])(data())


def test_a_class_instead_of_a_network_raises():
    with pytest.raises(TypeError, match="needs a network"):
        SafeModule(nn.ReLU, ["observation"], ["a"])


def test_tensordict_out_receives_the_outputs():
    target, source = TensorDict({}, [5]), data()
    SafeModule(nn.Linear(3, 1), ["observation"], ["a"])(source, tensordict_out=target)
    assert (list(target.keys()), list(source.keys())) == (["a"], ["observation"])


def test_our_modules_work_inside_tensordicts_sequences():
    chain = TensorDictSequential(SafeModule(nn.Linear(3, 4), ["observation"], ["hidden"]), ValueOperator(MLP(4, 1), ["hidden"]))  # fmt: skip  # noqa: E501
    assert chain(data())["state_value"].shape == (5, 1)


def test_value_operator_names_its_output_by_its_inputs():
    assert ValueOperator(nn.Linear(3, 1)).out_keys == ["state_value"]
    critic = ValueOperator(MLP(out_features=1, num_cells=[4]), in_keys=["observation", "action"])
    assert critic.out_keys == ["state_action_value"]
    assert critic(TensorDict({"observation": OBS, "action": OBS[:, :1]}, [5]))["state_action_value"].shape == (5, 1)


def test_an_actor_reads_the_observation_and_writes_the_action():
    actor = Actor(nn.Linear(3, 1), spec=Bounded(low=-1.0, high=1.0, shape=(1,)))
    assert (actor.in_keys, actor.out_keys) == (["observation"], ["action"])
    assert actor.spec["action"].shape == (1,)


def test_a_chain_reads_from_outside_only_what_it_does_not_write():
    chain = SafeSequential(
        TensorDictModule(nn.Linear(3, 2), ["observation"], ["a"]),
        TensorDictModule(lambda a, b: a + b, ["a", "b"], ["c"]),
        TensorDictModule(lambda c: c * 2, ["c"], ["a"]),
    )
    assert chain.in_keys == ["observation", "b"]
    assert chain.out_keys == ["c", "a"]  # a key written twice stands where it was written last
    c, a = chain.forward_tensors(OBS, torch.zeros(5, 2))
    torch.testing.assert_close(a, c * 2)


def test_a_chain_takes_functions_of_a_tensordict():
    chain = SafeSequential(
        TensorDictModule(nn.Linear(3, 2), ["observation"], ["a"]), lambda td: td.set("b", td["a"] + 1)
    )
    out = chain(data())
    torch.testing.assert_close(out["b"], out["a"] + 1)


def test_a_chain_can_be_sliced():
    chain = SafeSequential(*[TensorDictModule(nn.Identity(), ["observation"], [name]) for name in "abc"])
    assert len(chain) == 3
    assert chain[0].out_keys == ["a"]
    assert chain[1:].out_keys == ["b", "c"]


def test_tanh_module_maps_into_the_bounds_of_the_spec():
    module = TanhModule(["x"], ["y"], spec=Bounded(low=0.0, high=4.0, shape=(1,)))
    y = module(TensorDict({"x": torch.tensor([[0.5]])}, [1]))["y"]
    torch.testing.assert_close(y, torch.tensor([[2 + 2 * math.tanh(0.5)]]))


def test_tanh_module_clamps_on_request_and_overwrites_by_default():
    module = TanhModule(["x"], low=-1, high=1, clamp=True)
    out = module(TensorDict({"x": torch.tensor([[-3.0], [0.2]])}, [2]))
    torch.testing.assert_close(out["x"], torch.tensor([[-1.0], [0.2]]))


def test_tanh_module_without_bounds_in_the_spec_raises():
    with pytest.raises(ValueError, match="needs bounds"):
        TanhModule(["x"], spec=CategoricalSpec(3))
