"""Frames as observations."""

import gymnasium
import numpy as np
import pytest
import torch

from rl_core import check_env_specs
from rl_core.errors import EnvError
from rl_envs import GymEnv, GymWrapper


def test_pixels_replace_the_state():
    env = GymEnv("CartPole-v1", from_pixels=True)
    check_env_specs(env, seed=0)
    data = env.rollout(3)
    assert env.observation_keys == ["pixels"] and data["pixels"].shape == (3, 400, 600, 3)
    assert data["pixels"].dtype == torch.uint8 and data["pixels"].float().std() > 0


def test_pixels_are_the_frames_of_their_time():
    env = GymEnv("CartPole-v1", from_pixels=True, pixels_only=False)
    env.set_seed(1)
    data = env.rollout(4)
    raw = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    raw.reset(seed=1)
    for step in data:
        assert np.array_equal(step["pixels"].numpy(), raw.render())
        raw.step(int(step["action"].argmax()))
    assert np.array_equal(data["next", "pixels"][-1].numpy(), raw.render())
    assert data["observation"].shape == (4, 4)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_pixels_of_a_batch(mode):
    env = GymEnv("CartPole-v1", num_envs=2, from_pixels=True, vectorization_mode=mode)
    data = env.rollout(25, break_when_any_done=False)
    assert data["pixels"].shape == (2, 25, 400, 600, 3)
    assert torch.equal(data["next", "pixels"][0, 0], data["pixels"][0, 1])
    env.close()


def test_an_environment_without_frames_says_what_is_missing():
    with pytest.raises(EnvError, match=r"render_mode=None.*rgb_array"):
        GymWrapper(gymnasium.make("CartPole-v1"), from_pixels=True)


def test_last_frames_cannot_be_had_from_same_step():
    vector = gymnasium.make_vec(
        "CartPole-v1",
        2,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": "SameStep"},
        render_mode="rgb_array",
    )
    with pytest.raises(EnvError, match=r"SAME_STEP.*DISABLED"):
        GymWrapper(vector, from_pixels=True)


def test_a_frame_can_be_rendered_at_any_time():
    env = GymEnv("CartPole-v1", render_mode="rgb_array")
    env.reset()
    assert env.render().shape == (400, 600, 3)
