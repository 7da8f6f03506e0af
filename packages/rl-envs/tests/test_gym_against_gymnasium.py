"""Transitions of every kind of environment, step by step, against loops written by hand in gymnasium."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule

from rl_core import TransformedEnv, check_env_specs, spawn_seeds
from rl_core.errors import EnvError, PolicyError
from rl_envs import GymEnv, GymWrapper, InitTracker, RewardSum, StepCounter

STEPS, LIMIT = 210, 30


class Odd(gymnasium.Env):
    """Rewards of one of the types that environments give; observes float64 under a float32 space."""

    observation_space = spaces.Box(-99, 99, (2,), np.float32)
    action_space = spaces.Discrete(3, start=2)
    kinds = {
        "int": int,
        "float32": np.float32,
        "0-d": lambda n: np.array(float(n)),
        "(1,)": lambda n: np.array([n / 1]),
    }

    def __init__(self, kind="int"):
        self.kind = self.kinds[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.options = 0, options
        return np.zeros(2), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        return np.full(2, self.count / 3), self.kind(self.count), False, self.count == 4, {}


class Nest(gymnasium.Env):
    """A Dict in a Dict and a Tuple, with a text; its values are its count."""

    observation_space = spaces.Dict(
        a=spaces.Box(-99, 99, (3,)),
        b=spaces.Dict(c=spaces.Discrete(4), d=spaces.Tuple((spaces.Box(-99, 99, (2,)), spaces.Discrete(3)))),
        text=spaces.Text(9),
    )
    action_space = spaces.Dict(m=spaces.Discrete(2), f=spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (1,)))))

    def __init__(self, length=7):
        self.length, self.seen = length, []

    def observe(self):
        n = self.count
        return {
            "a": np.full(3, n, np.float32),
            "b": {"c": n % 4, "d": (np.full(2, -n, np.float32), n % 3)},
            "text": f"t{n}",
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action) and type(action["m"]) is int and type(action["f"]) is tuple
        self.seen.append(action)
        self.count += 1
        return self.observe(), 1.0, self.count == self.length, False, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("RlOdd-v0", entry_point=Odd)
    gymnasium.register("RlNest-v0", entry_point=Nest)
    yield
    for name in ("RlOdd-v0", "RlNest-v0"):
        gymnasium.registry.pop(name)


def by_hand(name, seed, actions, categorical):
    """(observation, next observation, reward, terminated, truncated) of every step of one environment."""
    env = gymnasium.make(name, max_episode_steps=LIMIT)
    observation, _ = env.reset(seed=seed)
    for action in actions:
        native = int(action.argmax()) if categorical else action.numpy()
        following, reward, terminated, truncated, _ = env.step(native)
        yield observation, following, reward, terminated, truncated
        observation = env.reset()[0] if terminated or truncated else following
    env.close()


def made(name, mode):
    if mode == "serial":
        return GymEnv(name, num_envs=3, max_episode_steps=LIMIT)
    makers = [lambda: gymnasium.make(name, max_episode_steps=LIMIT, disable_env_checker=True)] * 3
    return GymWrapper(SyncVectorEnv(makers, autoreset_mode=mode))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("mode", ["serial", *AutoresetMode], ids=str)
def test_every_transition_of_a_batch_is_that_of_a_loop_by_hand(name, mode):
    env = made(name, mode)
    torch.manual_seed(1)
    env.set_seed(5)
    data = env.rollout(STEPS, break_when_any_done=False)
    assert data.shape == (3, STEPS) and env.action_spec.is_in(data["action"])
    ends = 0
    for row, seed in zip(data, spawn_seeds(5, 3), strict=True):
        loop = by_hand(name, seed, row["action"], categorical=name == "CartPole-v1")
        for t, (observation, following, reward, terminated, truncated) in enumerate(loop):
            now, after = row["observation"][t], row["next", "observation"][t]
            assert np.array_equal(now.numpy(), observation) and np.array_equal(after.numpy(), following)
            assert row["next", "reward"][t].item() == np.float32(reward)
            assert row["next", "terminated"][t].item() == terminated
            assert row["next", "truncated"][t].item() == truncated
            assert row["next", "done"][t].item() == (terminated or truncated)
            if (terminated or truncated) and t + 1 < STEPS:
                ends += 1
                assert not torch.equal(after, row["observation"][t + 1])  # the true last observation, not the reset one
    assert ends >= 3 * (STEPS // LIMIT - 1)
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "RlOdd-v0", "RlNest-v0"])
@pytest.mark.parametrize("num_envs", [0, 3])
@pytest.mark.parametrize("categorical", [False, True])
def test_specs_hold(name, num_envs, categorical):
    check_env_specs(GymEnv(name, categorical, num_envs=num_envs), seed=0)


@pytest.mark.parametrize("num_envs", [0, 3])
def test_rollouts_on_columns_are_those_on_tensordicts(num_envs):
    torch.manual_seed(0)
    policy = TensorDictModule(
        torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Tanh()), in_keys=["observation"], out_keys=["action"]
    )

    def make():
        env = TransformedEnv(GymEnv("Pendulum-v1", num_envs=num_envs, max_episode_steps=9), StepCounter(max_steps=7))
        env = env.append_transform(RewardSum()).append_transform(InitTracker())
        env.set_seed(4)
        return env

    with torch.no_grad():
        data = make().rollout(40, policy, break_when_any_done=False)
        env = make()
        td = env.reset()
        for t in range(40):
            stepped, td = env.step_and_maybe_reset(policy(td))
            expected = data[..., t]
            assert set(stepped.keys(True, True)) == set(expected.keys(True, True))
            for key in expected.keys(True, True):
                assert torch.equal(stepped[key], expected[key]), key


# -------------------------------------------------------------------- seeds and resets
@pytest.mark.parametrize("mode", ["single", "serial", *AutoresetMode], ids=str)
def test_a_seed_or_torchs_seed_alone_reproduces_a_run(mode):
    def run(seed, root):
        env = GymEnv("CartPole-v1") if mode == "single" else made("CartPole-v1", mode)
        torch.manual_seed(root)
        if seed is not None:
            env.set_seed(seed)
        return env.rollout(60, break_when_any_done=False)["next", "observation"]

    assert torch.equal(run(None, 3), run(None, 3)) and not torch.equal(run(None, 3), run(None, 4))
    assert torch.equal(run(2, 3), run(2, 3)) and not torch.equal(run(2, 3), run(1, 3))


@pytest.mark.parametrize("mode", ["serial", *AutoresetMode], ids=str)
def test_one_row_of_three_is_reset_in_the_middle_and_the_others_go_on(mode):
    env, twin = made("CartPole-v1", mode), made("CartPole-v1", mode)
    for each in (env, twin):
        each.set_seed(0)
    first = [each.reset() for each in (env, twin)]
    actions = [torch.eye(2, dtype=torch.int64)[torch.tensor([0, 1, t % 2])] for t in range(8)]
    for action in actions[:4]:
        first = [
            each.step_mdp(each.step(td.set("action", action))) for each, td in zip((env, twin), first, strict=True)
        ]
    td, other = first
    td.set("_reset", torch.tensor([[False], [True], [False]]))
    before = td["observation"].clone()
    td = env.reset(td)
    assert "_reset" not in td
    assert torch.equal(td["observation"][[0, 2]], before[[0, 2]]) and (td["observation"][1].abs() <= 0.05).all()
    for action in actions[4:]:
        td, other = env.step(td.set("action", action)), twin.step(other.set("action", action))
        assert torch.equal(td["next", "observation"][[0, 2]], other["next", "observation"][[0, 2]])
        assert not torch.equal(td["next", "observation"][1], other["next", "observation"][1])
        td, other = env.step_mdp(td), twin.step_mdp(other)


@pytest.mark.parametrize("mode", ["serial", *AutoresetMode], ids=str)
def test_seeds_and_options_of_a_reset_reach_every_row_once(mode):
    env = made("RlOdd-v0", mode)
    env.reset(seed=[7, 8, 9], options={"level": 2})
    inner = [single.unwrapped for single in env._env.envs]
    assert [single.np_random_seed for single in inner] == [7, 8, 9]
    assert all(single.options["level"] == 2 for single in inner)
    env.reset()
    assert not any(single.options for single in inner)


def test_a_batch_survives_a_pickle():
    import pickle

    env = GymEnv("CartPole-v1", num_envs=2)
    env.set_seed(0)
    env.rollout(3)
    copy = pickle.loads(pickle.dumps(env))
    assert torch.equal(env.reset()["observation"], copy.reset()["observation"])


def test_a_batch_can_be_told_its_device_and_is_closed_once():
    env = GymEnv("CartPole-v1", num_envs=2, device="cpu")
    assert env.reset().device == env.rand_step()["next"].device == env.action_spec.device == torch.device("cpu")
    env.close()
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.reset()


# -------------------------------------------------------------------- kinds of values
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *((mode, kind) for mode in ("single", "serial") for kind in Odd.kinds),
        # gymnasium's SyncVectorEnv refuses rewards of shape (1,) itself
        *((mode, kind) for mode in AutoresetMode for kind in Odd.kinds if kind != "(1,)"),
    ],
    ids=str,
)
def test_odd_numbers_are_cast_in_every_mode(mode, kind):
    if mode == "single":
        env = GymEnv("RlOdd-v0", kind=kind)
    elif mode == "serial":
        env = GymEnv("RlOdd-v0", num_envs=2, kind=kind)
    else:
        env = GymWrapper(SyncVectorEnv([lambda: Odd(kind)] * 2, autoreset_mode=mode))
    data = env.rollout(9, break_when_any_done=False)
    assert data["next", "reward"].dtype == torch.float32 and data["observation"].dtype == torch.float32
    rewards = data["next", "reward"].reshape(-1, 9)
    assert rewards.tolist() == [[1, 2, 3, 4, 1, 2, 3, 4, 1]] * len(rewards)
    assert data["next", "truncated"].reshape(-1, 9)[0].tolist() == [False, False, False, True] * 2 + [False]
    last = data["next", "observation"].reshape(-1, 9, 2)[0, :5, 0]
    assert torch.equal(last, torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0], dtype=torch.float64).div(3).float())


@pytest.mark.parametrize("num_envs", [0, 3])
def test_nested_spaces_and_texts_come_through_forty_steps(num_envs):
    env = GymEnv("RlNest-v0", num_envs=num_envs)
    data = env.rollout(40, break_when_any_done=False)
    rows = data.reshape(1, 40) if not num_envs else data
    for number, row in enumerate(rows):
        inner = env.unwrapped if not num_envs else env._env.envs[number].unwrapped
        for t in range(40):
            now, after = t % 7, t % 7 + 1
            assert row["a"][t].tolist() == [now] * 3 and row["next", "a"][t].tolist() == [after] * 3
            assert row["b", "c"][t].argmax() == now % 4 and row["next", "b", "c"][t].argmax() == after % 4
            assert row["next", "b", "d", "0"][t].tolist() == [-after] * 2
            assert row["next", "b", "d", "1"][t].argmax() == after % 3
            assert row[t]["text"] == f"t{now}" and row[t]["next", "text"] == f"t{after}"
            sent = inner.seen[t]
            assert sent["m"] == row["action", "m"][t].argmax()
            assert (
                sent["f"][0] == row["action", "f", "0"][t].numpy()
                and sent["f"][1] == row["action", "f", "1"][t].numpy()
            )


@pytest.mark.parametrize("nvec", [[5, 5], [5, 4]])
def test_masked_joint_choices_are_never_taken(nvec):
    """The environment raises at a masked pair; its mask moves with every step."""

    class Masked(gymnasium.Env):
        observation_space = spaces.Dict(x=spaces.Box(0, 1, (1,)), action_mask=spaces.MultiBinary(nvec))
        action_space = spaces.MultiDiscrete(nvec)

        def observe(self):
            self.mask = (self.np_random.random(nvec) < 0.3).astype(np.int8)
            self.mask[0, 0] = 1
            return {"x": np.zeros(1, np.float32), "action_mask": self.mask}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observe(), {}

        def step(self, action):
            assert self.mask[tuple(action)], "a masked pair was taken"
            return self.observe(), 0.0, False, False, {}

    env = GymWrapper(Masked(), categorical_action_encoding=True)
    spec = env.action_spec.clone()

    def policy(td):
        spec.update_mask(td["action_mask"].bool())
        return td.set("action", spec.rand())

    data = env.rollout(30, policy)
    assert env.batch_size == () and data["action"].shape == (30, 2) and data["action_mask"].shape == (30, *nvec)


def test_an_index_is_not_taken_for_a_one_hot_action():
    env = GymEnv("CartPole-v1")
    for index in (0, 1):
        with pytest.raises(PolicyError, match="shape"):
            env.step(env.reset().set("action", torch.tensor(index)))
