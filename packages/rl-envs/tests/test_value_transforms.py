"""DoubleToFloat, ObservationNorm, RewardScaling and FiniteTensorDictCheck."""

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core import ArrayEnv, Bounded, Composite, RowProgram, TransformedEnv, Unbounded, check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import DoubleToFloat, FiniteTensorDictCheck, GymEnv, ObservationNorm, RewardScaling, StepCounter


class Double(ArrayEnv):
    """Observes its action and a float32 clock, all else in float64."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(
            seen=Unbounded(shape=(2,), dtype=torch.float64), clock=Unbounded(shape=(), dtype=torch.float32)
        )
        self.action_spec = Bounded(low=-0.1, high=0.1, shape=(2,), dtype=torch.float64)
        self.reward_spec = Unbounded(shape=(1,), dtype=torch.float64)
        self.sent = []

    def row_program(self, columns):
        def step(t):
            action = columns["action"][t]
            assert action.dtype == np.float64 and (abs(action) <= 0.1).all()
            self.sent.append(action.copy())
            columns["seen"][t + 1], columns["clock"][t + 1], columns["reward"][t] = action, t, action.sum()
            columns["terminated"][t + 1] = False

        def reset(t, mask):
            columns["seen"][t], columns["clock"][t] = 0.5, -1

        return RowProgram(step, reset)

    def _set_seed(self, seed):
        pass


# -------------------------------------------------------------------- DoubleToFloat
def test_everything_that_is_float64_is_cast_and_nothing_else():
    env = TransformedEnv(Double(), DoubleToFloat())
    check_env_specs(env)
    data = env.rollout(5)
    floats = {key for key in data.keys(True, True) if data[key].dtype == torch.float32}
    assert floats >= {"seen", "clock", "action", ("next", "reward"), ("next", "seen")}
    assert not any(data[key].dtype == torch.float64 for key in data.keys(True, True))
    assert torch.equal(data["next", "seen"], data["action"])


def test_actions_go_back_to_float64_inside_their_bounds():
    env = TransformedEnv(Double(), DoubleToFloat())
    assert env.action_spec.dtype == torch.float32 and env.action_spec.high.double().max() <= 0.1
    env.step(env.reset().set("action", env.action_spec.high.clone()))
    assert env.base.sent[-1].dtype == np.float64


def test_named_keys_alone_are_cast():
    env = TransformedEnv(Double(), DoubleToFloat(in_keys=["seen"], out_keys=["seen32"], in_keys_inv=[]))
    td = env.reset()
    assert td["seen"].dtype == torch.float64 and td["seen32"].dtype == torch.float32
    assert env.action_spec.dtype == torch.float64


def test_transforms_ahead_of_the_cast_count():
    env = TransformedEnv(Double()).append_transform(StepCounter()).append_transform(DoubleToFloat())
    assert env.rollout(3)["seen"].dtype == torch.float32


def test_stored_data_are_cast_with_and_without_names():
    data = TensorDict(a=torch.zeros(3, dtype=torch.float64), n=TensorDict(b=torch.zeros(3, dtype=torch.float64)))
    cast = DoubleToFloat()(data.clone())
    assert cast["a"].dtype == cast["n", "b"].dtype == torch.float32
    named = DoubleToFloat(in_keys=["a"])(data.clone())
    assert named["a"].dtype == torch.float32 and named["n", "b"].dtype == torch.float64


# -------------------------------------------------------------------- ObservationNorm
@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
@pytest.mark.parametrize(("standard", "expected"), [(True, [-0.5, 0, 0.5]), (False, [1, 3, 5])])
def test_observations_are_mapped_at_the_root_and_under_next(env, standard, expected):
    norm = ObservationNorm(loc=1.0, scale=2.0, standard_normal=standard)
    data = TransformedEnv(env(length=9), norm).rollout(3)
    assert data["observation"].flatten().tolist() == expected
    assert data["next", "observation"].flatten().tolist()[:2] == expected[1:]


def test_statistics_are_measured_over_random_steps():
    env = TransformedEnv(CountingEnv(length=4), ObservationNorm(standard_normal=True))
    env.transform.init_stats(8)
    values = torch.tensor([0.0, 1, 2, 3, 0, 1, 2, 3])
    assert env.transform.loc.item() == values.mean() and env.transform.scale.item() == pytest.approx(
        values.std().item()
    )
    fresh = TransformedEnv(CountingEnv(length=4), ObservationNorm())
    fresh.transform.init_stats(8)
    data = fresh.rollout(8, break_when_any_done=False)["observation"]
    assert data.mean().item() == pytest.approx(0, abs=1e-6) and data.std().item() == pytest.approx(1)


def test_statistics_of_a_batch_need_the_joining_dimension():
    env = TransformedEnv(GymEnv("CartPole-v1", num_envs=2), ObservationNorm(in_keys=["observation"]))
    with pytest.raises(ValueError, match="needs cat_dim"):
        env.transform.init_stats(10, reduce_dim=(0, 1))
    env.transform.init_stats(40, reduce_dim=(0, 1), cat_dim=1)
    assert env.transform.loc.shape == (4,)
    check_env_specs(env)


def test_constant_observations_do_not_divide_by_zero():
    norm = ObservationNorm(loc=torch.zeros(2), scale=torch.tensor([0.0, 1.0]), standard_normal=True, eps=0.5)
    assert norm._apply_transform(torch.ones(2)).tolist() == [2, 1]


def test_missing_statistics_say_how_to_measure_them():
    with pytest.raises(EnvError, match="init_stats"):
        TransformedEnv(CountingEnv(), ObservationNorm()).rollout(2)
    with pytest.raises(EnvError, match="init_stats"):
        TransformedEnv(ArrayCountingEnv(), ObservationNorm()).rollout(2)
    with pytest.raises(ValueError, match="both loc and scale"):
        ObservationNorm(loc=1.0)


def test_measured_statistics_are_saved_and_loaded():
    first, second = TransformedEnv(CountingEnv(), ObservationNorm()), ObservationNorm()
    first.transform.init_stats(10)
    second.load_state_dict(first.transform.state_dict())
    assert torch.equal(second.loc, first.transform.loc) and second.initialized


def test_integers_become_floats():
    norm = ObservationNorm(loc=0.0, scale=0.5)
    assert norm._apply_transform(torch.tensor([4], dtype=torch.uint8)).tolist() == [2.0]


def test_the_inverse_undoes_the_map():
    for standard in (True, False):
        norm = ObservationNorm(loc=1.5, scale=0.25, standard_normal=standard)
        assert norm._inv_apply_transform(norm._apply_transform(torch.tensor([3.0]))).item() == pytest.approx(3.0)


def test_a_key_that_is_not_there_is_named():
    with pytest.raises(KeyMissingError, match="needs 'pixels'"):
        ObservationNorm(0.0, 1.0, in_keys=["pixels"])(TensorDict(observation=torch.zeros(1)))


# -------------------------------------------------------------------- RewardScaling
@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
def test_rewards_are_scaled_and_observations_are_not(env):
    data = TransformedEnv(env(length=3), RewardScaling(loc=1.0, scale=0.5)).rollout(5)
    assert data["next", "reward"].flatten().tolist() == [1.5, 2, 2.5]
    assert data["observation"].flatten().tolist() == [0, 1, 2]
    standard = RewardScaling(loc=1.0, scale=0.5, standard_normal=True)
    assert TransformedEnv(env(length=2), standard).rollout(2)["next", "reward"].flatten().tolist() == [0, 2]


# -------------------------------------------------------------------- FiniteTensorDictCheck
def broken(kind, at, value, what="observation", rows=3):
    """A counting environment whose row 1 goes wrong at a step."""

    class Broken(kind):
        def __init__(self):
            super().__init__(length=99, batch_size=[rows] if rows else [])

        def _step(self, tensordict):
            result = super()._step(tensordict)
            wrong = result.get(what).clone()
            if float(self.count.flatten()[0]) == at + 1:
                wrong[1 if rows else ...] = value
            return result.set(what, wrong)

        def row_program(self, columns):
            program = super().row_program(columns)

            def step(t):
                program.step(t)
                if float(self.count.flatten()[0]) == at + 1:
                    columns[what][t + (what == "observation")][1 if rows else ...] = value

            return RowProgram(step, program.reset)

    return Broken()


@pytest.mark.parametrize("kind", [CountingEnv, ArrayCountingEnv])
@pytest.mark.parametrize("what", ["observation", "reward"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_named_with_its_row_and_step(kind, what, value):
    env = TransformedEnv(broken(kind, 4, value, what), FiniteTensorDictCheck())
    with pytest.raises(EnvError, match=f"'{what}' is {value} in row 1 at step 4 "):
        env.rollout(20, break_when_any_done=False)
    single = TransformedEnv(broken(kind, 4, value, what, rows=0), FiniteTensorDictCheck())
    with pytest.raises(EnvError, match=f"'{what}' is {value} at step 4 "):
        single.rollout(20, break_when_any_done=False)


def test_finite_steps_pass():
    env = TransformedEnv(ArrayCountingEnv(length=[2, 3], batch_size=[2]), FiniteTensorDictCheck())
    assert env.rollout(9, break_when_any_done=False).shape == (2, 9)


def test_stored_data_are_checked():
    data = TensorDict(next=TensorDict(reward=torch.tensor([[0.0], [torch.inf]]), batch_size=[2]), batch_size=[2])
    with pytest.raises(EnvError, match=r"\('next', 'reward'\) is inf in row 1 of the data"):
        FiniteTensorDictCheck()(data)
