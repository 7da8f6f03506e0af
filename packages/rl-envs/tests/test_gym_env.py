"""GymEnv and GymWrapper around single environments."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from rl_core import Categorical, TransformedEnv, check_env_specs, checked_mode
from rl_core.errors import EnvError, PolicyError, SpecError, UnknownNameError
from rl_envs import FiniteTensorDictCheck, GymEnv, GymWrapper

NESTED = spaces.Dict(
    a=spaces.Box(-9, 9, (3,)),
    b=spaces.Dict(c=spaces.Discrete(4), d=spaces.Tuple((spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(3)))),
    text=spaces.Text(9),
)
NESTED_ACTION = spaces.Dict(m=spaces.Discrete(2), f=spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)))))


class Script(gymnasium.Env):
    """Counts its steps; what it observes and rewards is given as functions of the count."""

    def __init__(self, observe, reward=float, space=None, action_space=None, length=4):
        self.observation_space = spaces.Box(-99, 99, (2,)) if space is None else space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.observe, self.gain, self.length = observe, reward, length
        self.seen = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.options = 0, options
        return self.observe(0), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.seen.append(action)
        self.count += 1
        return self.observe(self.count), self.gain(self.count), self.count >= self.length, False, {}


def numbers(count):
    return np.full(2, count, np.float32)


def nested(count):
    return {
        "a": np.full(3, count, np.float32),
        "b": {"c": count % 4, "d": (np.full(2, -count, np.float64), count % 3)},
        "text": f"t{count}",
    }


# -------------------------------------------------------------------- layout
def test_a_box_goes_under_observation_and_a_choice_is_one_hot():
    env = GymEnv("CartPole-v1")
    td = env.rand_step()
    assert td["observation"].shape == (4,) and td["observation"].dtype == torch.float32
    assert td["action"].shape == (2,) and td["action"].sum() == 1
    assert td["next", "reward"].shape == (1,) and td["next", "reward"].dtype == torch.float32
    assert set(env.done_keys) == {"done", "terminated", "truncated"}


def test_a_choice_is_a_number_where_asked_for():
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    assert env.action_spec == Categorical(2) and env.rand_step()["action"].shape == ()


def test_a_rollout_is_what_gymnasium_gives_for_the_same_seed_and_actions():
    env, raw = GymEnv("CartPole-v1"), gymnasium.make("CartPole-v1")
    torch.manual_seed(0)  # the actions
    env.set_seed(3)
    data = env.rollout(120, break_when_any_done=False)
    observation, _ = raw.reset(seed=3)
    for step in data:
        assert np.array_equal(step["observation"].numpy(), observation)
        observation, reward, terminated, truncated, _ = raw.step(int(step["action"].argmax()))
        assert np.array_equal(step["next", "observation"].numpy(), observation)
        assert step["next", "reward"].item() == reward
        assert step["next", "terminated"].item() == terminated and step["next", "truncated"].item() == truncated
        if terminated or truncated:
            observation, _ = raw.reset()
    assert data["next", "done"].sum() >= 2


def test_a_time_limit_truncates_and_does_not_terminate():
    data = GymEnv("Pendulum-v1", max_episode_steps=5).rollout(9)
    assert data["next", "truncated"].flatten().tolist() == [False] * 4 + [True]
    assert data["next", "done"].flatten().tolist() == [False] * 4 + [True]
    assert not data["next", "terminated"].any()


def test_nested_dicts_and_tuples_go_both_ways():
    script = Script(nested, space=NESTED, action_space=NESTED_ACTION)
    env = GymWrapper(script)
    check_env_specs(env)
    data = env.rollout(40, break_when_any_done=False)
    assert data["b", "d", "0"].dtype == torch.float64
    assert data["next", "a"][:5, 0].tolist() == [1, 2, 3, 4, 1]
    assert data["b", "c"].argmax(-1)[:5].tolist() == [0, 1, 2, 3, 0]
    assert data["next", "text"][:5] == ["t1", "t2", "t3", "t4", "t1"] and data["text"][:5] == [
        "t0",
        "t1",
        "t2",
        "t3",
        "t0",
    ]
    action = script.seen[-1]
    assert type(action["m"]) is int and isinstance(action["f"], tuple) and action["f"][0].dtype == np.float32
    assert action["m"] == data["action", "m"][-1].argmax()
    assert action["f"][1] == data["action", "f", "1"][-1].numpy()


def test_the_offset_of_a_choice_reaches_the_environment():
    for categorical in (False, True):
        script = Script(numbers, action_space=spaces.Discrete(19, start=2))
        env = GymWrapper(script, categorical)
        data = env.rollout(40, break_when_any_done=False)
        assert env.action_spec.is_in(data["action"])
        sent = data["action"] if categorical else data["action"].argmax(-1) + 2
        assert script.seen == sent.tolist() and min(script.seen) >= 2


def test_masked_joint_choices_have_the_structure_of_unequal_ones():
    for nvec in ([5, 5], [5, 4]):
        space = spaces.Dict(x=spaces.Box(-9, 9, (1,)), action_mask=spaces.MultiBinary(nvec))
        env = GymWrapper(
            Script(
                lambda count, n=nvec: {"x": np.ones(1, np.float32), "action_mask": np.ones(n, np.int8)},
                space=space,
                action_space=spaces.MultiDiscrete(nvec),
            ),
            categorical_action_encoding=True,
        )
        data = env.rollout(10, break_when_any_done=False)
        assert env.batch_size == () and data["action"].shape == (10, 2) and data["action_mask"].shape == (10, *nvec)


@pytest.mark.parametrize(
    "reward", [int, np.float32, np.float64, lambda n: np.array(n, np.float64), lambda n: np.array([n], np.float64)]
)
def test_any_kind_of_number_is_a_float32_reward(reward):
    env = GymWrapper(Script(numbers, reward))
    check_env_specs(env)
    rewards = env.rollout(9)["next", "reward"]
    assert rewards.dtype == torch.float32 and rewards.flatten().tolist() == [1, 2, 3, 4]


def test_observations_are_cast_to_the_dtype_of_their_space():
    wide = GymWrapper(Script(lambda n: np.full(2, n, np.float64)))
    assert wide.rollout(3)["next", "observation"].dtype == torch.float32
    image = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    pixels = GymWrapper(Script(lambda n: np.full((4, 4, 3), n, np.uint8), space=image)).rollout(3)
    assert pixels["observation"].dtype == torch.uint8 and pixels["observation"][2].unique().tolist() == [2]


def test_a_discrete_observation_follows_the_encoding_of_choices():
    space = spaces.Discrete(6, start=1)
    hot = GymWrapper(Script(lambda n: 1 + n, space=space)).rollout(9)
    assert hot["observation"].argmax(-1).tolist() == [0, 1, 2, 3]
    number = GymWrapper(Script(lambda n: 1 + n, space=space), categorical_action_encoding=True).rollout(9)
    assert number["observation"].tolist() == [1, 2, 3, 4]


def test_an_environment_that_reuses_its_arrays_is_copied_from():
    held = np.zeros(2, np.float32)

    def observe(count):
        held[:] = count
        return held

    data = GymWrapper(Script(observe)).rollout(9)
    assert data["observation"][:, 0].tolist() == [0, 1, 2, 3] and data["next", "observation"][:, 0].tolist() == [
        1,
        2,
        3,
        4,
    ]


def test_frame_skip_sums_rewards_and_stops_at_the_end():
    data = GymWrapper(Script(numbers, length=5), frame_skip=2).rollout(9)
    assert data["next", "reward"].flatten().tolist() == [1 + 2, 3 + 4, 5]
    assert data["next", "observation"][:, 0].tolist() == [2, 4, 5]


# -------------------------------------------------------------------- resets and seeds
def test_options_and_a_seed_of_a_reset_reach_the_simulator_once():
    script = Script(numbers)
    env = GymWrapper(script)
    env.reset(seed=4, options={"level": 2})
    assert script.options == {"level": 2} and script.np_random_seed == 4
    env.reset()
    assert script.options is None
    with pytest.raises(TypeError, match="seed= and options=, not difficulty"):
        env.reset(difficulty=3)


def test_the_seed_counts_for_the_next_reset_only():
    env, raw = GymEnv("CartPole-v1"), gymnasium.make("CartPole-v1")
    env.set_seed(11)
    for seed in (11, None, None):
        assert np.array_equal(env.reset()["observation"].numpy(), raw.reset(seed=seed)[0])


def test_the_state_follows_a_pickle():
    import pickle

    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    env.rollout(5)
    copy = pickle.loads(pickle.dumps(env))
    assert torch.equal(env.reset()["observation"], copy.reset()["observation"])


def test_attributes_of_the_simulator_are_reachable():
    env = GymEnv("CartPole-v1")
    assert env.gravity == 9.8 and env.unwrapped is env._env.unwrapped and env.spec.id == "CartPole-v1"
    with pytest.raises(AttributeError, match=r"no attribute|has an attribute 'nothing'"):
        env.nothing  # noqa: B018


# -------------------------------------------------------------------- errors
def test_an_unknown_id_is_answered_with_a_close_one():
    with pytest.raises(UnknownNameError, match=r"no environment 'CartPol-v1' \(did you mean 'CartPole-v1'\?\)"):
        GymEnv("CartPol-v1")
    with pytest.raises(UnknownNameError, match="CartPole-v77"):
        GymEnv("CartPole-v77", num_envs=2)
    with pytest.raises(UnknownNameError, match="module 'no_such_module'"):
        GymEnv("no_such_module:Env-v0")


def test_a_step_before_the_first_reset_and_after_the_end_say_what_to_do():
    env = GymWrapper(Script(numbers, length=1))
    action = env.rand_action(TensorDict(observation=torch.zeros(2)))
    with pytest.raises(EnvError, match=r"before its first reset.*env.reset"):
        env.step(action.clone())
    td = env.rand_step()
    with pytest.raises(EnvError, match=r"after its episode ended.*maybe_reset"):
        env.step(env.rand_action(env.step_mdp(td)))


@pytest.mark.parametrize(
    ("observe", "says"),
    [
        (lambda n: np.zeros(3, np.float32), r"'observation' of shape \(3,\); its space says \(2,\)"),
        (lambda n: np.zeros(1, np.float32), r"shape \(1,\)"),
        (lambda n: np.array(["a", "b"]), "dtype <U1"),
    ],
)
def test_an_observation_that_is_not_in_its_space_names_both_shapes(observe, says):
    with pytest.raises(EnvError, match=says):
        GymWrapper(Script(observe)).reset()


def test_a_first_step_is_looked_at_as_well():
    with pytest.raises(EnvError, match="'observation' of shape"):
        GymWrapper(Script(lambda n: np.zeros(2 + n, np.float32))).rollout(2)
    space = spaces.Dict(a=spaces.Box(-1, 1, (1,)), b=spaces.Box(-1, 1, (1,)))
    with pytest.raises(EnvError, match="without 'b'"):
        GymWrapper(Script(lambda n: {"a": np.zeros(1, np.float32)}, space=space)).reset()
    fractions = spaces.Box(0, 255, (2,), np.uint8)
    with pytest.raises(EnvError, match="float64, which cannot be kept as uint8"):
        GymWrapper(Script(lambda n: np.full(2, 0.5), space=fractions)).reset()


def test_a_vector_of_rewards_is_refused():
    with pytest.raises(EnvError, match=r"reward of shape \(2,\); one number"):
        GymWrapper(Script(numbers, lambda n: np.zeros(2))).rollout(2)


def test_an_observation_key_with_a_meaning_of_its_own_is_refused():
    space = spaces.Dict(reward=spaces.Box(-1, 1, (1,)))
    with pytest.raises(EnvError, match=r"'reward'.*reserved"):
        GymWrapper(Script(lambda n: {"reward": np.zeros(1, np.float32)}, space=space))


def test_a_missing_action_is_named():
    env = GymEnv("CartPole-v1")
    with pytest.raises(PolicyError, match="needs the action 'action'"):
        env.step(env.reset())


def test_an_action_outside_its_spec_is_refused_in_checked_mode():
    env = GymEnv("Pendulum-v1")
    td = env.reset().set("action", torch.tensor([7.0]))
    with checked_mode(), pytest.raises(SpecError, match=r"\[-2.0, 2.0\], found 7.0"):
        env.step(td)

    def policy(td):
        return td.set("action", torch.tensor([7.0]))

    with checked_mode(), pytest.raises(SpecError, match=r"found 7.0"):
        env.rollout(3, policy)


def test_a_nan_observation_is_named_by_the_check_transform():
    env = GymWrapper(Script(lambda n: np.full(2, np.nan if n == 3 else n, np.float32)))
    with pytest.raises(EnvError, match="'observation' is nan at step 2"):
        TransformedEnv(env, FiniteTensorDictCheck()).rollout(9)


def test_things_that_are_no_environments_are_refused():
    with pytest.raises(TypeError, match=r"gymnasium.Env or VectorEnv, got str"):
        GymWrapper("CartPole-v1")


def test_a_closed_environment_says_so():
    env = GymEnv("CartPole-v1")
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.reset()
