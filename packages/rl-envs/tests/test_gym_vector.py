"""Vector environments: one batch, three autoreset modes, one kind of transition."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rl_core import TransformedEnv, check_env_specs
from rl_core.errors import EnvError
from rl_envs import GymEnv, GymWrapper, StepCounter
from rl_envs.gym.vector import lost_value

MODES = list(AutoresetMode)


class Countdown(gymnasium.Env):
    """Observes its count in a nested Dict with a text, and ends after ``length`` steps."""

    observation_space = spaces.Dict(
        x=spaces.Box(-99, 99, (1,)),
        deep=spaces.Dict(t=spaces.Tuple((spaces.Discrete(50), spaces.Box(0, 9, (2,), np.float64)))),
        text=spaces.Text(9),
    )
    action_space = spaces.Dict(
        m=spaces.Discrete(3, start=1), f=spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.MultiBinary(2)))
    )

    def __init__(self, length):
        self.length, self.episode = length, -1

    def observe(self):
        x = np.array([self.count + 10 * self.episode], np.float32)
        return {
            "x": x,
            "deep": {"t": (self.count, np.full(2, self.count, np.float64))},
            "text": f"e{self.episode}s{self.count}",
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.episode = 0, self.episode + 1
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        return self.observe(), float(action["m"]), self.count >= self.length, False, {"count": self.count}


def countdowns(mode, kind=SyncVectorEnv, **kwargs):
    return kind([lambda n=n: Countdown(n) for n in (2, 3, 5)], autoreset_mode=mode, **kwargs)


def trajectory(env, steps=70, seed=3):
    torch.manual_seed(0)
    env.set_seed(seed)
    data = env.rollout(steps, break_when_any_done=False)
    env.close()
    return data


def same(found, expected):
    for key in expected.keys(True, True):
        ours, theirs = found.get(key), expected.get(key)
        if isinstance(theirs, torch.Tensor):
            assert torch.equal(ours, theirs), key
        else:
            assert ours.tolist() == theirs.tolist(), key


# -------------------------------------------------------------------- the three modes
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_all_autoreset_modes_give_the_transitions_of_single_environments(mode, kind):
    expected = trajectory(GymEnv("CartPole-v1", num_envs=3, max_episode_steps=17))
    vector = gymnasium.make_vec(
        "CartPole-v1", 3, vectorization_mode=kind, vector_kwargs={"autoreset_mode": mode}, max_episode_steps=17
    )
    found = trajectory(GymWrapper(vector))
    assert found["next", "truncated"].any() and found["next", "terminated"].any()
    same(found, expected)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *((mode, SyncVectorEnv) for mode in MODES),
        *((mode, AsyncVectorEnv) for mode in MODES if mode.name != "NEXT_STEP"),
    ],
)
def test_nested_spaces_and_texts_survive_every_mode(mode, kind):
    env = GymWrapper(countdowns(mode, kind, **({"shared_memory": False} if kind is AsyncVectorEnv else {})))
    data = trajectory(env, 12)
    assert data["x"][0].flatten().tolist()[:5] == [0, 1, 10, 11, 20]
    assert data["next", "x"][0].flatten().tolist()[:5] == [1, 2, 11, 12, 21]
    assert data["next", "deep", "t", "0"].argmax(-1)[1].tolist()[:4] == [1, 2, 3, 1]
    assert data["next", "text"][2][:6] == ["e0s1", "e0s2", "e0s3", "e0s4", "e0s5", "e1s1"]
    assert torch.equal(data["next", "reward"].squeeze(-1), data["action", "m"].argmax(-1) + 1.0)


@pytest.mark.parametrize("mode", MODES)
def test_the_tensordict_interface_is_the_same_as_the_rollout(mode):
    rollout = trajectory(GymWrapper(countdowns(mode)), 12)
    env = GymWrapper(countdowns(mode))
    env.set_seed(3)
    td = env.reset()
    for t in range(12):
        td.set("action", rollout["action"][:, t].clone())
        stepped, td = env.step_and_maybe_reset(td)
        same(stepped, rollout[:, t])


@pytest.mark.parametrize("mode", MODES)
def test_rows_cut_by_a_transform_begin_anew_in_every_mode(mode):
    found = trajectory(TransformedEnv(GymWrapper(countdowns(mode)), StepCounter(max_steps=2)), 8)
    assert found["next", "x"][2].flatten().tolist() == [1, 2, 11, 12, 21, 22, 31, 32]
    assert found["next", "truncated"][2].flatten().tolist() == [False, True] * 4


@pytest.mark.parametrize("mode", MODES)
def test_a_full_reset_in_the_middle_begins_every_row(mode):
    env = GymWrapper(countdowns(mode))
    env.rollout(2, break_when_any_done=False)
    assert (env.reset()["deep", "t", "0"].argmax(-1) == 0).all()


@pytest.mark.parametrize("make", [lambda m: GymWrapper(countdowns(m)), lambda m: GymEnv("CartPole-v1", num_envs=3)])
@pytest.mark.parametrize("mode", MODES)
def test_rows_that_are_stepped_past_their_end_keep_their_last_values(make, mode):
    env = make(mode)
    env.set_seed(0)
    td = env.reset()
    for _ in range(200):
        td = env.step(env.rand_action(td))
        if td["next", "done"].any():
            break
        td = env.step_mdp(td)
    over = td["next", "done"].squeeze(-1)
    key = "x" if td.get("observation", None) is None else "observation"
    last = td["next", key][over]
    for _ in range(3):
        td = env.step(env.rand_action(env.step_mdp(td)))
        assert torch.equal(td["next", key][over], last) and td["next", "done"][over].all()
        assert not td["next", "reward"][over].any()
    fresh = env.maybe_reset(env.step_mdp(td))
    assert not fresh["done"].any() and not torch.equal(fresh[key][over], last)


@pytest.mark.parametrize("mode", MODES)
def test_a_rollout_until_all_rows_have_ended_freezes_the_early_ones(mode):
    data = GymWrapper(countdowns(mode)).rollout(9, break_when_any_done=False, break_when_all_done=True)
    assert data.shape == (3, 5) and data["next", "done"][:, -1].all()
    assert data["next", "x"][0].flatten().tolist() == [1, 2, 2, 2, 2]


# -------------------------------------------------------------------- GymEnv(num_envs=)
def test_a_batch_of_environments_is_one_environment():
    env = GymEnv("CartPole-v1", num_envs=4)
    data = env.rollout(20, break_when_any_done=False)
    assert data.shape == (4, 20) and data["observation"].shape == (4, 20, 4)
    assert env.action_spec.shape == (4, 2) and env.action_spec.is_in(data["action"])


def test_sync_and_async_give_the_same_transitions():
    sync, other = (GymEnv("CartPole-v1", num_envs=2, vectorization_mode=mode) for mode in ("sync", "async"))
    same(trajectory(other, 50), trajectory(sync, 50))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_frame_skip_and_encodings_work_in_a_batch(mode):
    env = GymEnv("Acrobot-v1", True, num_envs=2, frame_skip=3, vectorization_mode=mode)
    check_env_specs(env, seed=0)
    assert (env.rollout(2)["next", "reward"] == -3).all()
    env.close()


def test_environments_of_a_batch_have_unrelated_seeds():
    first = GymEnv("CartPole-v1", num_envs=3)
    second = GymEnv("CartPole-v1", num_envs=3)
    first.set_seed(0)
    second.set_seed(1)
    starts = torch.cat([first.reset()["observation"], second.reset()["observation"]])
    assert len({tuple(row) for row in starts.tolist()}) == 6


def test_one_seed_for_each_environment_can_be_given():
    env, single = GymEnv("CartPole-v1", num_envs=2), GymEnv("CartPole-v1")
    starts = env.reset(seed=[5, 9])["observation"]
    assert torch.equal(starts[1], single.reset(seed=9)["observation"])
    with pytest.raises(ValueError, match="3 seeds for 2 environments"):
        env.reset(seed=[1, 2, 3])


def test_seeds_wait_for_the_rows_that_are_reset():
    env, twin = GymEnv("CartPole-v1", num_envs=3), GymEnv("CartPole-v1", num_envs=3)
    twin.set_seed(8)
    expected = twin.reset()["observation"]
    td = env.reset()
    env.set_seed(8)
    for row in (1, 0, 2):
        mask = torch.zeros(3, 1, dtype=torch.bool)
        mask[row] = True
        td = env.reset(td.set("_reset", mask))
        assert torch.equal(td["observation"][row], expected[row])


def test_texts_of_processes_are_new_at_every_step():
    gymnasium.register("Countdown-v0", entry_point=Countdown, kwargs={"length": 3})
    try:
        env = GymEnv("Countdown-v0", num_envs=2, vectorization_mode="async")
        assert trajectory(env, 3)["next", "text"] == [["e0s1", "e0s2", "e0s3"]] * 2
    finally:
        gymnasium.registry.pop("Countdown-v0")


# -------------------------------------------------------------------- errors
def test_texts_in_shared_memory_are_refused():
    env = countdowns(AutoresetMode.DISABLED, AsyncVectorEnv)
    with pytest.raises(EnvError, match=r"never updates the observation 'text'.*shared_memory=False"):
        GymWrapper(env)
    env.close()


class OwnVector(gymnasium.vector.VectorEnv):
    """A vector environment of its own, which knows no reset mask."""

    num_envs = 2
    single_observation_space = spaces.Box(-9, 9, (1,))
    single_action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-9, 9, (2, 1))
    action_space = spaces.MultiDiscrete([2, 2])

    def __init__(self, mode, final=True):
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.final = final

    def reset(self, *, seed=None, options=None):
        assert options is None or "reset_mask" not in options
        self.count = np.zeros((2, 1), np.float32)
        return self.count.copy(), {}

    def step(self, actions):
        self.count += 1
        ended = self.count[:, 0] >= np.array([2, 3])
        info = {"final_obs": self.count.copy(), "_final_obs": ended} if self.final and ended.any() else {}
        self.count[ended] = 0
        return self.count.copy(), np.ones(2), ended, np.zeros(2, bool), info


def test_a_vector_environment_without_a_mode_is_refused():
    with pytest.raises(EnvError, match=r"declares no autoreset mode.*metadata\['autoreset_mode'\] ="):
        GymWrapper(OwnVector(None))


def test_next_step_without_a_reset_mask_is_refused():
    with pytest.raises(EnvError, match=r"NEXT_STEP and cannot reset single rows.*GymEnv\(id, num_envs=N\)"):
        GymWrapper(OwnVector(AutoresetMode.NEXT_STEP))
    assert "register_row_reset(OwnVector" in refusal(lambda: GymWrapper(OwnVector(AutoresetMode.NEXT_STEP)))
    unshared = countdowns(AutoresetMode.NEXT_STEP, AsyncVectorEnv, shared_memory=False)
    with pytest.raises(EnvError, match="NEXT_STEP"):
        GymWrapper(unshared)
    unshared.close()


def test_same_step_needs_no_reset_mask():
    data = GymWrapper(OwnVector(AutoresetMode.SAME_STEP)).rollout(7, break_when_any_done=False)
    assert data["observation"][..., 0].tolist() == [[0, 1, 0, 1, 0, 1, 0], [0, 1, 2, 0, 1, 2, 0]]
    assert data["next", "observation"][..., 0].tolist() == [[1, 2, 1, 2, 1, 2, 1], [1, 2, 3, 1, 2, 3, 1]]


def test_same_step_cannot_cut_single_rows_without_a_mask():
    env = TransformedEnv(GymWrapper(OwnVector(AutoresetMode.SAME_STEP)), StepCounter(max_steps=2))
    with pytest.raises(EnvError, match=r"rows \[1\] alone.*time limit"):
        env.rollout(7, break_when_any_done=False)


def refusal(call):
    with pytest.raises(EnvError) as caught:
        call()
    return str(caught.value)


def test_same_step_without_final_observations_is_refused_unless_a_value_stands_for_them():
    with pytest.raises(EnvError, match=r"no 'final_obs'.*missing_obs_value"):
        GymWrapper(OwnVector(AutoresetMode.SAME_STEP, final=False)).rollout(7, break_when_any_done=False)
    env = GymWrapper(OwnVector(AutoresetMode.SAME_STEP, final=False), missing_obs_value=float("nan"))
    data = env.rollout(5, break_when_any_done=False)
    assert data["observation"][..., 0].tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    assert data["next", "observation"].isnan()[..., 0].tolist() == data["next", "done"][..., 0].tolist()


def test_what_stands_for_a_lost_observation_fits_its_dtype():
    kinds = [np.float32, np.int64, np.uint8, np.bool_]
    assert [lost_value(np.dtype(kind), 7.0) for kind in kinds] == [7.0, 7, 7, False]
    assert [lost_value(np.dtype(kind), float("nan")) for kind in kinds[1:]] == [-1, 255, False]


def test_frame_skip_around_a_finished_vector_environment_is_refused():
    with pytest.raises(EnvError, match="frame_skip=2 cannot be added"):
        GymWrapper(OwnVector(AutoresetMode.SAME_STEP), frame_skip=2)
