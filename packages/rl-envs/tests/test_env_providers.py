"""The environments by name, and the package as a plugin."""

import subprocess
import sys

import pytest

from rl_core import registry
from rl_core.errors import UnknownNameError
from rl_core.testing import PluginKit


class TestPlugin(PluginKit):
    dist = "rl-envs"


def test_environments_are_made_by_name():
    env = registry.envs.make("gym:CartPole-v1", num_envs=2, max_episode_steps=7)
    assert env.batch_size == (2,) and env.rollout(20, break_when_any_done=False)["next", "truncated"].any()
    assert registry.envs.make("native:Pendulum").observation_keys[0] == "observation"


def test_ids_are_listed_and_described():
    assert "CartPole-v1" in registry.envs.ids("gym") and {"CartPole", "Pendulum"} <= set(registry.envs.ids("native"))
    facts = registry.envs.describe("gym:CartPole-v1")
    assert facts["max episode steps"] == 500 and "Discrete(2)" in facts["action space"]
    assert "pendulum" in registry.envs.describe("native:Pendulum").lower()


def test_unknown_ids_are_answered_with_close_ones():
    with pytest.raises(UnknownNameError, match="CartPole-v1"):
        registry.envs.make("gym:CartPol-v1")
    with pytest.raises(UnknownNameError, match="native:Pendulum"):
        registry.envs.make("native:Pendulm")
    with pytest.raises(UnknownNameError):
        registry.envs.describe("gym:CartPol-v1")


def test_without_gymnasium_the_pip_command_is_named_and_the_rest_works():
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "import rl_envs\n"
        "rl_envs.PendulumEnv, rl_envs.StepCounter\n"
        "from rl_core.errors import PluginNotInstalledError\n"
        "try:\n    rl_envs.GymEnv\n"
        "except PluginNotInstalledError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'rl-envs[gym]'" in said


def test_an_import_loads_neither_torch_nor_gymnasium():
    code = "import rl_envs, sys; print([name for name in ('torch', 'gymnasium', 'tensordict') if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
