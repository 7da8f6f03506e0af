"""EnvCreator: environments from one function, with one state."""

import pickle

import pytest
import torch

from rl_core import TransformedEnv
from rl_core.errors import EnvError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import EnvCreator, ObservationNorm, ParallelEnv, SerialEnv, StepCounter, env_creator


def normed(loc=1.0, length=5):
    return TransformedEnv(ArrayCountingEnv(length=length), ObservationNorm(loc, 2.0, in_keys=["observation"]))


def test_it_makes_environments_with_its_arguments_and_further_ones():
    make = EnvCreator(CountingEnv, {"length": 3}, truncate=True)
    assert make().rollout(9)["next", "truncated"].flatten().tolist() == [False, False, True]
    assert make(length=2).rollout(9).shape == torch.Size([2])
    assert make.make_variant(length=4)().rollout(9).shape == torch.Size([4])
    assert make.meta_data.specs["observation"]["observation"].shape == torch.Size([1])


def test_what_it_makes_shares_its_statistics():
    make = EnvCreator(normed)
    state = make.state_dict()
    loc = next(key for key in state["transform"] if key.endswith("loc"))
    state["transform"][loc] = torch.tensor(-4.0)
    make.load_state_dict(state)
    copy = pickle.loads(pickle.dumps(make))
    for maker in (make, copy):
        assert maker().reset()["observation"].item() == -4.0  # 2 * 0 - 4
    assert normed().reset()["observation"].item() == 1.0


def test_a_state_with_other_entries_is_refused():
    with pytest.raises(EnvError, match="'transform'"):
        EnvCreator(normed).load_state_dict({"other": 1})


def test_it_travels_with_a_lambda():
    make = pickle.loads(pickle.dumps(EnvCreator(lambda: CountingEnv(length=2))))
    assert make().rollout(9).shape == torch.Size([2])


def test_it_decorates_a_function():
    @env_creator
    def make():
        return TransformedEnv(CountingEnv(), StepCounter(max_steps=2))

    assert isinstance(make, EnvCreator) and make().rollout(9).shape == torch.Size([2])


@pytest.mark.parametrize("batch", [SerialEnv, ParallelEnv])
def test_batches_take_it(batch):
    env = batch(2, EnvCreator(normed), create_env_kwargs={"length": 2}, mp_start_method="fork")
    assert env.rollout(9).shape == torch.Size([2, 2])
    env.close()


def test_what_makes_no_environment_is_refused():
    with pytest.raises(EnvError, match="not an environment"):
        EnvCreator(dict)
