"""LossModule: what a loss is to a training loop, whatever it computes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import ValueEstimator, resolve_estimator
from rl_core.exploration import ExplorationType, set_exploration_type
from rl_core.keys import Key, as_key, flat_name
from rl_core.losses.keys import KeyedModule
from rl_core.losses.networks import check_keyed
from rl_core.losses.reduction import check_reduction, reduce
from rl_core.losses.targets import TargetPair, frozen_copy, target_pairs

__all__ = ["LossKeys", "LossModule"]

_TARGET = "target_"
_VIEW = "_params"


@dataclass(frozen=True)
class LossKeys:
    """The entries that every loss may read; a loss extends it with its own."""

    mask: Key = ("collector", "mask")
    """bool [*B], True in rows that count."""


class LossModule(KeyedModule):
    """A TensorDict in, a TensorDict of losses out: add up the ``loss_*`` entries, call ``backward``, step.

    Entries that do not start with ``loss`` are detached logs. The batch is left alone, except that a loss which was
    asked for priorities writes them under its priority key. A subclass adds its networks
    with :meth:`add_network`, its coefficients with :meth:`add_scalar`, and implements :meth:`compute`; all key names
    stand in its ``default_keys``.

    Online networks stay ordinary submodules: ``loss.parameters()`` holds each trainable tensor once, and no target.
    ``loss.<name>_params`` and ``loss.target_<name>_params`` are TensorDicts of the live tensors, for scripts that build
    one optimiser per network.

    Args:
        reduction: "mean", "sum" or "none" (per-row losses).
    """

    default_keys: ClassVar[Any] = LossKeys()
    call_me: ClassVar[str] = "loss"
    default_value_estimator: ClassVar[type[ValueEstimator] | str | None] = None
    """What :meth:`make_value_estimator` builds without an argument."""
    value_network_name: ClassVar[str] = "critic_network"
    """The network that the value estimator evaluates."""

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = check_reduction(reduction)
        self._network_names: list[str] = []
        self._scalar_names: set[str] = set()
        self._selected: list[Key] | None = None
        self._in_keys: list[Key] | None = None
        self.targets_restored = False
        """Whether the targets are those of a checkpoint, which an updater that is built later leaves alone."""
        self.register_load_state_dict_post_hook(_note_restored_targets)
        # Not a submodule: it shares the loss's own networks, which would appear twice in state_dict.
        self.__dict__["_value_estimator"] = None

    # ---- for subclasses

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses (named ``loss_*``) and the detached logs of a batch. Nothing is written into the batch."""
        raise NotImplementedError(f"{type(self).__name__} must implement compute(batch) -> dict of tensors")

    def default_in_keys(self) -> list[Key]:
        """Every entry that :meth:`compute` always reads."""
        raise NotImplementedError(f"{type(self).__name__} must implement default_in_keys() -> list of keys")

    def default_out_keys(self) -> list[Key]:
        """Every entry that :meth:`compute` returns, in order."""
        raise NotImplementedError(f"{type(self).__name__} must implement default_out_keys() -> list of keys")

    def add_network(self, name: str, network: nn.Module, *, delayed: bool = False) -> None:
        """Register an online network and, if delayed, its target: a frozen deep copy named ``target_<name>``.

        Raises:
            SpecError: the network has no ``in_keys``, or has lazy parameters and a target is wanted.
        """
        for member in network if isinstance(network, nn.ModuleList) else [network]:
            check_keyed(member, type(self).__name__, name)
        self.add_module(name, network)
        self._network_names.append(name)
        if delayed:
            self.add_module(_TARGET + name, frozen_copy(network, name))

    def add_scalar(self, name: str, value: float | Sequence[float]) -> None:
        """Register a coefficient that may be assigned, ``loss.entropy_coeff = 0.005``; state_dict holds it."""
        self.register_buffer(name, torch.as_tensor(value, dtype=torch.get_default_dtype()))
        self._scalar_names.add(name)

    def target_or_online(self, name: str) -> nn.Module:
        """The target network of this name, or the online one where there is no target. Call it under ``no_grad``."""
        module = self._modules.get(_TARGET + name)
        if module is None:
            module = self._modules[name]
        assert module is not None
        return module

    def valid_rows(self, batch: TensorDictBase) -> Tensor | None:
        """The batch's mask of rows that count, or None."""
        return batch.get(self._paths["mask"], None)

    def reduce(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Per-row values under this loss's reduction, over valid rows."""
        return reduce(values, self.reduction, mask)

    # ---- for users

    def forward(self, tensordict: TensorDictBase | None = None, **tensors: Tensor) -> Any:
        """The losses of a batch.

        Args:
            tensordict: the batch.
            **tensors: instead of a batch, one tensor per key, named by joining the key with "_" (``next_reward``).

        Returns:
            A TensorDict with the out_keys; called with keywords, a tuple in the order of out_keys.
        """
        if tensordict is None:
            values = self._losses(self._batch_of(tensors))
            return tuple(values[flat_name(key)] for key in self.out_keys)
        if tensors:
            raise TypeError(f"{type(self).__name__} takes a TensorDict or keyword tensors, not both")
        return TensorDict(self._losses(tensordict), batch_size=[])

    @property
    def in_keys(self) -> list[Key]:
        """The entries that the loss reads."""
        return list(self._in_keys) if self._in_keys is not None else self.default_in_keys()

    @in_keys.setter
    def in_keys(self, keys: Sequence[Key]) -> None:
        self._in_keys = [as_key(key) for key in keys]

    @property
    def out_keys(self) -> list[Key]:
        """The entries that the loss returns."""
        return list(self._selected) if self._selected is not None else self.default_out_keys()

    @out_keys.setter
    def out_keys(self, keys: Sequence[Key]) -> None:
        self._selected = [as_key(key) for key in keys]

    def select_out_keys(self, *keys: Key) -> LossModule:
        """Return only these entries from now on.

        Raises:
            SpecError: the loss does not compute one of them.
        """
        offered = self.default_out_keys()
        for key in keys:
            if key not in offered:
                raise SpecError(f"{type(self).__name__} does not return {key!r}; it returns {offered}")
        self._selected = list(keys)
        return self

    def set_keys(self, **keys: Key | None) -> None:
        """Rename entries, in the value estimator as well; None means the default again."""
        super().set_keys(**keys)
        estimator = self.__dict__.get("_value_estimator")
        if estimator is not None:
            self._share_keys(estimator)

    def make_value_estimator(self, value_type: Any = None, **hyperparameters: Any) -> LossModule:
        """Choose how returns and advantages are estimated.

        Args:
            value_type: a member of ``ValueEstimators``, a registered name, a class, or an instance; None: this loss's
                default.
            **hyperparameters: for the estimator's constructor, e.g. ``gamma=0.99, lmbda=0.95``.

        Returns:
            The loss.
        """
        value_type = self.default_value_estimator if value_type is None else value_type
        if value_type is None:
            raise SpecError(f"{type(self).__name__} has no default value estimator: name one, e.g. ValueEstimators.TD0")
        network = self._modules.get(self.value_network_name)
        actor = self._modules.get("actor_network")
        estimator = resolve_estimator(value_type, network, hyperparameters, actor_network=actor)
        self._share_keys(estimator)
        self.__dict__["_value_estimator"] = estimator
        return self

    @property
    def value_estimator(self) -> ValueEstimator:
        """The estimator in use; the default one is built at the first request."""
        if self.__dict__["_value_estimator"] is None:
            self.make_value_estimator()
        return self.__dict__["_value_estimator"]

    @property
    def target_names(self) -> list[str]:
        """The names of the networks that have a target."""
        return [name for name in self._network_names if _TARGET + name in self._modules]

    def target_pairs(self) -> list[TargetPair]:
        """Every tensor that a target updater moves, with its source."""
        pairs = []
        for name in self.target_names:
            source, target = self._modules[name], self._modules[_TARGET + name]
            assert source is not None and target is not None
            pairs += list(target_pairs(source, target))
        return pairs

    # ---- inside

    def _losses(self, batch: TensorDictBase) -> dict[str, Tensor]:
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            values = self.compute(batch)
        if self._selected is None:
            return values
        return {flat_name(key): values[flat_name(key)] for key in self._selected}

    def _batch_of(self, tensors: dict[str, Tensor]) -> TensorDict:
        """A batch from keyword tensors; its batch size is the leading shape that they share."""
        keys = [*self.in_keys, *self._paths.values()]
        by_name = {flat_name(key): key for key in keys}
        shapes = [tensor.shape for tensor in tensors.values()]
        shared = 0
        while shapes and all(len(shape) > shared and shape[shared] == shapes[0][shared] for shape in shapes):
            shared += 1
        batch = TensorDict({}, batch_size=shapes[0][:shared] if shapes else [])
        for name, tensor in tensors.items():
            if name not in by_name:
                near = difflib.get_close_matches(name, by_name, n=1)
                guess = f" Did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{type(self).__name__} reads no {name!r}.{guess} It reads {', '.join(by_name)}.")
            batch.set(by_name[name], tensor)
        return batch

    def _share_keys(self, estimator: ValueEstimator) -> None:
        shared = set(self.key_names()) & set(estimator.key_names())
        estimator.set_keys(**{name: getattr(self._tensor_keys, name) for name in shared})

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            network = name.removesuffix(_VIEW)
            if network == name or network.removeprefix(_TARGET) not in modules:
                raise
        if network in modules:
            return TensorDict.from_module(modules[network], as_module=False)
        # No target of its own: the online weights, cut from the graph, stand in.
        return TensorDict.from_module(modules[network.removeprefix(_TARGET)], as_module=False).data

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_scalar_names", ()):
            old = self._buffers[name]
            assert old is not None
            # A new tensor: the old one may be saved in the graph of a loss that is still to be differentiated.
            value = torch.as_tensor(value, dtype=old.dtype, device=old.device).detach()
        super().__setattr__(name, value)


def _note_restored_targets(loss: Any, incompatible: Any) -> None:
    """After ``load_state_dict``: the targets are restored unless the state lacked some of them."""
    absent = [key for key in incompatible.missing_keys if any(name.startswith(_TARGET) for name in key.split("."))]
    loss.targets_restored = not absent
