"""LossKit: the promises of a loss, as tests that a plugin's author subclasses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from rl_core.errors import KeyMissingError, SpecError
from rl_core.keys import flat_name
from rl_core.losses.module import LossModule
from rl_core.testing.kit import Kit

__all__ = ["LossKit"]


class LossKit(Kit, ABC):
    """Subclass it in a test file, name the subclass ``Test...`` and say how to build the loss and a batch for it.

    The losses must not depend on random numbers other than those that ``torch.manual_seed`` fixes for a batch shape.
    """

    gradients: ClassVar[dict[str, set[str]]]
    """For each ``loss_*`` entry the names of the networks whose weights it moves, and of the loss's own parameters that
    it moves (``"log_alpha"``); all others get no gradient."""

    network_outputs: ClassVar[set[str]] = {"value"}
    """Names of entries that a network writes: they are renamed there, not in the loss alone."""

    @abstractmethod
    def make_loss(self, **options: Any) -> LossModule:
        """The loss, with small networks; ``options`` (``reduction``) go to its constructor."""

    @abstractmethod
    def make_batch(self) -> TensorDict:
        """A complete batch [B], B >= 4, of independent rows."""

    def run(self, loss: LossModule, batch: TensorDictBase) -> TensorDictBase:
        """The losses, with the generator in a fixed state."""
        torch.manual_seed(0)
        return loss(batch)

    def losses(self, loss: LossModule, batch: TensorDictBase) -> dict[str, torch.Tensor]:
        """The entries that are to be added up."""
        result = self.run(loss, batch)
        return {key: result.get(key) for key in result.keys() if key.startswith("loss")}  # noqa: SIM118 (no dict)

    def test_it_returns_its_out_keys_as_finite_scalars(self) -> None:
        loss = self.make_loss()
        result = self.run(loss, self.make_batch())
        assert set(result.keys()) == set(loss.out_keys)
        for key, value in result.items():
            assert value.shape == (), f"{key} has shape {list(value.shape)} under reduction='mean'"
            assert value.isfinite().all(), f"{key} is {value}"

    def test_logs_are_detached_and_losses_are_not(self) -> None:
        for key, value in self.run(self.make_loss(), self.make_batch()).items():
            assert value.requires_grad == key.startswith("loss"), f"{key}: requires_grad is {value.requires_grad}"

    def test_each_loss_moves_its_networks_and_no_other(self) -> None:
        loss, batch = self.make_loss(), self.make_batch()
        assert set(self.losses(loss, batch)) == set(self.gradients), "gradients must name every loss_* entry"
        networks, own = dict(loss.named_children()), dict(loss.named_parameters(recurse=False))
        for key, names in self.gradients.items():
            loss.zero_grad()
            self.losses(loss, batch)[key].backward()
            weights = {name: [own[name]] if name in own else list(networks[name].parameters()) for name in names}
            allowed = {id(p) for parameters in weights.values() for p in parameters}
            for name, parameters in weights.items():
                assert any(_moved(p) for p in parameters), f"{key} does not reach {name}"
            for name, parameter in loss.named_parameters():
                assert id(parameter) in allowed or not _moved(parameter), f"{key} reaches {name}"

    def test_parameters_are_trainable_and_listed_once(self) -> None:
        parameters = list(self.make_loss().parameters())
        assert len({id(p) for p in parameters}) == len(parameters)
        assert all(p.requires_grad for p in parameters)

    def test_the_batch_is_left_alone(self) -> None:
        # A loss writes at most its priorities.
        batch = self.make_batch()
        before = batch.clone()
        loss = self.make_loss()
        self.run(loss, batch)
        written = {loss.path("priority")} if "priority" in loss.key_names() else set()
        assert _leaves(batch).keys() - written == _leaves(before).keys() - written
        for key, value in _leaves(before).items():
            assert key in written or torch.equal(_leaves(batch)[key], value), f"{key} was changed"

    def test_reductions_agree(self) -> None:
        losses = {name: self.make_loss(reduction=name) for name in ("mean", "sum", "none")}
        for name in ("sum", "none"):
            losses[name].load_state_dict(losses["mean"].state_dict())
        batch = self.make_batch()
        rows = self.losses(losses["none"], batch)
        for key, value in self.losses(losses["mean"], batch).items():
            assert rows[key].shape[:1] == batch.batch_size, f"{key} under reduction='none' has no row dimension"
            torch.testing.assert_close(value, rows[key].mean())
        for key, value in self.losses(losses["sum"], batch).items():
            torch.testing.assert_close(value, rows[key].sum())

    def test_masked_rows_do_not_count(self) -> None:
        loss, batch = self.make_loss(), self.make_batch()
        valid = torch.arange(batch.batch_size[0]) % 3 != 1
        expected = self.losses(loss, batch[valid])
        for value in _leaves(batch).values():
            if value.is_floating_point():
                value[~valid] = 100.0
        batch.set(loss.path("mask"), valid)
        for key, value in self.losses(loss, batch).items():
            torch.testing.assert_close(value, expected[key])

    def test_renamed_entries_give_the_same_losses(self) -> None:
        loss, batch = self.make_loss(), self.make_batch()
        expected = self.losses(loss, batch)
        for name in loss.key_names():
            if name in self.network_outputs or batch.get(loss.path(name), None) is None:
                continue
            old = loss.path(name)
            loss.set_keys(**{name: f"renamed_{name}"})
            batch.rename_key_(old, loss.path(name))
        for key, value in self.losses(loss, batch).items():
            torch.testing.assert_close(value, expected[key])
        loss.set_keys(**dict.fromkeys(loss.key_names()))
        assert loss.tensor_keys == loss.default_keys

    def test_an_unknown_name_is_refused(self) -> None:
        try:
            self.make_loss().set_keys(no_such_entry="x")
        except SpecError as error:
            assert "no_such_entry" in str(error)
        else:
            raise AssertionError("set_keys(no_such_entry=...) passed")

    def test_a_missing_entry_is_named(self) -> None:
        loss = self.make_loss()
        for key in loss.in_keys:
            batch = self.make_batch()
            if batch.get(key, None) is None:
                continue
            try:
                self.run(loss, batch.exclude(key))
            except KeyMissingError as error:
                assert flat_name(key, '", "') in str(error), f"the error does not name {key!r}: {error}"
                return
        raise AssertionError("no in_key was missed when it was absent")

    def test_keyword_tensors_give_the_same_losses(self) -> None:
        loss, batch = self.make_loss(), self.make_batch()
        expected = self.run(loss, batch)
        used = {*loss.in_keys, *(loss.path(name) for name in loss.key_names())}
        tensors = {flat_name(key): batch.get(key) for key in used if batch.get(key, None) is not None}
        torch.manual_seed(0)
        for key, value in zip(loss.out_keys, loss(**tensors), strict=True):
            torch.testing.assert_close(value, expected.get(key))

    def test_state_dict_restores_the_losses(self) -> None:
        first, second, batch = self.make_loss(), self.make_loss(), self.make_batch()
        with torch.no_grad():
            for parameter in first.parameters():
                parameter.add_(0.05)
        second.load_state_dict(first.state_dict())
        expected = self.losses(first, batch)
        for key, value in self.losses(second, batch).items():
            torch.testing.assert_close(value, expected[key])


def _moved(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and bool((parameter.grad != 0).any())


def _leaves(batch: TensorDictBase) -> dict[Any, torch.Tensor]:
    return {key: batch.get(key) for key in batch.keys(include_nested=True, leaves_only=True)}
