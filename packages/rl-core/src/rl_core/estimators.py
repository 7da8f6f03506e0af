"""The contract of value estimators: modules that write returns and advantages into a batch of trajectories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.keys import KeyedModule, entry

__all__ = ["EstimatorKeys", "ValueEstimator", "ValueEstimators", "resolve_estimator"]

_STEP = "The environment writes it; a collector keeps it."
_VALUE = "A value network writes it: give the estimator value_network=..., or run the network on the batch."


class ValueEstimators(Enum):
    """The estimators that a loss knows by name; each value is the name in ``registry.estimators``."""

    TD0 = "td0"
    TD1 = "td1"
    TDLambda = "td_lambda"
    GAE = "gae"
    VTrace = "vtrace"
    Retrace = "retrace"


@dataclass(frozen=True)
class EstimatorKeys:
    """The entries that every estimator reads and writes."""

    advantage: Key = "advantage"
    """Written: [*B, T, 1]."""
    value_target: Key = "value_target"
    """Written: [*B, T, 1]."""
    value: Key = field(default="state_value", metadata=entry(producer=_VALUE))
    """Written, or read where there is no network: [*B, T, 1], at the root and under "next"."""
    reward: Key = field(default="reward", metadata=entry(producer=_STEP, under_next=True))
    """Read under "next": [*B, T, 1]."""
    done: Key = field(default="done", metadata=entry(producer=_STEP, under_next=True))
    """Read under "next": bool [*B, T, 1]."""
    terminated: Key = field(default="terminated", metadata=entry(producer=_STEP, under_next=True))
    """Read under "next": bool [*B, T, 1]. Where it is absent every end counts as a termination."""
    steps_to_next_obs: Key = "steps_to_next_obs"
    """Read if present: how many steps lie between the observation and the next one; gamma is raised to it."""
    mask: Key = ("collector", "mask")
    """Read if present: bool [*B, T], True in rows that count."""


class ValueEstimator(KeyedModule, ABC):
    """Writes ``advantage`` and ``value_target`` into a batch of trajectories [*B, T] and returns it.

    The constructor takes ``value_network`` and its hyperparameters by keyword; ``default_hyperparameters`` holds those
    that a loss gives it unless the user says otherwise.
    """

    default_keys: ClassVar[Any] = EstimatorKeys()
    call_me: ClassVar[str] = "estimator"
    default_hyperparameters: ClassVar[dict[str, Any]] = {}
    needs_actor: ClassVar[bool] = False
    """Whether the constructor takes the policy to evaluate, as ``actor_network``; a loss then gives it its own."""

    @property
    @abstractmethod
    def in_keys(self) -> list[Key]:
        """The entries read."""

    @property
    @abstractmethod
    def out_keys(self) -> list[Key]:
        """The entries written."""

    @abstractmethod
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the advantage, the value target and the values used into the batch, and return it."""

    @abstractmethod
    def value_estimate(self, tensordict: TensorDictBase, *, next_value: Tensor | None = None) -> Tensor:
        """The value target alone; nothing is written.

        Args:
            tensordict: the batch.
            next_value: values of the next observations, e.g. from a target network; computed where None.

        Returns:
            The target, of the reward's shape.
        """


def resolve_estimator(
    value_type: Any,
    value_network: nn.Module | None,
    hyperparameters: dict[str, Any],
    *,
    actor_network: nn.Module | None = None,
) -> ValueEstimator:
    """Build the estimator that a user asked for.

    Args:
        value_type: a member of an enum of names, a registered name, a class, or an instance.
        value_network: the network to evaluate.
        hyperparameters: for the constructor, over the class's ``default_hyperparameters``.
        actor_network: the policy, for estimators that need it.

    Returns:
        The estimator.

    Raises:
        SpecError: it is none of these, or hyperparameters are given for an instance.
    """
    if isinstance(value_type, ValueEstimator):
        if hyperparameters:
            raise SpecError(f"{type(value_type).__name__} is built already; it takes no {sorted(hyperparameters)} here")
        return value_type
    if isinstance(value_type, Enum):
        value_type = value_type.value
    if isinstance(value_type, str):
        from rl_core.registry import registry  # here: only names need it

        value_type = registry.estimators.get(_NAMES.get(value_type.lower(), value_type.lower()))
    if not (isinstance(value_type, type) and issubclass(value_type, ValueEstimator)):
        raise SpecError(f"a value estimator is a name, a subclass of ValueEstimator or an instance; got {value_type!r}")
    build: Callable[..., ValueEstimator] = value_type
    networks = {"value_network": value_network} | ({"actor_network": actor_network} if value_type.needs_actor else {})
    return build(**{**networks, **value_type.default_hyperparameters, **hyperparameters})


_NAMES = {"tdlambda": "td_lambda", "v-trace": "vtrace"}
