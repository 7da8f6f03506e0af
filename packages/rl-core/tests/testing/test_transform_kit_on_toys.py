"""TransformKit passes on good toy transforms and fails, in the right check, on each one with a planted fault."""

from __future__ import annotations

import pytest
import torch

from rl_core import Bounded, RowProgram, Transform, Unbounded, reset_rows
from rl_core.errors import RLError
from rl_core.testing import TransformKit


class Twice(Transform):
    """Observations doubled, actions halved."""

    invertible = True

    def __init__(self, **keys):
        super().__init__(**(keys or {"in_keys": ["observation"], "in_keys_inv": ["action"]}))

    def _apply_transform(self, value):
        return value * 2

    def _inv_apply_transform(self, value):
        return value / 2

    def transform_action_spec(self, action_spec):
        if self.in_keys_inv:
            action_spec["action"] = Bounded(-2.0, 2.0, action_spec["action"].shape)
        return action_spec


class Streak(Transform):
    """Adds up observations in itself, row by row; works on TensorDicts only."""

    def __init__(self):
        super().__init__(in_keys=["observation"], out_keys=["streak"])
        self.register_buffer("total", torch.zeros(()))

    def _call(self, tensordict):
        value = tensordict.get("observation", None)
        if value is None:
            return super()._call(tensordict)
        self.total = self.total + value
        return tensordict.set("streak", self.total.clone())

    def _reset(self, tensordict, tensordict_reset):
        rows = reset_rows(tensordict)
        value = tensordict_reset.get("observation")
        old = torch.zeros_like(value) if self.total.ndim == 0 else self.total
        self.total = value.clone() if rows is None else torch.where(rows.unsqueeze(-1), value, old)
        return tensordict_reset.set("streak", self.total.clone())

    def _load_from_state_dict(self, state_dict, prefix, *args):
        self.total = torch.empty_like(state_dict[prefix + "total"])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def transform_observation_spec(self, observation_spec):
        observation_spec["streak"] = Unbounded(observation_spec["observation"].shape)
        return observation_spec


class Mean(Transform):
    """Takes the mean so far off the observations; the mean moves in training."""

    def __init__(self):
        super().__init__(in_keys=["observation"])
        self.register_buffer("sum", torch.zeros(()))
        self.register_buffer("n", torch.zeros(()))

    def _learns(self):
        return self.training

    def _call(self, tensordict):
        value = tensordict.get("observation", None)
        if value is not None and self._learns():
            self.sum += value.mean()
            self.n += 1
        return super()._call(tensordict)

    def _apply_transform(self, value):
        return value - self.sum / self.n.clamp_min(1)

    def forward(self, tensordict):
        return super().forward(tensordict)


class TestTwice(TransformKit):
    offline = True

    def make_transform(self):
        return Twice()


class TestStreak(TransformKit):
    statistics = ()  # the sum belongs to the episodes

    def make_transform(self):
        return Streak()


class TestMeanInEvaluation(TransformKit):
    statistics = ("sum", "n")

    def make_transform(self):
        return Mean().eval()


# -------------------------------------------------------------------- planted faults
class Undeclared(Transform):
    def _call(self, tensordict):
        return tensordict.set("extra", tensordict.get("observation"))


class AnotherDtype(Twice):
    """Writes float64 and says float32, in what is shown first."""

    def transform_observation_spec(self, observation_spec):
        observation_spec["observation"] = Unbounded(observation_spec["observation"].shape, dtype=torch.float64)
        return observation_spec


class WideActions(Twice):
    def transform_action_spec(self, action_spec):
        action_spec["action"] = Bounded(-20.0, 20.0, action_spec["action"].shape)
        return action_spec


class WrongInverse(Twice):
    def _inv_apply_transform(self, value):
        return value / 3


class SilentWhereMissing(Twice):
    def _call(self, tensordict):
        return super()._call(tensordict) if "observation" in tensordict else tensordict


class BareKeyError(Twice):
    def _call(self, tensordict):
        return tensordict.set("observation", tensordict["observation"] * 2)


class ForgetsOtherRows(Streak):
    def _reset(self, tensordict, tensordict_reset):
        return super()._reset(None, tensordict_reset)


class RowsDiffer(Twice):
    def row_program(self, before, after):
        program = super().row_program(before, after)

        def reset(t, mask):
            program.reset(t, mask)
            after["observation"][t] += 1

        return RowProgram(program.step, reset, program.before)


class LeaksAtEnds(Streak):
    """Offline it sums over ends, which it cannot see."""

    def forward(self, tensordict):
        held = tensordict.get("streak", None)
        start = 0 if held is None else held[:, :1]
        sums = tensordict["observation"].cumsum(1)
        tensordict["streak"] = sums + start
        tensordict["next", "streak"] = tensordict["streak"] + tensordict["next", "observation"]
        return tensordict


class AlwaysBeginsAnew(Transform):
    """Counts steps online from the root; offline it ignores where the first batch stopped."""

    def transform_observation_spec(self, observation_spec):
        observation_spec["count"] = Unbounded(observation_spec["observation"].shape)
        return observation_spec

    def transform_state_spec(self, state_spec):
        state_spec["count"] = Unbounded((3, 1))
        return state_spec

    def _reset(self, tensordict, tensordict_reset):
        return tensordict_reset.set("count", torch.zeros_like(tensordict_reset["observation"]))

    def _step(self, tensordict, next_tensordict):
        return next_tensordict.set("count", tensordict["count"] + 1)

    def forward(self, tensordict):
        done = tensordict["next", "done"]
        count, root = torch.zeros(3, 1), []
        for t in range(done.shape[1]):
            root.append(count)
            count = torch.where(done[:, t], 0, count + 1)
        tensordict["count"] = torch.stack(root, 1)
        tensordict["next", "count"] = tensordict["count"] + 1
        return tensordict


class SavesNothing(Mean):
    def _load_from_state_dict(self, *args):
        pass


class Shared(Mean):
    """Its clones learn into the same numbers."""

    def clone(self):
        twin = type(self)()
        twin.sum, twin.n = self.sum, self.n
        return twin


class SharesPlainAttributes(Streak):
    totals: list = []

    def _call(self, tensordict):
        tensordict = super()._call(tensordict)
        self.totals.append(1)
        return tensordict.set("streak", tensordict["streak"] + len(self.totals) * 0.01)


class LearnsInEvaluation(Mean):
    def _learns(self):
        return True


class LearnsOffline(Twice):
    """Frozen by steps in evaluation, not by stored data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, tensordict):
        self.n += 1
        return super().forward(tensordict)


class AnyOwner(Twice):
    def set_container(self, owner):
        self._owner = None
        super().set_container(owner)


FAULTS = [
    (Undeclared, "specs_say_what_is_written", "extra"),
    (AnotherDtype, "specs_say_what_is_written", "float32"),
    (AnotherDtype, "a_fake_step_has_the_keys_and_dtypes_of_a_real_one", "dtype"),
    (WideActions, "actions_reach_the_environment_legal", "became 'action' outside"),
    (WrongInverse, "the_inverse_undoes_the_map", "mapped back"),
    (SilentWhereMissing, "a_missing_entry_is_named", "said nothing"),
    (BareKeyError, "a_missing_entry_is_named", "bare KeyError"),
    (ForgetsOtherRows, "a_reset_of_one_row_leaves_the_others_alone", "another row"),
    (RowsDiffer, "rows_of_columns_are_the_same_as_tensordicts", "on columns"),
    (RowsDiffer, "rows_of_a_single_environment_are_the_same_as_tensordicts", "on columns"),
    (LeaksAtEnds, "stored_steps_give_what_the_environment_gave", "stored steps"),
    (AlwaysBeginsAnew, "a_second_batch_of_stored_steps_goes_on_from_the_first", "part 1 of stored steps"),
    (SavesNothing, "a_saved_state_goes_on_in_another_transform", "load_state_dict"),
    (Shared, "a_clone_has_its_own_state", "moved with its clone"),
    (SharesPlainAttributes, "a_clone_has_its_own_state", "after its clone was used"),
    (LearnsInEvaluation, "evaluation_freezes_the_statistics", "sum, n moved by step"),
    (LearnsOffline, "evaluation_freezes_the_statistics", "n moved by forward"),
    (AnyOwner, "it_has_one_owner_and_a_clone_is_free", "second environment"),
]


@pytest.mark.parametrize(("broken", "check", "says"), FAULTS)
def test_a_planted_fault_is_found_by_its_check(broken, check, says):
    class Kit(TransformKit):
        offline = broken in (LeaksAtEnds, AlwaysBeginsAnew, LearnsOffline)

        def make_transform(self):
            return broken()

    with pytest.raises((AssertionError, RLError), match=says):
        getattr(Kit(), f"test_{check}")()


def test_every_check_has_a_planted_fault():
    checks = {name for name in dir(TransformKit) if name.startswith("test_")}
    assert checks == {f"test_{check}" for _, check, _ in FAULTS}
