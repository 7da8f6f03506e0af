"""Values of ``info`` as entries: declared keys, late keys, defaults, flags of presence, masks."""

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tensordict import TensorDict

from rl_core import Binary, Categorical, Composite, TransformedEnv, Unbounded, check_env_specs
from rl_core.errors import EnvError
from rl_core.testing import EnvKit
from rl_envs import BaseInfoDictReader, GymEnv, GymWrapper, StepCounter, default_info_dict_reader

BOOL = Categorical(2, shape=(), dtype=torch.bool)
NUMBER = Unbounded(shape=(), dtype=torch.float32)
LAYOUTS = ["serial", *AutoresetMode, "async"]


class Late(gymnasium.Env):
    """C08: nothing at a reset, ``k`` at steps, ``score`` at the last step only; 3 steps, or 5."""

    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)

    def __init__(self, length=3, extra=None):
        self.length, self.extra, self.count = length, extra, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        over = self.count == self.length
        info = {"k": over, **({"score": 7.0} if over else {})}
        if self.extra is not None and self.count >= 2:
            info[self.extra] = self.count
        return np.full(1, self.count, np.float32), 1.0, over, False, info


def declared():
    return default_info_dict_reader(["k", "score"], spec=[BOOL, NUMBER])


def made(layout, lengths=(3, 5), extra=None):
    makers = [lambda n=n: Late(n, extra) for n in lengths]
    if layout == "serial":
        env = GymWrapper(SyncVectorEnv(makers, autoreset_mode="Disabled"))
    elif layout == "async":
        env = GymWrapper(AsyncVectorEnv(makers, autoreset_mode="SameStep"))
    else:
        env = GymWrapper(SyncVectorEnv(makers, autoreset_mode=layout))
    return env


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_keys_that_come_late_have_one_form_at_every_time(layout):
    env = made(layout).set_info_dict_reader(declared())
    check_env_specs(env, seed=0)
    data = env.rollout(11, break_when_any_done=False)
    for row, length in zip(data, (3, 5), strict=True):
        last = torch.tensor([(t + 1) % length == 0 for t in range(11)])
        first = torch.tensor([t % length == 0 for t in range(11)])
        assert row["next", "k"].dtype == torch.bool and torch.equal(row["next", "k"], last)
        assert row["next", "k_present"].all() and torch.equal(row["k_present"], ~first)
        assert torch.equal(row["next", "score"], 7.0 * last) and row["next", "score"].dtype == torch.float32
        assert torch.equal(row["next", "score_present"], last) and not row["score_present"].any()
    env.close()


def test_a_single_environment_has_them_too_and_a_default_of_choice():
    reader = default_info_dict_reader(["k", "score"], spec=[BOOL, NUMBER], defaults={"score": float("nan")})
    env = GymWrapper(Late()).set_info_dict_reader(reader)
    data = env.rollout(7, break_when_any_done=False)
    assert data["next", "score"].isnan().tolist() == [True, True, False] * 2 + [True]
    assert data["next", "k"].tolist() == [False, False, True] * 2 + [False]
    plain = default_info_dict_reader(["score"], spec=[NUMBER], presence=False)
    assert "score_present" not in GymWrapper(Late()).set_info_dict_reader(plain).rollout(2).keys(True)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_rollouts_and_steps_on_tensordicts_read_the_same(layout):
    data = made(layout).set_info_dict_reader(declared()).rollout(9, break_when_any_done=False)
    env = made(layout).set_info_dict_reader(declared())
    td = env.reset()
    for t in range(9):
        stepped, td = env.step_and_maybe_reset(td.set("action", data["action"][:, t]))
        for key in ("k", "score", "k_present", "score_present"):
            assert torch.equal(stepped[key], data[key][:, t])
            assert torch.equal(stepped["next", key], data["next", key][:, t])
    env.close()


@pytest.mark.parametrize("layout", LAYOUTS[:-1], ids=str)
def test_rows_that_wait_at_their_end_keep_their_info(layout):
    env = made(layout).set_info_dict_reader(declared())
    data = env.rollout(9, break_when_any_done=False, break_when_all_done=True)
    assert data["next", "score"][0].tolist() == [0, 0, 7, 7, 7]


class TestInfoOfABatch(EnvKit):
    distribution = "rl-envs"
    random_start = False

    def make_env(self):
        return TransformedEnv(made("serial").set_info_dict_reader(declared()), StepCounter(max_steps=4))


# -------------------------------------------------------------------- names that nobody declared
def test_undeclared_keys_are_left_out_and_new_ones_are_warned_of_once():
    env = GymWrapper(Late(4, extra="late")).set_info_dict_reader(declared())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # keys were chosen by the user
        assert "late" not in env.rollout(9, break_when_any_done=False)
    reader = default_info_dict_reader(["k", "score"], spec=[BOOL, NUMBER], warn_undeclared=True)
    env = GymWrapper(Late(4, extra="late")).set_info_dict_reader(reader)
    with pytest.warns(UserWarning, match=r"info has 'late', which no reader declares") as caught:
        env.rollout(20, break_when_any_done=False)
    assert len(caught) == 1


def test_a_trial_finds_names_and_specs_and_later_names_are_warned_of():
    env = GymWrapper(Late(30)).auto_register_info_dict()
    assert env.observation_spec["k"] == BOOL and "score" not in env.observation_spec
    with pytest.warns(UserWarning, match="'score'"):
        data = env.rollout(31, break_when_any_done=False)
    assert data["next", "k"].sum() == 1
    batch = made("async", (30, 30)).auto_register_info_dict()
    with pytest.warns(UserWarning, match="'score'") as caught:
        batch.rollout(62, break_when_any_done=False)
    assert len(caught) == 1
    batch.close()


def test_a_name_without_spec_that_a_trial_does_not_show_is_refused():
    with pytest.raises(EnvError, match=r"info 'score' has no spec.*spec=\["):
        GymWrapper(Late(30)).set_info_dict_reader(["score"])
    env = GymWrapper(Late(3)).set_info_dict_reader(["score"])
    assert env.rollout(3)["next", "score"].tolist() == [0, 0, 7]


def test_readers_that_cannot_work_are_refused():
    with pytest.raises(EnvError, match="2 keys"):
        default_info_dict_reader(["a", "b"], spec=[NUMBER])
    with pytest.raises(EnvError, match="defaults has 'b'"):
        default_info_dict_reader(["a"], spec=[NUMBER], defaults={"b": 1.0})
    env = GymWrapper(Late())
    with pytest.raises(EnvError, match="has an entry 'observation' already"):
        env.set_info_dict_reader(default_info_dict_reader(["observation"], spec=[NUMBER]))
    wrong = default_info_dict_reader(["k"], spec=[Unbounded(shape=(2,), dtype=torch.float32)])
    with pytest.raises(EnvError, match=r"info 'k' has shape \(\); its spec says \(2,\)"):
        GymWrapper(Late()).set_info_dict_reader(wrong).rollout(2)


# -------------------------------------------------------------------- kinds of values
class Rich(gymnasium.Env):
    """Nested infos, arrays, texts; the observation is the count."""

    observation_space, action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(4)

    def tell(self):
        mask = np.zeros(4, np.int8)
        mask[[self.count % 4, (self.count + 1) % 4]] = 1
        return {
            "deep": {"x": np.full(2, self.count, np.float64), "n": self.count},
            "text": f"t{self.count}",
            "action_mask": mask,
            "_private": 1,
            "unread": object(),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.legal = self.tell()["action_mask"]
        return np.zeros(1, np.float32), self.tell()

    def step(self, action):
        assert self.legal[action], "a masked action was taken"
        self.count += 1
        info = self.tell()
        self.legal = info["action_mask"]
        return np.full(1, self.count % 9, np.float32), 1.0, False, self.count == 6, info


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("layout", ["single", *LAYOUTS], ids=str)
def test_nested_values_texts_and_masks_are_read_and_random_actions_are_legal(layout, categorical):
    if layout == "single":
        env = GymWrapper(Rich(), categorical)
    elif layout in ("serial", "async"):
        kind = SyncVectorEnv if layout == "serial" else AsyncVectorEnv
        env = GymWrapper(kind([Rich] * 2, autoreset_mode="Disabled"), categorical)
    else:
        env = GymWrapper(SyncVectorEnv([Rich] * 2, autoreset_mode=layout), categorical)
    env.auto_register_info_dict()
    assert ("deep", "x") in env.observation_keys and "_private" not in env.observation_spec
    assert "unread" not in env.observation_spec and env.observation_spec["action_mask"].dtype == torch.bool
    check_env_specs(env, seed=0)
    data = env.rollout(20, break_when_any_done=False)
    for row in data.reshape(-1, 20):
        count = torch.arange(20) % 6
        assert torch.equal(row["deep", "n"], count) and torch.equal(row["next", "deep", "x"][:, 0], count + 1.0)
        assert row["next", "text"] == [f"t{n + 1}" for n in count]
        chosen = row["action"] if categorical else row["action"].argmax(-1)
        assert row["action_mask"].gather(-1, chosen[:, None]).all()
    env.close()


def test_taxi_is_driven_within_its_mask():
    taxi = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)  # the newest there is
    env = GymEnv(taxi, True).set_info_dict_reader(["action_mask"])
    data = env.rollout(200, break_when_any_done=False)
    assert data["action_mask"].gather(-1, data["action"][:, None]).all() and not data["action_mask"].all()
    assert (data["next", "reward"] > -10).all()  # illegal calls of the passenger cost 10
    raw = gymnasium.make(taxi)
    env.set_seed(5)
    _, info = raw.reset(seed=5)
    assert env.reset()["action_mask"].tolist() == info["action_mask"].astype(bool).tolist()


def test_a_mask_in_the_observation_dict_is_used_as_well():
    class Masked(Rich):
        observation_space = spaces.Dict(x=spaces.Box(-9, 9, (1,)), action_mask=spaces.MultiBinary(4))

        def reset(self, **kwargs):
            x, info = super().reset(**kwargs)
            return {"x": x, "action_mask": info["action_mask"]}, {}

        def step(self, action):
            x, *rest, info = super().step(action)
            return {"x": x, "action_mask": info["action_mask"]}, *rest, {}

    for env in (GymWrapper(Masked()), GymWrapper(SyncVectorEnv([Masked] * 2, autoreset_mode="Disabled"))):
        check_env_specs(env, seed=0)
        env.rollout(40, break_when_any_done=False)


# -------------------------------------------------------------------- readers of one's own
class Double(BaseInfoDictReader):
    @property
    def info_spec(self):
        return Composite(
            {"twice": Unbounded(shape=(1,), dtype=torch.int64), ("more", "odd"): Binary(1, dtype=torch.bool)}
        )

    def __call__(self, info_dict, tensordict):
        n = info_dict.get("n", 0)
        return tensordict.set("twice", torch.tensor([2 * n])).set(("more", "odd"), torch.tensor([n % 2 == 1]))


class Counting(Late):
    def step(self, action):
        *result, _ = super().step(action)
        return *result, {"n": self.count}


@pytest.mark.parametrize("layout", ["single", *LAYOUTS[:-1]], ids=str)
def test_a_reader_of_ones_own_writes_into_a_tensordict(layout):
    if layout == "single":
        env = GymWrapper(Counting(5))
    else:
        mode = "Disabled" if layout == "serial" else layout
        env = GymWrapper(SyncVectorEnv([lambda: Counting(5)] * 2, autoreset_mode=mode))
    env.set_info_dict_reader(Double())
    check_env_specs(env, seed=0)
    data = env.rollout(6, break_when_any_done=False).reshape(-1, 6)
    assert data["next", "twice"][0].flatten().tolist() == [2, 4, 6, 8, 10, 2]
    assert data["next", "more", "odd"][-1].flatten().tolist() == [True, False, True, False, True, True]
    assert data["twice"][0].flatten().tolist() == [0, 2, 4, 6, 8, 0]


def test_several_readers_write_beside_each_other_and_survive_a_pickle():
    import pickle

    env = GymWrapper(Counting(5)).set_info_dict_reader(Double()).set_info_dict_reader(["n"])
    copy = pickle.loads(pickle.dumps(env))
    for each in (env, copy):
        data = each.rollout(4)
        assert data["next", "n"].tolist() == [1, 2, 3, 4] and data["next", "twice"].flatten().tolist() == [2, 4, 6, 8]


def test_a_reader_can_be_called_by_hand():
    td = declared()({"k": True}, TensorDict())
    assert td["k"] and td["score"] == 0 and td["k_present"] and not td["score_present"]
