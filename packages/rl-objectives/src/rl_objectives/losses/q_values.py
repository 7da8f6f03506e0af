"""What the value-based losses share: their entries, what they read of a batch, and targets of one or several steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key, as_key, join
from rl_core.losses.keys import entry, quoted
from rl_core.specs import TensorSpec
from rl_objectives.estimators.td import TD0Estimator
from rl_objectives.estimators.trajectories import raised_discount
from rl_objectives.functional.q_learning import check_action_mask
from rl_objectives.losses.greedy import ActionSpace, ValuePart, action_space_of
from rl_objectives.losses.replay import ReplayKeys, ReplayLoss

__all__ = ["QKeys", "QLoss", "Step", "mask_rows"]


@dataclass(frozen=True)
class QKeys(ReplayKeys):
    """The entries of the value-based losses."""

    action_value: Key = "action_value"
    """What the network writes: [*B, n] values of n actions, or [*B, K, n] distributions of K numbers each."""
    value: Key = "chosen_action_value"
    """[*B, 1]: what a greedy policy writes beside it; not read here."""
    action_mask: Key = field(default="action_mask", metadata=entry(under_next=True))
    """bool [*B, n], True where an action is allowed; read under "next", if present."""


class Step(NamedTuple):
    """The transition of each row, as the one-step target needs it."""

    reward: Tensor
    """[*B, 1]."""
    terminated: Tensor
    """bool [*B, 1]."""
    discount: float | Tensor
    """Gamma, or [*B, 1]."""


class QLoss(ReplayLoss):
    """Base of the losses on action values: reads the batch, weighs rows, writes priorities.

    Each row's priority is written into the batch under ``tensor_keys.priority``. Rows outside of the batch's mask do
    not count. Next states are evaluated by the target network, without gradient. Importance weights, where the batch
    has them, multiply the rows' losses before the reduction (``mean(w l)``).

    Args:
        value_network: a module with ``in_keys`` that writes ``tensor_keys.action_value``, with or without a greedy
            choice behind it (``QValueActor``).
        delay_value: evaluate next states by a target network, moved by SoftUpdate or HardUpdate.
        double_dqn: choose next actions by the online network, evaluate them by the target.
        gamma: discount per step; the same as ``loss.make_value_estimator(gamma=gamma)``.
        action_space: "one_hot", "categorical", "mult_one_hot" or a spec; read from the network, else from the shape of
            the actions, where None.
        reduction: "mean", "sum" or "none" (per row).
        use_prioritized_weights: True: the batch must have importance weights; False: they are ignored; "auto": used if
            present.
        priority_type: "abs": priorities are absolute errors; "squared": their squares.

    Raises:
        SpecError: an option is not admitted.
    """

    default_keys: ClassVar[Any] = QKeys()
    value_network_name: ClassVar[str] = "value_network"
    value_dims: ClassVar[int] = 1
    """Dimensions of the action values beyond the batch's: 1 for values, 2 for distributions."""

    def __init__(
        self,
        value_network: nn.Module,
        *,
        delay_value: bool = True,
        double_dqn: bool = False,
        gamma: float | None = None,
        action_space: str | TensorSpec | None = None,
        reduction: str = "mean",
        use_prioritized_weights: bool | str = "auto",
        priority_type: str = "abs",
    ) -> None:
        super().__init__(
            reduction=reduction, use_prioritized_weights=use_prioritized_weights, priority_type=priority_type
        )
        if double_dqn and not delay_value:
            raise SpecError(f"{type(self).__name__}: double_dqn needs a target network, delay_value=True")
        self.add_network("value_network", value_network, delayed=delay_value)
        self.space = action_space_of(action_space, value_network, type(self).__name__)
        if self.space.groups is not None and self.value_dims > 1:
            raise SpecError(f"{type(self).__name__} needs 'one_hot' or 'categorical' actions; got 'mult_one_hot'")
        self.double_dqn = double_dqn
        self.delay_value = delay_value
        self._value_part = ValuePart(value_network)
        self._checked = False
        if gamma is not None:
            self.make_value_estimator(gamma=gamma)

    def set_keys(self, **keys: Key | None) -> None:
        super().set_keys(**keys)
        self._checked = False

    def check_estimator(self, estimator: ValueEstimator) -> None:
        """Raise SpecError where this loss cannot use the estimator: distributions have one-step targets only."""
        if not isinstance(estimator, TD0Estimator):
            raise SpecError(
                f"{type(self).__name__} moves whole distributions, one step at a time: it takes TD0, not "
                f"{type(estimator).__name__}. For longer steps store n-step data."
            )

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self._modules["value_network"].in_keys]  # type: ignore[union-attr]
        inputs = [key for key in inputs if key != self.space.mask]
        step = [self.path(name) for name in ("action", "reward", "done", "terminated")]
        masked = [self.path("action_mask")] if self.space.mask is not None else []
        return list(dict.fromkeys([*inputs, *(join("next", key) for key in inputs), *step, *masked]))

    def default_out_keys(self) -> list[Key]:
        return ["loss", "td_error", "pred_value", "target_value"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The losses and logs of a batch [*B]."""
        mask = self.valid_rows(batch)
        values = self.action_values("value_network", batch)
        action = self.read(batch, "action")
        if not self._checked:
            self.check_once(values, action)
        return self.losses(batch, values, action, mask)

    @abstractmethod
    def losses(self, batch: TensorDictBase, values: Tensor, action: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """The losses, from the values of all actions, the stored actions and the mask of rows that count."""

    # ---- parts that subclasses put together

    def action_values(self, name: str, batch: TensorDictBase, under: Key | None = None) -> Tensor:
        """The values of all actions, [*B, n] or [*B, K, n], by the network of that name."""
        part, key = self._value_part.of(self._modules[name]), self._paths["action_value"]
        return self.output_of(part, key, batch, under)

    def target_name(self) -> str:
        """The network that evaluates next states."""
        return "target_value_network" if self.delay_value else "value_network"

    def read_step(self, batch: TensorDictBase, taken: Tensor) -> Step:
        """Reward, termination and discount of each row.

        Args:
            batch: [*B].
            taken: what the rewards must fit, [*B, 1].

        Raises:
            KeyMissingError: reward, or both end flags, are absent.
            LossError: shapes differ, or the flag is not bool.
        """
        reward, name = self.read(batch, "reward"), "terminated"
        terminated = batch.get(self._paths[name], None)
        if terminated is None:
            name = "done"
            terminated = self.read(batch, name)
        shape, what = taken.shape, "the values of taken actions"
        if reward.shape != shape or terminated.shape != shape or terminated.dtype is not torch.bool:
            raise self.unfit_step(what, shape, {"reward": reward, name: terminated})
        discount = batch.get(self._paths["discount"], None)
        if discount is not None:
            if discount.shape != shape:
                raise self.unfit_step(what, shape, {"discount": discount})
            return Step(reward, terminated, discount)
        estimator = self.value_estimator
        if not isinstance(estimator, TD0Estimator):
            return Step(reward, terminated, 1.0)  # that estimator reads the batch itself
        gamma = estimator.gamma.to(reward.device) if isinstance(estimator.gamma, Tensor) else estimator.gamma
        steps = batch.get(self._paths["steps_to_next_obs"], None)
        return Step(reward, terminated, raised_discount(gamma, steps, reward))

    def next_mask(self, batch: TensorDictBase, values: Tensor, step: Step, mask: Tensor | None) -> Tensor | None:
        """Which actions are allowed next, bool [*B, n], or None.

        Raises:
            KeyMissingError: the network masks its actions, and the batch has no mask.
            SpecError: it is no mask of these values.
            PolicyError: a row that goes on has no allowed action.
        """
        key = self._paths["action_mask"]
        if self.space.mask is None:
            allowed = batch.get(key, None)
            if allowed is None:
                return None
        else:
            if key != join("next", self.space.mask):
                raise SpecError(
                    f"{type(self).__name__}: value_network masks actions by {quoted(self.space.mask)}, the loss by "
                    f"{quoted(key)}. Call loss.set_keys(action_mask={self.space.mask!r})."
                )
            allowed = self.read(batch, "action_mask")
        needed = mask_rows(~step.terminated, mask)
        return check_action_mask(allowed, values, needed, self.space.groups)

    def best_next(self, batch: TensorDictBase, action_value: Tensor, step: Step, mask: Tensor | None) -> Tensor:
        """The index of the best allowed next action, [*B, 1], by expected values [*B, n]."""
        allowed = self.next_mask(batch, action_value, step, mask)
        ranked = action_value if allowed is None else action_value.masked_fill(~allowed, float("-inf"))
        return ranked.argmax(-1, keepdim=True)

    def reduce_rows(self, rows: Tensor, weight: Tensor | None, mask: Tensor | None) -> Tensor:
        """Per-row losses [*B, 1], weighted, under this loss's reduction; [*B] where that is "none"."""
        reduced = self.reduce(rows if weight is None else rows * weight, mask)
        return reduced.squeeze(-1) if self.reduction == "none" else reduced

    def check_once(self, values: Tensor, action: Tensor) -> None:
        """Validate the first batch, and tell the action space from it where nobody named it.

        Raises:
            SpecError: values have too few dimensions, or actions are none of the known spaces.
        """
        if values.ndim <= self.value_dims:
            shape = "[*B, n]" if self.value_dims == 1 else "[*B, K, n]"
            raise SpecError(
                f"{type(self).__name__}: {quoted(self.path('action_value'))} must be {shape}; got {list(values.shape)}"
            )
        if self.space.name is None:
            self.space = _space_of_shape(self.space, values, action, self.value_dims, type(self).__name__)
        self._checked = True


def _space_of_shape(space: ActionSpace, values: Tensor, action: Tensor, value_dims: int, owner: str) -> ActionSpace:
    """One-hot where an action has an entry per value, categorical where it is one number."""
    rows, count = values.shape[:-value_dims], values.shape[-1]
    hot = action.shape == (*rows, count)
    if hot and not torch.compiler.is_compiling():
        hot = bool((action.sum(-1) <= 1).all()) and (count > 1 or bool(action.any()))
    if hot:
        return replace(space, name="one_hot")
    if action.shape in (rows, (*rows, 1)):
        return replace(space, name="categorical")
    raise SpecError(
        f"{owner}: actions {list(action.shape)} are neither one-hot nor indices for action values "
        f"{list(values.shape)}. Name the action space: action_space='one_hot', 'categorical', or the action's spec."
    )


def mask_rows(values: Tensor, mask: Tensor | None) -> Tensor:
    """The values [*B, ...], with zeros in rows that do not count, whatever was there (a NaN would reach gradients)."""
    if mask is None:
        return values
    return values.masked_fill(~mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim)), 0)
