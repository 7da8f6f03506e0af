"""The policies that are built from a group's specs act in real environments."""

import pytest
import torch

from rl_core import registry
from rl_marl import VmasEnv, build_group_actor, build_group_critic


@pytest.mark.parametrize("share_params", [True, False])
def test_continuous_agents_act_within_their_bounds(share_params):
    env = VmasEnv("navigation", num_envs=4, seed=0)
    actor = build_group_actor(env, "agents", num_cells=(8,), share_params=share_params)
    data = env.rollout(3, actor, break_when_any_done=False)
    assert data["agents", "action"].shape == (4, 3, 4, 2)
    assert data["agents", "action_log_prob"].shape == (4, 3, 4)
    assert env.full_action_spec["agents", "action"].is_in(data["agents", "action"][:, 0])
    values = build_group_critic(env, "agents", num_cells=(8,))(data)["agents", "state_value"]
    assert values.shape == (4, 3, 4, 1)


def test_choosing_agents_act_and_the_registry_offers_the_builders():
    env = VmasEnv("navigation", num_envs=2, continuous_actions=False, seed=0)
    actor = registry.modules.get("build_group_actor")(env, "agents", num_cells=(8,))
    data = env.rollout(2, actor, break_when_any_done=False)
    assert env.full_action_spec["agents", "action"].is_in(data["agents", "action"][:, 0])
    assert torch.isfinite(data["agents", "action_log_prob"]).all()
