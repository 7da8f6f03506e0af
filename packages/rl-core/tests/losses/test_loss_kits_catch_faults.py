"""LossKit and EstimatorKit fail on subjects that break a promise, and pass on one that keeps them."""

import inspect

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import RLError
from rl_core.estimators import ValueEstimator
from rl_core.losses import LossModule, call_on_tensors
from rl_core.testing import EstimatorKit, LossKit


def checks(kit):
    return [method for name, method in inspect.getmembers(kit, inspect.ismethod) if name.startswith("test_")]


def failing(kit):
    """The names of the checks that fail."""
    names = []
    for check in checks(kit):
        try:
            check()
        except (AssertionError, RLError, RuntimeError):
            names.append(check.__name__)
    return names


def keyed(key):
    return TensorDictModule(nn.Linear(2, 1), in_keys=["observation"], out_keys=[key])


class SquareLoss(LossModule):
    """|net(observation)|^2 per row: keeps every promise."""

    def __init__(self, **options):
        super().__init__(**options)
        torch.manual_seed(0)
        self.add_network("first", keyed("a"))
        self.add_network("second", keyed("b"))

    def default_in_keys(self):
        return ["observation"]

    def default_out_keys(self):
        return ["loss_first", "size"]

    def compute(self, batch):
        if batch.get("observation", None) is None:
            raise self.missing_observation(batch)
        value = call_on_tensors(self.first, [batch["observation"]], "a", batch.batch_size)
        rows = value.square().squeeze(-1)
        return {"loss_first": self.reduce(rows, self.valid_rows(batch)), "size": rows.detach().mean()}

    def missing_observation(self, batch):
        from rl_core.losses import missing_key

        return missing_key("SquareLoss", "observation", batch, "")


class SquareKit(LossKit):
    gradients = {"loss_first": {"first"}}
    subject = SquareLoss

    def make_loss(self, **options):
        return self.subject(**options)

    def make_batch(self):
        torch.manual_seed(1)
        return TensorDict({"observation": torch.randn(8, 2)}, [8])


def kit_of(loss_class):
    kit = SquareKit()
    kit.subject = loss_class
    return kit


class Writes(SquareLoss):
    def compute(self, batch):
        values = super().compute(batch)
        batch["td_error"] = torch.zeros(8)
        return values


class IgnoresMask(SquareLoss):
    def valid_rows(self, batch):
        return None


class LeaksGradient(SquareLoss):
    def compute(self, batch):
        values = super().compute(batch)
        other = call_on_tensors(self.second, [batch["observation"]], "b", batch.batch_size)
        return {**values, "loss_first": values["loss_first"] + other.mean()}


class AttachedLog(SquareLoss):
    def compute(self, batch):
        values = super().compute(batch)
        return {**values, "size": values["loss_first"].mean() * 1.0}


class AlwaysMean(SquareLoss):
    def reduce(self, values, mask=None):
        return values.mean() if mask is None else values[mask].mean()


class UndeclaredOutput(SquareLoss):
    def compute(self, batch):
        return {**super().compute(batch), "extra": torch.zeros(())}


def test_a_good_loss_passes():
    assert failing(kit_of(SquareLoss)) == []


@pytest.mark.parametrize(
    ("bad", "check"),
    [
        (Writes, "test_the_batch_is_left_alone"),
        (IgnoresMask, "test_masked_rows_do_not_count"),
        (LeaksGradient, "test_each_loss_moves_its_networks_and_no_other"),
        (AttachedLog, "test_logs_are_detached_and_losses_are_not"),
        (AlwaysMean, "test_reductions_agree"),
        (UndeclaredOutput, "test_it_returns_its_out_keys_as_finite_scalars"),
    ],
)
def test_a_bad_loss_fails_where_it_is_bad(bad, check):
    assert check in failing(kit_of(bad))


class OneStep(ValueEstimator):
    """r + gamma (1 - m) V': keeps every promise."""

    def __init__(self, *, value_network, differentiable=False):
        super().__init__()
        self.value_network, self.differentiable = value_network, differentiable

    @property
    def in_keys(self):
        return [self.path("reward"), self.path("done"), self.path("terminated"), ("next", "observation")]

    @property
    def out_keys(self):
        return [self.path("advantage"), self.path("value_target")]

    def blocked(self, batch):
        return self.read(batch, "terminated")

    def value_estimate(self, tensordict, *, next_value=None):
        from rl_core.errors import SpecError

        for name in ("done", "terminated"):
            if self.read(tensordict, name).dtype != torch.bool:
                raise SpecError(f"{name} must be bool")
        with torch.set_grad_enabled(self.differentiable):
            observation = tensordict["next", "observation"]
            value = call_on_tensors(self.value_network, [observation], "state_value", tensordict.batch_size)
            return self.read(tensordict, "reward") + 0.9 * value.masked_fill(self.blocked(tensordict), 0)

    def forward(self, tensordict):
        target = self.value_estimate(tensordict)
        tensordict.set(self.path("advantage"), target)
        return tensordict.set(self.path("value_target"), target)


class MergesFlags(OneStep):
    def blocked(self, batch):
        return self.read(batch, "done")


class BootstrapsAlways(OneStep):
    def blocked(self, batch):
        return torch.zeros_like(self.read(batch, "done"))


class CrossesEnds(OneStep):
    def value_estimate(self, tensordict, *, next_value=None):
        reward = self.read(tensordict, "reward")
        return super().value_estimate(tensordict) + reward.flip(1).cumsum(1).flip(1)


class KeepsGraph(OneStep):
    def __init__(self, **options):
        super().__init__(**options)
        self.differentiable = True


class Copies(OneStep):
    def forward(self, tensordict):
        return super().forward(tensordict.clone())


def estimator_kit(kind):
    class Kit(EstimatorKit):
        def make_estimator(self, value_network, **options):
            return kind(value_network=value_network, **options)

    return Kit()


def test_a_good_estimator_passes():
    assert failing(estimator_kit(OneStep)) == []


@pytest.mark.parametrize(
    ("bad", "check"),
    [
        (MergesFlags, "test_a_truncation_bootstraps"),
        (BootstrapsAlways, "test_a_termination_does_not_bootstrap"),
        (CrossesEnds, "test_nothing_crosses_an_end"),
        (KeepsGraph, "test_no_gradient_flows_unless_it_is_asked_for"),
        (Copies, "test_it_writes_its_out_keys_into_the_batch_and_returns_it"),
    ],
)
def test_a_bad_estimator_fails_where_it_is_bad(bad, check):
    assert check in failing(estimator_kit(bad))
