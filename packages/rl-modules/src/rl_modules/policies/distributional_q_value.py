"""Greedy actions from distributions of action values: fixed atoms, fixed quantiles, and quantiles on demand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.keys import Key, as_keys
from rl_core.specs import Composite, TensorSpec
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.projection import leaf_specs, spec_tree
from rl_modules.policies.q_value import masked_values, named_space, space_of, value_operator
from rl_modules.policies.safe_module import Keys, SafeModule, has_keys, named_module
from rl_modules.policies.sequential import SafeSequential

__all__ = [
    "DistributionalDQNnet",
    "DistributionalQValueActor",
    "DistributionalQValueModule",
    "ImplicitQuantileActor",
    "QuantileQValueActor",
    "QuantileQValueModule",
]


class _DistributionChoice(PolicyModule):
    """Takes the action whose value distribution has the largest mean."""

    def __init__(
        self,
        action_space: str | TensorSpec | None = None,
        action_value_key: Key | None = None,
        action_mask_key: Key | None = None,
        out_keys: Keys | None = None,
        spec: TensorSpec | None = None,
    ) -> None:
        super().__init__()
        if isinstance(action_space, TensorSpec):
            spec, action_space = action_space, None
        value_key = "action_value" if action_value_key is None else action_value_key
        keys = ["action", value_key] if out_keys is None else as_keys(out_keys)
        if len(keys) != 2:
            raise ValueError(f"{type(self).__name__} writes action and action values; got out_keys={keys}.")
        self._set_keys([value_key] if action_mask_key is None else [value_key, action_mask_key], keys)
        self._specs = leaf_specs(spec, keys, self.__name__, safe=False)
        leaf = self._specs.get(self.out_keys[0])
        self.action_space = space_of(leaf) if action_space is None else named_space(action_space)
        if self.action_space == "mult_one_hot":
            raise ValueError(f"{type(self).__name__} chooses one_hot or categorical actions; got mult_one_hot.")
        self.var_nums: list[int] = []
        self._dtype = torch.int64 if leaf is None or leaf.dtype is None else leaf.dtype

    @property
    def spec(self) -> Composite | None:
        """The spec of the action, as a Composite."""
        return spec_tree(self._specs)

    @abstractmethod
    def expected(self, values: Tensor) -> Tensor:
        """The means ``[*B, n]`` of distributions ``[*B, K, n]``."""

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        values = inputs[0]
        ranked = self.expected(values)
        if len(inputs) > 1:
            ranked = masked_values(ranked, inputs[1])
        action = ranked.argmax(-1)
        if self.action_space == "one_hot":
            action = F.one_hot(action, values.shape[-1])
        return action.to(self._dtype), values


class DistributionalQValueModule(_DistributionChoice):
    r"""Takes the action of the largest expected value, ``sum_i z_i p_i(s, a)``. Of equal ones the first wins.

    Args:
        action_space: "one_hot" or "categorical"; read from the spec unless given.
        support: the K atoms z, ``[K]``.
        action_value_key: log-probabilities of the atoms ``[*B, K, n]``, "action_value" unless given.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; none unless given.
        out_keys: action and log-probabilities; "action" and "action_value" unless given.
        var_nums: accepted for compatibility.
        spec: spec of the action, a leaf or a Composite.
        safe: accepted for compatibility; the greedy action is always legal.

    Raises:
        ValueError: the action space is neither given nor told by the spec, or the support is no row of atoms.

    Bellemare et al., 2017, A Distributional Perspective on Reinforcement Learning, algorithm 1, arXiv 1707.06887.
    """

    support: Tensor

    def __init__(
        self,
        action_space: str | TensorSpec | None = None,
        support: Tensor | None = None,
        action_value_key: Key | None = None,
        action_mask_key: Key | None = None,
        out_keys: Keys | None = None,
        var_nums: Any = None,
        spec: TensorSpec | None = None,
        safe: bool = False,
    ) -> None:
        super().__init__(action_space, action_value_key, action_mask_key, out_keys, spec)
        if support is None or support.ndim != 1:
            found = "none" if support is None else list(support.shape)
            raise ValueError(f"{type(self).__name__} needs support=torch.linspace(v_min, v_max, K); got {found}.")
        self.register_buffer("support", support.detach().clone().to(torch.get_default_dtype()))

    def expected(self, values: Tensor) -> Tensor:
        if values.ndim < 2 or values.shape[-2] != self.support.shape[0]:
            raise ValueError(
                f"{type(self).__name__}: {self.in_keys[0]!r} {list(values.shape)} must be [*B, K, n] for the "
                f"{self.support.shape[0]} atoms of the support."
            )
        return (values.exp() * self.support.unsqueeze(-1)).sum(-2)


class QuantileQValueModule(_DistributionChoice):
    """Takes the action of the largest mean of quantiles. Of equal ones the first wins.

    Args:
        action_space: "one_hot" or "categorical"; read from the spec unless given.
        action_value_key: quantiles ``[*B, N, n]``, "action_value" unless given.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; none unless given.
        out_keys: action and quantiles; "action" and "action_value" unless given.
        spec: spec of the action, a leaf or a Composite.

    Raises:
        ValueError: the action space is neither given nor told by the spec.

    Dabney et al., 2017, Distributional Reinforcement Learning with Quantile Regression, algorithm 1, arXiv 1710.10044.
    """

    def expected(self, values: Tensor) -> Tensor:
        return values.mean(-2)


class DistributionalDQNnet(PolicyModule):
    """Turns scores of atoms into log-probabilities: a log-softmax over the atoms.

    Args:
        in_keys: the scores ``[*B, K, n]``, "action_value" unless given.
        out_keys: the log-probabilities, same shape, "action_value" unless given.
    """

    def __init__(self, *, in_keys: Keys | None = None, out_keys: Keys | None = None) -> None:
        super().__init__()
        self._set_keys(as_keys(in_keys or "action_value"), as_keys(out_keys or "action_value"))

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        scores = inputs[0]
        if scores.ndim < 2:
            raise ValueError(
                f"{type(self).__name__}: {self.in_keys[0]!r} must be [*B, K, n]; got {list(scores.shape)}. End the "
                "network with nn.Unflatten(-1, (K, n)), or MLP(out_features=(K, n))."
            )
        return (scores.log_softmax(-2),)


class DistributionalQValueActor(SafeSequential):
    """A network that writes value distributions on fixed atoms, followed by the greedy choice.

    Args:
        module: the network, plain or with keys; its output is ``[*B, K, n]``.
        support: the K atoms, ``[K]``: ``torch.linspace(v_min, v_max, K)``.
        in_keys: its inputs, "observation" unless given; for a plain network.
        spec: spec of the action, a leaf or a Composite.
        safe: accepted for compatibility.
        var_nums: accepted for compatibility.
        action_space: "one_hot" or "categorical"; read from the spec unless given.
        action_value_key: key of the log-probabilities; the module's own out key where it has one.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; none unless given.
        make_log_softmax: the network's output are scores; False: it is log-probabilities already.

    >>> actor = DistributionalQValueActor(
    ...     nn.Sequential(nn.Linear(3, 10), nn.Unflatten(-1, (5, 2))), torch.linspace(-1, 1, 5), action_space="one_hot"
    ... )
    >>> actor.out_keys
    ['action', 'action_value']
    """

    def __init__(
        self,
        module: Callable[..., Any],
        support: Tensor,
        in_keys: Keys | None = None,
        spec: TensorSpec | None = None,
        safe: bool = False,
        var_nums: Any = None,
        action_space: str | TensorSpec | None = None,
        action_value_key: Key | None = None,
        action_mask_key: Key | None = None,
        make_log_softmax: bool = True,
    ) -> None:
        network, key = _network_and_key(module, in_keys, action_value_key)
        if make_log_softmax:
            network = SafeSequential(network, DistributionalDQNnet(in_keys=[key], out_keys=[key]))
        super().__init__(
            network, DistributionalQValueModule(action_space, support, key, action_mask_key, ["action", key], spec=spec)
        )

    def get_value_operator(self) -> nn.Module:
        """The network alone, without the greedy choice: what losses evaluate. Nothing is copied."""
        return value_operator(self)


class QuantileQValueActor(SafeSequential):
    """A network that writes quantiles of action values, followed by the greedy choice.

    Args:
        module: the network, plain or with keys; its output is ``[*B, N, n]``.
        in_keys: its inputs, "observation" unless given; for a plain network.
        spec: spec of the action, a leaf or a Composite.
        action_space: "one_hot" or "categorical"; read from the spec unless given.
        action_value_key: key of the quantiles; the module's own out key where it has one.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; none unless given.
    """

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: Keys | None = None,
        *,
        spec: TensorSpec | None = None,
        action_space: str | TensorSpec | None = None,
        action_value_key: Key | None = None,
        action_mask_key: Key | None = None,
    ) -> None:
        network, key = _network_and_key(module, in_keys, action_value_key)
        super().__init__(network, QuantileQValueModule(action_space, key, action_mask_key, ["action", key], spec))

    def get_value_operator(self) -> nn.Module:
        """The network alone, without the greedy choice: what losses evaluate. Nothing is copied."""
        return value_operator(self)


class ImplicitQuantileActor(SafeSequential):
    """An implicit quantile network that acts by the mean of its quantiles at evenly spaced levels.

    A loss evaluates the network itself, at levels of its own, which it hands over under ``taus_key``.

    Args:
        module: the network, called with observations, then levels ``[*B, N]`` or ``[N]``, e.g.
            :class:`ImplicitQuantileNet`.
        in_keys: the observations, "observation" unless given.
        num_taus: number of levels for acting: the midpoints of as many equal parts of [0, 1].
        taus_key: key under which a loss hands over its levels.
        spec: spec of the action, a leaf or a Composite.
        action_space: "one_hot" or "categorical"; read from the spec unless given.
        action_value_key: key of the quantiles.
        action_mask_key: bool ``[*B, n]``, True where an action is allowed; none unless given.

    Dabney et al., 2018, Implicit Quantile Networks for Distributional Reinforcement Learning, eq. 2, arXiv 1806.06923.
    """

    def __init__(
        self,
        module: nn.Module,
        in_keys: Keys | None = None,
        *,
        num_taus: int = 32,
        taus_key: Key = "taus",
        spec: TensorSpec | None = None,
        action_space: str | TensorSpec | None = None,
        action_value_key: Key = "action_value",
        action_mask_key: Key | None = None,
    ) -> None:
        observations = as_keys("observation" if in_keys is None else in_keys)
        network = SafeModule(module, [*observations, taus_key], [action_value_key])
        greedy = QuantileQValueModule(
            action_space, action_value_key, action_mask_key, ["action", action_value_key], spec
        )
        super().__init__(_AtFixedLevels(network, num_taus), greedy)

    def get_value_operator(self) -> nn.Module:
        """The network alone, which reads observations and levels: what losses evaluate. Nothing is copied."""
        part = value_operator(self)
        return part if part is self else part.network  # type: ignore[return-value]


class _AtFixedLevels(PolicyModule):
    """Calls an implicit quantile network at evenly spaced levels."""

    levels: Tensor

    def __init__(self, network: SafeModule, num_taus: int) -> None:
        super().__init__()
        if num_taus < 1:
            raise ValueError(f"ImplicitQuantileActor needs num_taus of at least 1; got {num_taus}.")
        self._set_keys(network.in_keys[:-1], network.out_keys)
        self.network = network
        self.register_buffer("levels", (torch.arange(num_taus) + 0.5) / num_taus, persistent=False)

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        return self.network.forward_tensors(*inputs, self.levels)


def _network_and_key(module: Any, in_keys: Keys | None, action_value_key: Key | None) -> tuple[Any, Key]:
    """The keyed network, and the key of its output."""
    if action_value_key is None:
        written = module.out_keys if has_keys(module) else []
        action_value_key = written[0] if len(written) == 1 else "action_value"
    return named_module(module, ["observation"] if in_keys is None else in_keys, [action_value_key]), action_value_key
