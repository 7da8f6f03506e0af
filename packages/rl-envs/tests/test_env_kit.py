"""EnvKit on this package's environments, and its failure on environments that are broken on purpose."""

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import EnvError
from rl_core.testing import ArrayCountingEnv, CountingEnv, EnvKit
from rl_envs import GymEnv, GymWrapper, PendulumEnv


class OurKit(EnvKit):
    distribution = "rl-envs"


class TestCartPole(OurKit):
    picklable = True

    def make_env(self):
        return GymEnv("CartPole-v1")


class TestCartPoles(OurKit):
    picklable = True

    def make_env(self):
        return GymEnv("CartPole-v1", num_envs=3)


class TestGymPendulum(OurKit):
    picklable = True

    def make_env(self):
        return GymEnv("Pendulum-v1", max_episode_steps=11)


class TestNativePendulum(OurKit):
    def make_env(self):
        return PendulumEnv()


class TestSyncVector(OurKit):
    def make_env(self):
        return GymWrapper(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="sync"))


class TestAcrobotNumbers(OurKit):
    def make_env(self):
        return GymEnv("Acrobot-v1", categorical_action_encoding=True, num_envs=2, max_episode_steps=9)


class TestCounting(EnvKit):
    random_start = False

    def make_env(self):
        return CountingEnv(length=[3, 5, 7], batch_size=[3], truncate=True)


class TestArrayCounting(EnvKit):
    random_start = False
    picklable = True

    def make_env(self):
        return ArrayCountingEnv(length=[3, 5, 7], batch_size=[3], truncate=True)


class Wrong(CountingEnv):
    def __init__(self):
        super().__init__(length=[3, 5, 7], batch_size=[3], truncate=True)


class ResetsEveryRow(Wrong):
    def _reset(self, tensordict=None, **kwargs):
        self.count = torch.zeros_like(self.count)
        return TensorDict({"observation": self.count.clone()}, batch_size=self.batch_size)


class WritesOtherDtype(Wrong):
    def _step(self, tensordict):
        result = super()._step(tensordict)
        return result.set("observation", result.get("observation").double())


class SharesMemory(Wrong):
    def _step(self, tensordict):
        result = super()._step(tensordict)
        tensordict.get("observation").copy_(result.get("observation"))
        return result.set("observation", tensordict.get("observation"))


class IgnoresSeeds(GymEnv):
    def __init__(self):
        super().__init__("CartPole-v1")

    def _set_seed(self, seed):
        self._reset_arguments.seed(int(np.random.default_rng().integers(2**31)))


class OneSeedOnly(GymEnv):
    def __init__(self):
        super().__init__("CartPole-v1")

    def _set_seed(self, seed):
        super()._set_seed(0)


class LeavesRowsOut(Wrong):
    def rollout(self, max_steps, *args, **kwargs):
        data = super().rollout(max_steps, *args, **kwargs)
        data["next", "observation"][:, 2] += 1
        return data


class WritesUndeclared(Wrong):
    def _step(self, tensordict):
        return super()._step(tensordict).set("extra", torch.zeros(3, 1))


class UsableWhenClosed(Wrong):
    def close(self, **kwargs):
        pass


class BadPickle(ArrayCountingEnv):
    def __init__(self):
        super().__init__(length=[3, 5, 7], batch_size=[3], truncate=True)

    def __reduce__(self):
        return BadPickle, ()


@pytest.mark.parametrize(
    ("broken", "check", "says"),
    [
        (ResetsEveryRow, "test_a_reset_of_one_row_leaves_the_others_alone", "another row"),
        (WritesOtherDtype, "test_what_it_writes_is_what_its_specs_say", "float64"),
        (WritesUndeclared, "test_what_it_writes_is_what_its_specs_say", "extra"),
        (SharesMemory, "test_observations_share_no_memory_with_each_other", "share memory|earlier step"),
        (IgnoresSeeds, "test_the_same_seed_gives_the_same_trajectory", "same seed"),
        (OneSeedOnly, "test_another_seed_gives_another_trajectory", "one trajectory"),
        (LeavesRowsOut, "test_a_rollout_is_the_same_as_its_steps", "step 2 of a rollout"),
        (UsableWhenClosed, "test_closing_twice_is_harmless_and_a_closed_environment_says_so", "no EnvError"),
        (BadPickle, "test_pickling_keeps_the_state_where_it_is_promised", "unpickled"),
    ],
)
def test_the_kit_fails_on_a_broken_environment(broken, check, says):
    class Kit(EnvKit):
        picklable = True

        def make_env(self):
            return broken()

    with pytest.raises((AssertionError, EnvError), match=says):
        getattr(Kit(), check)()
