"""Where columns and TensorDicts could part: statistics that come late, digits near the location, missing entries."""

import pytest
import torch

from rl_core import Bounded, Compose, Composite, TransformedEnv, Unbounded
from rl_core.envs.row_runner import RowRunner
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import DoubleToFloat, FiniteTensorDictCheck, ObservationNorm, RewardScaling, RewardSum, StepCounter

KINDS = [CountingEnv, ArrayCountingEnv]


@pytest.mark.parametrize("batch", [[], [2]])
@pytest.mark.parametrize("standard", [True, False])
def test_statistics_loaded_into_a_running_environment_count_from_the_next_step(batch, standard):
    norm = ObservationNorm(loc=0.0, scale=1.0, standard_normal=standard)
    runner = RowRunner(TransformedEnv(ArrayCountingEnv(length=99, batch_size=batch), norm), None, 3)
    runner.run()
    norm.load_state_dict(ObservationNorm(loc=1.0, scale=2.0).state_dict())
    observed = runner.run()["next", "observation"].reshape(-1, 3)[0]  # 4, 5, 6 underneath
    assert observed.tolist() == ([1.5, 2, 2.5] if standard else [9, 11, 13])


@pytest.mark.parametrize("batch", [[], [2]])
def test_digits_near_the_location_are_kept(batch):
    norm = ObservationNorm(loc=1000003.0, scale=3e-4, standard_normal=True)
    far = {"count": torch.full((*batch, 1), 1000003.0)}  # the next observation is loc + 1
    env = TransformedEnv(CountingEnv(length=2**21, batch_size=batch), norm)
    td = env.reset()
    env.base.load_state_dict(far)
    observed = env.rand_step(td)["next", "observation"]
    assert observed.flatten().tolist() == pytest.approx([1 / 3e-4] * observed.numel())

    env = TransformedEnv(ArrayCountingEnv(length=2**21, batch_size=batch), norm.clone())
    runner = RowRunner(env, None, 1)
    runner.reset()
    env.base.load_state_dict(far)
    assert runner.run()["next", "observation"].flatten().tolist() == pytest.approx([1 / 3e-4] * observed.numel())


@pytest.mark.parametrize("kind", KINDS)
def test_an_observation_that_is_not_there_is_named(kind):
    with pytest.raises(KeyMissingError, match=r"ObservationNorm needs 'pixels'; the .* has .*'observation'"):
        TransformedEnv(kind(), ObservationNorm(0.0, 1.0, in_keys=["pixels"])).rollout(2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_inserted_ahead_is_seen(kind):
    env = TransformedEnv(kind(length=9), Compose(RewardSum(), DoubleToFloat()))
    env.rollout(2)
    env.insert_transform(0, RewardScaling(loc=0.0, scale=2.0, out_keys=["scaled"]))
    assert "episode_scaled" in env.reset()
    assert env.rollout(2)["next", "episode_scaled"].flatten().tolist() == [2, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_counted_from_the_reset_of_all_rows(kind):
    env = TransformedEnv(kind(length=[2, 2], batch_size=[2]), FiniteTensorDictCheck())
    env.rollout(5, break_when_any_done=False)
    assert env.transform._steps == [1]  # ends of both rows at steps 2 and 4


def test_rewards_and_reset_keys_must_match():
    env = TransformedEnv(CountingEnv(), RewardSum(in_keys=["reward"], reset_keys=["_reset", ("agents", "_reset")]))
    with pytest.raises(EnvError, match="one for each reward"):
        env.reset()
    data = CountingEnv().rollout(3)
    with pytest.raises(KeyMissingError, match=r"needs \('next', 'agents', 'done'\)"):
        RewardSum(in_keys=["reward"], reset_keys=[("agents", "_reset")])(data)


# -------------------------------------------------------------------- actions on their way in
def test_bounds_of_actions_are_mapped_so_that_the_inverse_is_legal():
    norm = ObservationNorm(loc=0.5, scale=-2.0, in_keys=[], in_keys_inv=["action"])
    env = TransformedEnv(CountingEnv(length=9), norm)  # actions from -1 to 1
    assert env.action_spec == Bounded(low=-1.5, high=2.5, shape=(1,))
    assert env.base.action_spec.is_in(norm._inv_apply_transform(env.rollout(8)["action"][0]))
    free = TransformedEnv(CountingEnv(length=9), Compose(norm.clone()))
    free.base.action_spec = Unbounded(shape=(1,))
    assert isinstance(free.action_spec, Unbounded)


def test_statistics_of_actions_may_come_later():
    env = TransformedEnv(CountingEnv(), ObservationNorm(in_keys=["observation"], in_keys_inv=["action"]))
    assert isinstance(env.action_spec, Unbounded)
    with pytest.raises(EnvError, match="init_stats"):
        env.rollout(2)


def test_float64_actions_are_float32_outside_and_inside_their_bounds():
    class Double(CountingEnv):
        def __init__(self):
            super().__init__()
            self.observation_spec = Composite(observation=Unbounded(shape=(1,), dtype=torch.float64))
            self.action_spec = Bounded(low=-0.1, high=0.1, shape=(1,), dtype=torch.float64)
            self.reward_spec = Unbounded(shape=(1,), dtype=torch.float64)
            self.count = self.count.double()
            self.seen = []

        def _step(self, tensordict):
            self.seen.append(tensordict["action"])
            return super()._step(tensordict)

    env = TransformedEnv(Double(), DoubleToFloat())
    env.step(env.reset().set("action", env.action_spec.high.expand(1)))
    specs = (env.observation_spec["observation"], env.reward_spec, env.action_spec)
    assert {spec.dtype for spec in specs} == {torch.float32}
    assert env.base.seen[0].dtype == torch.float64 and env.base.action_spec.is_in(env.base.seen[0])


def test_the_limit_comes_on_top_of_the_environment_s_own_end():
    env = TransformedEnv(CountingEnv(length=3), StepCounter(max_steps=3))
    last = env.rollout(9)["next"][-1]
    assert bool(last["terminated"]) and bool(last["truncated"]) and bool(last["done"])
