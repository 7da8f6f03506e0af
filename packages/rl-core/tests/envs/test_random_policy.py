"""RandomPolicy writes legal actions, on a TensorDict and on bare tensors."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Bounded, Categorical, Composite, RandomPolicy
from rl_core.errors import PolicyError
from rl_core.testing import ArrayCountingEnv, GroupCountingEnv


def data():
    return TensorDict({}, [5])


def test_a_random_policy_writes_members_of_the_spec():
    spec = Bounded(low=-1.0, high=1.0, shape=(5, 2))
    policy = RandomPolicy(spec)
    assert spec.is_in(policy(data())["action"])
    assert spec.is_in(policy.forward_tensors()[0])


def test_a_random_policy_on_a_composite_writes_all_actions():
    spec = Composite({"a": Categorical(3, shape=(5,)), "b": Bounded(low=0.0, high=1.0, shape=(5, 1))}, shape=(5,))
    out = RandomPolicy(spec)(data())
    assert spec["a"].is_in(out["a"])
    assert spec["b"].is_in(out["b"])


def test_a_random_policy_on_another_batch_size_raises():
    with pytest.raises(PolicyError, match=r"batch size \[5\].*expand the spec"):
        RandomPolicy(Bounded(low=-1.0, high=1.0, shape=(2,)))(data())


@pytest.mark.parametrize("env", [GroupCountingEnv(), ArrayCountingEnv(batch_size=[2])], ids=["groups", "rows"])
def test_a_rollout_takes_a_random_policy(env):
    torch.manual_seed(0)
    rollout = env.rollout(2, RandomPolicy(env.full_action_spec))
    for key in env.action_keys:
        assert rollout[key].shape[: rollout.ndim] == rollout.batch_size
