"""Vector environments of their own making: rows reset by mask, by a registered function, and by neither."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode

from rl_core import TransformedEnv, check_env_specs
from rl_core.errors import EnvError
from rl_core.testing import EnvKit
from rl_envs import GymEnv, GymWrapper, StepCounter, register_row_reset


def vector_cart_poles(num_envs=3, **kwargs):
    return GymEnv("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)


class TestVectorCartPoles(EnvKit):
    distribution = "rl-envs"

    def make_env(self):
        return vector_cart_poles(max_episode_steps=12)


def test_cart_poles_own_vector_class_spends_no_step_on_a_reset():
    env = vector_cart_poles(max_episode_steps=30)
    env.set_seed(1)
    torch.manual_seed(1)
    data = env.rollout(100, break_when_any_done=False)
    assert (data["next", "reward"] == 1).all()  # gymnasium rewards a dummy step with 0
    ends = data["next", "done"][..., 0]
    assert data["next", "terminated"].any() and data["next", "truncated"].any()
    starts = data["observation"][:, 1:][ends[:, :-1]]
    assert len(starts) > 6 and (starts.abs() <= 0.05).all()
    for row, end in zip(data, ends, strict=True):
        lengths = np.diff([0, *(np.flatnonzero(end.numpy()) + 1)])
        assert (
            lengths.max() <= 30
            and (row["observation"][1:][~end[:-1]] == row["next", "observation"][:-1][~end[:-1]]).all()
        )


def test_each_transition_of_the_vector_class_is_that_of_the_raw_simulator():
    env, raw = vector_cart_poles(), CartPoleVectorEnv(3)
    env.set_seed(4)
    data = env.rollout(60, break_when_any_done=False)
    raw.reset(seed=0)
    for step in data.unbind(1):  # from any state, in double precision as there
        raw.state = step["observation"].double().numpy().T
        raw.prev_done[:] = False
        following, _, terminated, _, _ = raw.step(step["action"].argmax(-1).numpy())
        assert np.allclose(step["next", "observation"].numpy(), following, atol=1e-6)
        assert step["next", "terminated"][:, 0].tolist() == terminated.tolist()


def test_rows_cut_by_a_transform_begin_anew():
    data = TransformedEnv(vector_cart_poles(), StepCounter(max_steps=4)).rollout(12, break_when_any_done=False)
    assert data["next", "step_count"][..., 0].tolist() == [[1, 2, 3, 4] * 3] * 3
    assert (data["observation"][:, [0, 4, 8]].abs() <= 0.05).all()


def test_pixels_of_a_vector_class_come_from_it():
    env = vector_cart_poles(2, from_pixels=True)
    data = env.rollout(3)
    assert data["pixels"].shape == (2, 3, 400, 600, 3)


# -------------------------------------------------------------------- classes of users
class Counters(gymnasium.vector.VectorEnv):
    """NEXT_STEP by the book, with one row of counts; lengths 2 and 3."""

    num_envs, metadata = 2, {"autoreset_mode": AutoresetMode.NEXT_STEP}
    single_observation_space, single_action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)
    observation_space, action_space = spaces.Box(-9, 9, (2, 1)), spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed=None, options=None):
        self.count, self.over = np.zeros((2, 1), np.float32), np.zeros(2, bool)
        return self.count.copy(), {}

    def step(self, actions):
        self.count += 1
        self.count[self.over] = 0
        self.over = (self.count[:, 0] >= [2, 3]) & ~self.over
        return self.count.copy(), np.ones(2), self.over.copy(), np.zeros(2, bool), {}


def begin(env, mask, seed, options):
    env.count[mask], env.over[mask] = 0, False
    return env.count.copy(), {}


def test_a_registered_function_makes_transitions_clean():
    with pytest.raises(EnvError, match=r"NEXT_STEP.*register_row_reset\(Counters"):
        GymWrapper(Counters())

    class Known(Counters):
        pass

    register_row_reset(Known, begin)
    env = GymWrapper(Known())
    check_env_specs(env)
    data = env.rollout(7, break_when_any_done=False)
    assert data["observation"][..., 0].tolist() == [[0, 1, 0, 1, 0, 1, 0], [0, 1, 2, 0, 1, 2, 0]]
    assert data["next", "observation"][..., 0].tolist() == [[1, 2, 1, 2, 1, 2, 1], [1, 2, 3, 1, 2, 3, 1]]
    with pytest.raises(EnvError, match="NEXT_STEP"):  # a wrapper would not hear of the reset
        GymWrapper(gymnasium.vector.VectorObservationWrapper(Known()))


# -------------------------------------------------------------------- Atari's
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_ataris_vector_class_gives_the_same_clean_transitions_in_both_modes(mode):
    env = GymEnv(
        "ALE/Breakout-v5",
        num_envs=2,
        vectorization_mode="vector_entry_point",
        autoreset_mode=mode,
        max_num_frames_per_episode=40,
        noop_max=1,
        img_height=20,
        img_width=20,
    )
    env.set_info_dict_reader(["lives", "episode_frame_number"])
    check_env_specs(env, seed=0)
    data = env.rollout(25, break_when_any_done=False)
    assert data["next", "observation"].shape == (2, 25, 4, 20, 20) and data["next", "truncated"].sum() == 4
    frames = data["next", "episode_frame_number"][0]
    ends = data["next", "done"][0, :, 0]
    if mode == "NextStep":
        assert (frames[ends] >= 40).all() and (data["next", "lives"][0][ends] == 5).all()
    else:  # the infos of last steps are not told
        assert not data["next", "lives_present"][0][ends].any()
    assert (data["episode_frame_number"][0, 1:][ends[:-1]] == data["episode_frame_number"][0, 0]).all()
    env.close()


def test_both_modes_of_ataris_vector_class_agree():
    def rollout(mode):
        env = GymEnv("ALE/Pong-v5", num_envs=2, vectorization_mode="vector_entry_point", autoreset_mode=mode,
                     max_num_frames_per_episode=60, noop_max=1, img_height=20, img_width=20)  # fmt: skip
        env.set_seed(3)
        torch.manual_seed(0)
        return env.rollout(40, break_when_any_done=False)

    first, second = rollout("NextStep"), rollout("SameStep")
    upto = int(first["next", "done"][0, :, 0].nonzero()[0]) + 1
    for key in ("observation", ("next", "observation"), ("next", "reward"), ("next", "truncated")):
        assert torch.equal(first[key][:, :upto], second[key][:, :upto]), key
