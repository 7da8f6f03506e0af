"""dm_control's tasks, step by step against the suite itself."""

import importlib
import sys

import dm_env
import numpy as np
import pytest
import torch
from dm_control import suite

from rl_core import Categorical, OneHot, Unbounded, check_env_specs, registry
from rl_core.errors import EnvError, PluginNotInstalledError, UnknownNameError
from rl_core.testing import EnvKit
from rl_envs import DMControlEnv, DMControlWrapper

SHORT = {"time_limit": 0.1}  # 10 steps of cheetah and cartpole


class TestCheetah(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return DMControlEnv("cheetah", "run", task_kwargs=SHORT)


class TestCartPoleInSinglePrecision(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return DMControlEnv("cartpole", "balance", task_kwargs=SHORT, dtype=torch.float32, frame_skip=3)


@pytest.mark.parametrize(("domain", "task"), [("cheetah", "run"), ("humanoid", "stand"), ("reacher", "easy")])
def test_every_transition_is_the_suites(domain, task):
    env = DMControlEnv(domain, task, task_kwargs={"time_limit": 0.2})
    env.set_seed(7)
    torch.manual_seed(0)
    data = env.rollout(45, break_when_any_done=False)
    raw = suite.load(domain, task, {"random": 7, "time_limit": 0.2})
    now = raw.reset()
    ends = 0
    for step in data:
        same(step, now.observation)
        now = raw.step(step["action"].numpy())
        same(step["next"], now.observation)
        assert step["next", "reward"].item() == np.float32(now.reward)
        assert step["next", "done"].item() == now.last() and not step["next", "terminated"].item()
        if now.last():
            ends += 1
            now = raw.reset()
    assert ends >= 2


def same(found, observation):
    for key, value in observation.items():
        assert found[key].dtype == torch.float64 and np.array_equal(found[key].numpy(), value), key


def test_frame_skip_sums_rewards_and_stops_at_the_end():
    env = DMControlEnv("cheetah", "run", task_kwargs=SHORT, frame_skip=4)
    env.set_seed(1)
    data = env.rollout(9)
    raw = suite.load("cheetah", "run", {"random": 1, **SHORT})
    raw.reset()
    assert data.shape == (3,) and data["next", "truncated"][-1]
    for step, frames in zip(data, (4, 4, 2), strict=True):
        gains = [raw.step(step["action"].numpy()).reward for _ in range(frames)]
        assert step["next", "reward"].item() == pytest.approx(sum(gains), abs=1e-6)


def test_single_precision_is_a_matter_of_one_argument():
    env = DMControlEnv("humanoid", "stand", dtype=torch.float32)
    data = env.rollout(3)
    assert {data[key].dtype for key in (*env.observation_keys, "action", ("next", "reward"))} == {torch.float32}
    assert data["head_height"].shape == (3,)


def test_actions_of_a_single_precision_policy_are_taken():
    env = DMControlEnv("cheetah", "run")
    td = env.reset().set("action", torch.zeros(6, dtype=torch.float64))
    assert env.step(td)["next", "position"].dtype == torch.float64
    data = env.rollout(3, lambda td: td.set("action", td["position"][..., :6].float().clamp(-1, 1)))
    assert data["action"].shape == (3, 6)


# -------------------------------------------------------------------- pixels
@pytest.mark.parametrize("pixels_only", [True, False])
def test_pixels_are_the_frames_of_their_time(pixels_only):
    size = {"height": 12, "width": 16}
    env = DMControlEnv(
        "cartpole", "balance", from_pixels=True, pixels_only=pixels_only, camera_id="fixed", render_kwargs=size
    )
    env.set_seed(2)
    data = env.rollout(2)
    raw = suite.load("cartpole", "balance", {"random": 2})
    raw.reset()
    for step in data:
        assert np.array_equal(step["pixels"].numpy(), raw.physics.render(camera_id="fixed", **size))
        raw.step(step["action"].numpy())
    assert np.array_equal(data["next", "pixels"][-1].numpy(), raw.physics.render(camera_id="fixed", **size))
    assert data["pixels"].shape == (2, 12, 16, 3) and data["pixels"].dtype == torch.uint8
    assert ("position" in data) is not pixels_only


# -------------------------------------------------------------------- other dm_env environments
class Walk(dm_env.Environment):
    """Counts to ``length``; a termination (discount 0), or a truncation."""

    def __init__(self, length=3, discount=0.0, wrong=False):
        self.length, self.discount, self.wrong, self.seen = length, discount, wrong, []

    def observation_spec(self):
        specs = dm_env.specs
        return {
            "x": specs.Array((2,), np.float32),
            "deep": {"n": specs.DiscreteArray(10), "b": specs.Array((), bool)},
            "text": specs.StringArray(()),
        }

    def action_spec(self):
        return {"m": dm_env.specs.DiscreteArray(3), "f": dm_env.specs.BoundedArray((1,), np.float64, -1.0, 1.0)}

    def observe(self):
        n = self.count
        x = np.full(3 if self.wrong else 2, n, np.float32)
        return {"x": x, "deep": {"n": n, "b": n > 1}, "text": f"t{n}"}

    def reset(self):
        self.count = 0
        return dm_env.restart(self.observe())

    def step(self, action):
        self.seen.append(action)
        self.count += 1
        if self.count < self.length:
            return dm_env.transition(float(self.count), self.observe())
        return dm_env.TimeStep(dm_env.StepType.LAST, float(self.count), self.discount, self.observe())


@pytest.mark.parametrize("categorical", [False, True])
def test_nested_observations_and_actions_go_both_ways(categorical):
    walk = Walk()
    env = DMControlWrapper(walk, categorical_action_encoding=categorical)
    assert env.full_action_spec["action", "m"] == (Categorical(3) if categorical else OneHot(3, dtype=torch.int64))
    assert env.observation_spec["x"] == Unbounded(shape=(2,), dtype=torch.float32)
    check_env_specs(env)
    walk.seen.clear()
    data = env.rollout(7, break_when_any_done=False)
    number = data["next", "deep", "n"] if categorical else data["next", "deep", "n"].argmax(-1)
    assert number.tolist() == [1, 2, 3, 1, 2, 3, 1] and data["next", "deep", "b"].tolist()[:3] == [False, True, True]
    assert data["next", "text"][:4] == ["t1", "t2", "t3", "t1"]
    chosen = data["action", "m"] if categorical else data["action", "m"].argmax(-1)
    assert [int(action["m"]) for action in walk.seen] == chosen.tolist()
    assert walk.seen[-1]["f"].dtype == np.float64 and walk.seen[-1]["f"] == data["action", "f"][-1].numpy()


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_a_discount_of_zero_terminates_and_any_other_end_truncates(discount):
    data = DMControlWrapper(Walk(discount=discount)).rollout(5)
    assert data["next", "terminated"].flatten().tolist() == [False, False, discount == 0]
    assert data["next", "truncated"].flatten().tolist() == [False, False, discount != 0]
    assert data["next", "done"].flatten().tolist() == [False, False, True]


def test_seeds_of_other_environments_need_a_function():
    env = DMControlWrapper(Walk())
    with pytest.raises(EnvError, match="seed_with"):
        env.set_seed(1)
    told = []
    env = DMControlWrapper(Walk(), seed_with=told.append)
    env.reset(seed=[9])
    env.reset()
    assert told == [9]
    with pytest.raises(TypeError, match="takes seed=, not level"):
        env.reset(level=3)


# -------------------------------------------------------------------- names and errors
def test_tasks_are_made_by_name():
    env = registry.envs.make("dm_control:ball_in_cup-catch", frame_skip=2)
    assert env.name == "ball_in_cup-catch" and env.physics.model.nu == 2
    assert "cheetah-run" in registry.envs.ids("dm_control")
    assert registry.envs.describe("dm_control:cheetah-run")["seconds per step"] == 0.01
    with pytest.raises(UnknownNameError, match="cheetah-run"):
        registry.envs.make("dm_control:cheeta-run")


def test_what_cannot_work_says_why():
    with pytest.raises(TypeError, match=r"dm_env.Environment, got str"):
        DMControlWrapper("cheetah")
    with pytest.raises(ValueError, match="frame_skip"):
        DMControlWrapper(Walk(), frame_skip=0)
    with pytest.raises(EnvError, match=r"'x' of shape \(3,\); its spec says \(2,\)"):
        DMControlWrapper(Walk(wrong=True)).reset()
    env = DMControlWrapper(Walk(length=1))
    with pytest.raises(EnvError, match="before its first reset"):
        env.step(env.rand_action())
    td = env.rand_step()
    with pytest.raises(EnvError, match=r"after its episode ended.*maybe_reset"):
        env.step(env.rand_action(env.step_mdp(td)))


def test_an_absent_library_is_answered_with_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    monkeypatch.delitem(sys.modules, "rl_envs.dm_control.library")
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-envs\[dm_control\]'"):
        importlib.import_module("rl_envs.dm_control.library")
