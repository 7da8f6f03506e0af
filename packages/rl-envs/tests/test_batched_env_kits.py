"""EnvKit on batches of environments, in one process and in several."""

from rl_core import Compose, TransformedEnv
from rl_core.testing import EnvKit, GroupCountingEnv
from rl_envs import AsyncEnvPool, GymEnv, InitTracker, ParallelEnv, PendulumEnv, RewardSum, SerialEnv, StepCounter


class OurKit(EnvKit):
    distribution = "rl-envs"


def short_cartpole():
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(max_steps=7), RewardSum(), InitTracker()))


class TestSerialCartPolesWithTransformsInside(OurKit):
    def make_env(self):
        return SerialEnv(3, short_cartpole)


class TestSerialPendulums(OurKit):
    def make_env(self):
        return SerialEnv(3, PendulumEnv)


class TestSerialGroups(OurKit):
    random_start = False

    def make_env(self):
        return SerialEnv(3, GroupCountingEnv)


class TestSerialBatches(OurKit):
    """Environments that are batches themselves: batch size [2, 3]."""

    def make_env(self):
        return SerialEnv(2, lambda: GymEnv("CartPole-v1", num_envs=3))


class TestParallelCartPolesWithTransformsInside(OurKit):
    def make_env(self):
        return ParallelEnv(3, short_cartpole, mp_start_method="fork")


class TestParallelGroups(OurKit):
    random_start = False

    def make_env(self):
        return ParallelEnv(3, GroupCountingEnv, mp_start_method="fork", envs_per_worker=2)


class TestAsyncThreads(OurKit):
    def make_env(self):
        return AsyncEnvPool(["gym:CartPole-v1"] * 3, envs_per_worker=2)
