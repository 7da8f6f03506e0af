"""EnvKit on environments seen through this package's transforms; test_env_kit.py has the bare ones."""

from rl_core import Compose, TransformedEnv
from rl_core.testing import EnvKit, GroupCountingEnv
from rl_envs import (
    DoubleToFloat,
    FiniteTensorDictCheck,
    GymEnv,
    InitTracker,
    ObservationNorm,
    PendulumEnv,
    RewardScaling,
    RewardSum,
    StepCounter,
)


class OurKit(EnvKit):
    distribution = "rl-envs"


class TestCartPolesThroughAllTransforms(OurKit):
    def make_env(self):
        transforms = (
            FiniteTensorDictCheck(),
            DoubleToFloat(),
            RewardScaling(loc=0.0, scale=0.5),
            StepCounter(max_steps=11),
            RewardSum(),
            InitTracker(),
            ObservationNorm(loc=0.1, scale=2.0, standard_normal=True),
        )
        return TransformedEnv(GymEnv("CartPole-v1", num_envs=3), Compose(*transforms))


class TestOneCartPoleThroughATransform(OurKit):
    def make_env(self):
        return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=5))


class TestNativePendulumThroughTransforms(OurKit):
    def make_env(self):
        return TransformedEnv(PendulumEnv(), Compose(StepCounter(max_steps=7), RewardSum()))


class TestAGroupThroughTransforms(OurKit):
    random_start = False

    def make_env(self):
        env = GroupCountingEnv([2, 3], batch_size=[3])
        return TransformedEnv(env, Compose(StepCounter(max_steps=4), RewardSum(), InitTracker()))
