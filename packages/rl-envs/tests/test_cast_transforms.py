"""DTypeCastTransform and DeviceCastTransform."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Bounded, Compose, Composite, TransformedEnv, Unbounded, check_env_specs
from rl_core.errors import KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, TransformKit
from rl_envs import DeviceCastTransform, DoubleToFloat, DTypeCastTransform, StepCounter


class Halves(ArrayCountingEnv):
    """The counting environment in float64, its action too."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        batch = self.batch_size
        self.observation_spec = Composite(observation=Unbounded(shape=(*batch, 1), dtype=torch.float64), shape=batch)
        self.action_spec = Bounded(low=-0.1, high=0.1, shape=(*batch, 1), dtype=torch.float64)


class TestDTypeCast(TransformKit):
    offline = True

    def make_transform(self):
        return DTypeCastTransform(torch.float32, torch.float64, in_keys=["observation", "reward"], in_keys_inv=[])


class TestDTypeCastOfEverything(TransformKit):
    needs = ()

    def make_env(self):
        return Halves(length=[3, 5, 7], batch_size=[3])

    def make_single_env(self):
        return Halves(length=4)

    def make_transform(self):
        return DTypeCastTransform(torch.float64, torch.bfloat16, in_keys_inv=[])


class TestDeviceCast(TransformKit):
    needs = ()

    def make_transform(self):
        return DeviceCastTransform("cpu")


def test_entries_of_the_dtype_are_found_and_actions_go_back():
    env = TransformedEnv(Halves(batch_size=[2]), DTypeCastTransform(torch.float64, torch.float16))
    check_env_specs(env)
    assert env.observation_spec["observation"].dtype == env.action_spec.dtype == torch.float16
    assert env.action_spec.high.double().max() <= 0.1, "a legal action would leave the environment's bounds"
    assert env.rollout(3)["observation"].dtype == torch.float16
    assert env.reward_spec.dtype == torch.float32


def test_integers_become_floats_and_names_alone_count():
    env = TransformedEnv(
        CountingEnv(),
        Compose(StepCounter(), DTypeCastTransform(torch.int64, torch.float32, in_keys=["step_count"], out_keys=["n"])),
    )
    data = env.rollout(3)
    assert data["n"].tolist() == [[0.0], [1.0], [2.0]] and data["step_count"].dtype == torch.int64
    with pytest.raises(KeyMissingError, match="needs 'x'"):
        DTypeCastTransform(torch.float32, torch.float64, in_keys=["x"])(TensorDict(y=torch.zeros(1)))


def test_stored_data_are_cast_with_and_without_names():
    data = TensorDict(a=torch.zeros(3, dtype=torch.int32), n=TensorDict(b=torch.zeros(3, dtype=torch.int32)))
    assert DTypeCastTransform(torch.int32, torch.int64)(data.clone())["n", "b"].dtype == torch.int64
    named = DTypeCastTransform(torch.int32, torch.int64, in_keys=["a"])(data.clone())
    assert named["a"].dtype == torch.int64 and named["n", "b"].dtype == torch.int32
    assert isinstance(DoubleToFloat(), DTypeCastTransform)


def test_bounds_are_rounded_inwards():
    spec = Composite(action=Bounded(-0.1, 0.1, shape=(1,), dtype=torch.float64))
    cast = DTypeCastTransform(torch.float64, torch.float32, in_keys_inv=["action"]).transform_action_spec(spec)[
        "action"
    ]
    low, high = cast.low.double().item(), cast.high.double().item()
    assert -0.1 <= low <= -0.1 + 1e-8 and 0.1 - 1e-8 <= high <= 0.1


def test_data_move_as_a_whole_or_by_name():
    data = TensorDict(a=torch.zeros(2), next=TensorDict(a=torch.zeros(2)))
    moved = DeviceCastTransform("meta")(data.clone())
    assert moved["a"].device.type == moved["next", "a"].device.type == "meta"
    one = DeviceCastTransform("meta", in_keys=["a"], out_keys=["b"])(data.clone())
    assert one["b"].device.type == "meta" and one["a"].device.type == "cpu"
    spec = DeviceCastTransform("meta").transform_observation_spec(Composite(a=Unbounded(shape=(2,))))
    assert spec["a"].device.type == "meta"
    assert DeviceCastTransform("meta", "cpu").inv(TensorDict(a=torch.zeros(2), device="cpu")).device.type == "cpu"
    assert DeviceCastTransform("meta").orig_device.type == "cpu"
