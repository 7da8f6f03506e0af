"""EstimatorKit: the promises of a value estimator, as tests that a plugin's author subclasses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key, join
from rl_core.testing.kit import Kit

__all__ = ["EstimatorKit"]


class EstimatorKit(Kit, ABC):
    """Subclass it in a test file, name the subclass ``Test...`` and say how to build the estimator.

    The batch has three environments and six steps: row 0 is truncated at step 2, row 1 terminates at step 2, row 2 has
    no end. A network with one input, "observation", gives the values.
    """

    @abstractmethod
    def make_estimator(self, value_network: nn.Module, **options: Any) -> ValueEstimator:
        """The estimator on this network; ``options`` (``differentiable``) go to its constructor."""

    def make_network(self) -> nn.Module:
        """A value network over "observation"."""
        torch.manual_seed(1)
        return TensorDictModule(nn.Linear(2, 1), in_keys=["observation"], out_keys=["state_value"])

    def make_batch(self) -> TensorDict:
        """The batch, [3, 6]."""
        torch.manual_seed(2)
        truncated, terminated = torch.zeros(2, 3, 6, 1, dtype=torch.bool)
        truncated[0, 2] = terminated[1, 2] = True
        following = {
            "observation": torch.randn(3, 6, 2),
            "reward": torch.randn(3, 6, 1),
            "done": truncated | terminated,
            "terminated": terminated,
            "truncated": truncated,
        }
        return TensorDict({"observation": torch.randn(3, 6, 2), "next": following}, batch_size=[3, 6])

    def target(self, batch: TensorDict, **options: Any) -> Tensor:
        """The value target of a batch."""
        estimator = self.make_estimator(self.make_network(), **options)
        return estimator(batch.clone()).get(estimator.path("value_target"))

    def changed(self, key: Key, row: int, step: int) -> Tensor:
        """In which steps of a row, [6], the target moves when one entry does."""
        batch = self.make_batch()
        before = self.target(batch)
        batch.get(key)[row, step] += 10.0
        return (self.target(batch) - before).abs()[row, :, 0] > 1e-6

    def test_it_writes_its_out_keys_into_the_batch_and_returns_it(self) -> None:
        estimator, batch = self.make_estimator(self.make_network()), self.make_batch()
        before = batch.clone()
        assert estimator(batch) is batch
        for key in estimator.out_keys:
            assert batch.get(key).shape == (3, 6, 1), f"{key} has shape {list(batch.get(key).shape)}"
        for key in before.keys(include_nested=True, leaves_only=True):
            assert torch.equal(batch.get(key), before.get(key)), f"{key} was changed"

    def test_a_truncation_bootstraps(self) -> None:
        assert self.changed(("next", "observation"), 0, 2)[2]

    def test_a_termination_does_not_bootstrap(self) -> None:
        assert not self.changed(("next", "observation"), 1, 2).any()

    def test_the_last_step_bootstraps_without_an_end(self) -> None:
        assert self.changed(("next", "observation"), 2, 5)[5]

    def test_nothing_crosses_an_end(self) -> None:
        for row in (0, 1):
            moved = self.changed(("next", "reward"), row, 3)
            assert moved[3] and not moved[:3].any(), f"a reward after the end of row {row} reaches steps before it"

    def test_no_gradient_flows_unless_it_is_asked_for(self) -> None:
        assert not self.target(self.make_batch()).requires_grad
        assert self.target(self.make_batch(), differentiable=True).requires_grad

    def test_value_estimate_is_the_target_and_writes_nothing(self) -> None:
        estimator, batch = self.make_estimator(self.make_network()), self.make_batch()
        keys = set(batch.keys(include_nested=True))
        torch.testing.assert_close(estimator.value_estimate(batch), self.target(batch))
        assert set(batch.keys(include_nested=True)) == keys

    def test_end_flags_that_are_not_bool_are_refused(self) -> None:
        for name in ("done", "terminated"):
            batch = self.make_batch()
            batch.set(("next", name), batch.get(("next", name)).float())
            try:
                self.target(batch)
            except SpecError as error:
                assert name in str(error)
            else:
                raise AssertionError(f"a float {name} passed")

    def test_renamed_entries_give_the_same_target(self) -> None:
        estimator, batch = self.make_estimator(self.make_network()), self.make_batch()
        expected = self.target(batch)
        for name in ("reward", "done", "terminated"):
            old = estimator.path(name)
            estimator.set_keys(**{name: f"my_{name}"})
            batch.rename_key_(old, estimator.path(name))
        estimator.set_keys(advantage="my_advantage", value_target="my_target")
        torch.testing.assert_close(estimator(batch).get("my_target"), expected)
        assert {"my_advantage", join("next", "my_reward")} <= set(batch.keys(include_nested=True))
