"""The installed distribution is a plugin as the core wants it, and its names lead to its objects."""

import pytest
from rl_gridworld.env import GridWorldEnv
from rl_gridworld.loss import ReinforceLoss

from rl_core import registry
from rl_core.errors import UnknownNameError
from rl_core.testing import PluginKit


class TestDistribution(PluginKit):
    dist = "rl-gridworld"


def test_the_environment_is_made_by_name():
    env = registry.envs.make("gridworld:8x8", batch_size=[2])
    assert isinstance(env, GridWorldEnv)
    assert (env.size, env.batch_size) == (8, (2,))


def test_every_id_is_described():
    described = [registry.envs.describe(f"gridworld:{id}") for id in registry.envs.ids("gridworld")]
    assert [facts["cells"] for facts in described] == [16, 64, 256]


def test_an_unknown_id_says_which_there_are():
    with pytest.raises(UnknownNameError, match="it has 4x4, 8x8, 16x16"):
        registry.envs.make("gridworld:5x5")


def test_the_loss_is_found_by_name():
    assert registry.losses.get("gridworld_reinforce") is ReinforceLoss
