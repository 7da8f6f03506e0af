"""BatchSizeTransform: a batch for an environment that takes any, another shape for one that has its own."""

import pytest
import torch

from rl_core import Compose, TransformedEnv, check_env_specs
from rl_core.errors import EnvError
from rl_core.testing import CountingEnv
from rl_envs import BatchSizeTransform, ObservationNorm, PendulumEnv, RewardSum, StepCounter


def test_a_stateless_environment_gets_a_batch():
    env = TransformedEnv(PendulumEnv(), Compose(BatchSizeTransform(batch_size=[4]), StepCounter(3), RewardSum()))
    assert env.batch_size == (4,) and env.batch_locked and env.action_spec.shape == (4, 1)
    check_env_specs(env)
    data = env.rollout(7, break_when_any_done=False)
    assert data.shape == (4, 7) and data["step_count"][0].flatten().tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert len(data["observation"][:, 0, 0].unique()) == 4
    with pytest.raises(EnvError, match="batch size"):
        env.step(env.rand_action(env.reset())[:2])


def square(td):
    return td.reshape(2, 2)


def test_a_batch_is_reshaped_both_ways():
    env = TransformedEnv(
        CountingEnv(length=[2, 3, 4, 5], batch_size=[4]),
        Compose(BatchSizeTransform(reshape_fn=square), StepCounter(), ObservationNorm(0.0, 10.0)),
    )
    assert env.batch_size == (2, 2) and env.observation_spec["observation"].shape == (2, 2, 1)
    check_env_specs(env)
    data = env.rollout(4, break_when_any_done=False)
    assert data.shape == (2, 2, 4)
    wanted = [[[0, 10, 0, 10], [0, 10, 20, 0]], [[0, 10, 20, 30], [0, 10, 20, 30]]]
    assert data["observation"].squeeze(-1).tolist() == wanted
    assert (data["step_count"].squeeze(-1) * 10).tolist() == wanted


def test_a_batch_size_follows_edits():
    env = TransformedEnv(CountingEnv(batch_size=[4]))
    env.append_transform(BatchSizeTransform(reshape_fn=square))
    assert env.batch_size == (2, 2) and env.rollout(1).shape == (2, 2, 1)
    assert env.transform[0].parent.batch_size == (4,)
    env.transform.pop()
    assert env.batch_size == (4,) and env.rollout(1).shape == (4, 1)


def test_a_reset_that_ignores_the_batch_is_completed():
    class Single(PendulumEnv):
        def _reset(self, tensordict=None, **kwargs):
            return super()._reset(None)

    env = TransformedEnv(Single(), BatchSizeTransform(batch_size=[3]))
    with pytest.raises(EnvError, match="reset_func"):
        env.reset()
    env = TransformedEnv(
        Single(), BatchSizeTransform(batch_size=[3], reset_func=lambda td, fresh: torch.stack([fresh] * 3).contiguous())
    )
    assert env.rollout(2).shape == (3, 2)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match="one of them"):
        BatchSizeTransform()
    with pytest.raises(ValueError, match="env_kwarg"):
        BatchSizeTransform(batch_size=[2], env_kwarg=True)
    with pytest.raises(EnvError, match="reshape_fn=lambda"):
        TransformedEnv(CountingEnv(batch_size=[4]), BatchSizeTransform(batch_size=[4]))
    with pytest.raises(EnvError, match="SerialEnv"):
        TransformedEnv(CountingEnv(), BatchSizeTransform(batch_size=[4]))
    with pytest.raises(EnvError, match=r"made \(2,\) from \(4,\)"):
        TransformedEnv(CountingEnv(batch_size=[4]), BatchSizeTransform(reshape_fn=lambda td: td[:2]))
