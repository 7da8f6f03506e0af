"""TransformKit on this package's transforms, and its failure on transforms that are broken on purpose."""

import numpy as np
import pytest
import torch

from rl_core import Bounded, Compose, Composite, RowProgram, Transform, Unbounded
from rl_core.errors import RLError
from rl_core.testing import ArrayCountingEnv, TransformKit
from rl_envs import (
    DoubleToFloat,
    FiniteTensorDictCheck,
    InitTracker,
    ObservationNorm,
    RewardScaling,
    RewardSum,
    StepCounter,
)


class DoubleCounting(ArrayCountingEnv):
    """The counting environment in float64."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        batch = self.batch_size
        self.observation_spec = Composite(observation=Unbounded(shape=(*batch, 1), dtype=torch.float64), shape=batch)
        self.action_spec = Bounded(low=-0.1, high=0.1, shape=(*batch, 1), dtype=torch.float64)
        self.reward_spec = Unbounded(shape=(*batch, 1), dtype=torch.float64)


class OurKit(TransformKit):
    distribution = "rl-envs"


class TestStepCounter(OurKit):
    offline = True
    needs = ("step_count",)

    def make_transform(self):
        return StepCounter()


class TestStepCounterWithALimit(OurKit):
    def make_transform(self):
        return StepCounter(max_steps=4)


class TestStepCounterAsObservation(OurKit):
    def make_transform(self):
        return StepCounter(max_steps=2, truncated_key="late", update_done=False)


class TestRewardSum(OurKit):
    offline = True
    needs = ("reward", "episode_reward")

    def make_transform(self):
        return RewardSum()


class TestRewardSumAsReward(OurKit):
    def make_transform(self):
        return RewardSum(reward_spec=True)


class TestInitTracker(OurKit):
    offline = True

    def make_transform(self):
        return InitTracker()


class TestDoubleToFloat(OurKit):
    offline = True

    def make_transform(self):
        return DoubleToFloat()

    def make_env(self):
        return DoubleCounting(length=[3, 5, 7], batch_size=[3])

    def make_single_env(self):
        return DoubleCounting(length=4)


class TestObservationNorm(OurKit):
    offline = True

    def make_transform(self):
        return ObservationNorm(loc=1.5, scale=0.25, standard_normal=True)


class TestObservationNormBesideTheObservation(OurKit):
    offline = True

    def make_transform(self):
        return ObservationNorm(loc=1.5, scale=0.25, in_keys=["observation"], out_keys=["normal"])


class TestObservationNormOfActions(OurKit):
    def make_transform(self):
        return ObservationNorm(loc=0.5, scale=2.0, in_keys=[], in_keys_inv=["action"], standard_normal=True)


class TestRewardScaling(OurKit):
    offline = True

    def make_transform(self):
        return RewardScaling(loc=0.5, scale=2.0)


class TestFiniteCheck(OurKit):
    def make_transform(self):
        return FiniteTensorDictCheck()


class TestAllTogether(OurKit):
    def make_transform(self):
        return Compose(
            DoubleToFloat(),
            RewardScaling(0.0, 0.5),
            StepCounter(4),
            RewardSum(),
            ObservationNorm(1.0, 2.0),
            InitTracker(),
        )

    def make_env(self):
        return DoubleCounting(length=[3, 5, 7], batch_size=[3], truncate=True)

    def make_single_env(self):
        return DoubleCounting(length=4, truncate=True)


class ForgetsOtherRows(StepCounter):
    """Counts in itself and resets every row."""

    def _reset(self, tensordict, tensordict_reset):
        self.count = torch.zeros(3, 1, dtype=torch.int64)
        return super()._reset(tensordict, tensordict_reset)

    def _step(self, tensordict, next_tensordict):
        self.count = self.count + 1
        return super()._step(tensordict, next_tensordict).set("step_count", self.count)


class RowsDiffer(StepCounter):
    def row_program(self, before, after):
        program = super().row_program(before, after)

        def reset(t, mask):
            program.reset(t, None)

        return RowProgram(program.step, reset)


class WritesUndeclared(Transform):
    def _call(self, tensordict):
        return tensordict.set("extra", tensordict.get("observation"))


class OfflineForgetsEnds(RewardSum):
    def forward(self, tensordict):
        total = tensordict["next", "reward"].cumsum(1)
        tensordict["episode_reward"] = total - tensordict["next", "reward"]
        tensordict["next", "episode_reward"] = total
        return tensordict


class SavesNothing(ObservationNorm):
    def __init__(self):
        super().__init__(loc=float(np.random.default_rng().normal()), scale=1.0)

    def state_dict(self, *args, **kwargs):
        return {}

    def load_state_dict(self, state_dict, *args, **kwargs):
        pass


class SharesItself(StepCounter):
    def set_container(self, owner):
        self._owner = None
        super().set_container(owner)


@pytest.mark.parametrize(
    ("broken", "check", "says"),
    [
        (ForgetsOtherRows, "test_a_reset_of_one_row_leaves_the_others_alone", "another row"),
        (RowsDiffer, "test_rows_of_columns_are_the_same_as_tensordicts", "on columns"),
        (WritesUndeclared, "test_specs_say_what_is_written", "extra"),
        (OfflineForgetsEnds, "test_stored_steps_give_what_the_environment_gave", "stored steps"),
        (SavesNothing, "test_a_saved_state_goes_on_in_another_transform", "load_state_dict"),
        (SharesItself, "test_it_has_one_owner_and_a_clone_is_free", "second environment"),
    ],
)
def test_the_kit_fails_on_a_broken_transform(broken, check, says):
    class Kit(TransformKit):
        offline = True

        def make_transform(self):
            return broken()

    with pytest.raises((AssertionError, RLError), match=says):
        getattr(Kit(), check)()
