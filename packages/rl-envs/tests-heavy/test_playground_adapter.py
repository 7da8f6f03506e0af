"""MuJoCo Playground step by step against itself: one environment, for compiling MJX takes a minute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from mujoco_playground import registry as playground

from rl_core import check_env_specs, registry
from rl_core.errors import UnknownNameError
from rl_envs.jax_envs.playground import MujocoPlaygroundEnv

JAX = {"impl": "jax", "sim_dt": 0.01}  # MJX's own physics compiles sooner than Warp's


@pytest.fixture(scope="module")
def carts():
    return MujocoPlaygroundEnv("CartpoleBalance", num_envs=2, episode_length=4, config_overrides=JAX)


def test_every_transition_is_playgrounds(carts):
    carts.set_seed(3)
    torch.manual_seed(0)
    data = carts.rollout(6, break_when_any_done=False)
    raw = playground.load("CartpoleBalance", config_overrides=JAX)
    begin, step = jax.jit(jax.vmap(raw.reset)), jax.jit(jax.vmap(raw.step))
    key = jax.random.PRNGKey(3)
    for t in range(6):
        if t % 4 == 0:
            key, drawn = jax.random.split(key)
            state = begin(jax.random.split(drawn, 2))
        assert np.allclose(data["observation"][:, t].numpy(), np.asarray(state.obs), atol=1e-4)
        state = step(state, jnp.asarray(data["action"][:, t].numpy()))
        assert np.allclose(data["next", "observation"][:, t].numpy(), np.asarray(state.obs), atol=1e-4)
        assert np.allclose(data["next", "reward"][:, t, 0].numpy(), np.asarray(state.reward), atol=1e-4)
    assert data["next", "truncated"][0, :, 0].tolist() == [False, False, False, True, False, False]
    assert not data["next", "terminated"].any() and (data["next", "reward"] > 0).all()


def test_specs_and_memory(carts):
    check_env_specs(carts, seed=0)
    assert carts.action_spec.shape == (2, 1) and carts.observation_spec["observation"].shape == (2, 5)
    assert carts.name == "CartpoleBalance" and carts.batch_size == (2,)


def test_lengths_and_repeats_are_those_of_the_configuration():
    config = playground.get_default_config("CartpoleBalance")
    env = MujocoPlaygroundEnv("CartpoleBalance", config_overrides={**JAX, "action_repeat": 2})
    assert env.episode_length == config.episode_length == 1000 and env.frame_skip == 2


def test_names_and_errors():
    assert "CheetahRun" in registry.envs.ids("mujoco_playground")
    made = registry.envs.make("mujoco_playground:PendulumSwingup", config_overrides={"impl": "jax"})
    assert made.name == "PendulumSwingup" and made.batch_size == ()
    with pytest.raises(UnknownNameError, match="CartpoleBalance"):
        MujocoPlaygroundEnv("CartpolBalance")
