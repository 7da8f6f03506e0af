"""Behaviour cloning: a policy learns to do what a dataset did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, distribution_on_tensors, read_inputs
from rl_objectives.functional.distance import distance_loss
from rl_objectives.losses.imitation import check_stochastic, has_distribution, log_prob_of, row_means, weighted_rows

__all__ = ["BCKeys", "BCLoss"]

_DISTANCES = {"l1": "l1", "l2": "l2", "mse": "l2", "smooth_l1": "smooth_l1"}
_NAMES = (*_DISTANCES, "cross_entropy", "nll")

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class BCKeys(LossKeys):
    """The entries of behaviour cloning."""

    action: Key = field(default="action", metadata=entry(producer="It comes from the demonstrations."))
    """[*B, ...]: what to imitate; also the key under which the policy writes its own action."""
    pad_mask: Key = "pad_mask"
    """bool [*B] or [*B, T] for chunks of T actions, read if present: True for padding, which does not count."""
    priority_weight: Key = "priority_weight"
    """[*B] or [*B, 1], read if present: weights of the rows."""


class BCLoss(LossModule):
    r"""The negative log-likelihood of the dataset's actions, or the policy's distance to them.

    .. math:: L = -\log \pi(a | s) \quad \text{or} \quad L = d(\pi(s), a)

    Returns ``loss_bc``. A distance is averaged over the features of an action.

    Args:
        actor_network: a policy: a module with ``in_keys`` that writes ``tensor_keys.action``, or has ``get_dist``.
        loss_function: None: the likelihood ("nll") if the policy has a distribution, else the cross-entropy for integer
            actions and the squared distance for others. Or one of "nll", "l1", "l2" (= "mse"), "smooth_l1",
            "cross_entropy" (the policy writes logits [*B, n], actions are indices [*B], [*B, 1], or one-hot [*B, n]);
            or a function (prediction, action) -> [*B] or [*B, ...], not reduced.
        reduction: "mean", "sum" or "none" (per row).

    Raises:
        SpecError: an option is not admitted.

    Pomerleau, 1991, Efficient Training of Artificial Neural Networks for Autonomous Navigation.
    """

    default_keys: ClassVar[Any] = BCKeys()

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        loss_function: LossFunction | str | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if isinstance(loss_function, str) and loss_function not in _NAMES:
            names = ", ".join(map(repr, _NAMES))
            raise SpecError(f"loss_function is one of {names}, or a function; got {loss_function!r}")
        self.add_network("actor_network", actor_network)
        if loss_function == "nll":
            check_stochastic(actor_network, type(self).__name__)
        likely = loss_function is None and has_distribution(actor_network)
        self.loss_function = "nll" if likely else loss_function

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self._modules["actor_network"].in_keys]  # type: ignore[union-attr]
        return list(dict.fromkeys([*inputs, self.path("action")]))

    def default_out_keys(self) -> list[Key]:
        return ["loss_bc"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The loss of a batch [*B]."""
        mask, padding = self.valid_rows(batch), batch.get(self._paths["pad_mask"], None)
        if padding is not None:
            mask = self._without_padding(mask, padding)
        values = self._values(batch)
        dims = max(batch.ndim, 0 if mask is None else mask.ndim)
        rows = weighted_rows(self, batch, row_means(values, dims))
        return {"loss_bc": self.reduce(rows, mask)}

    def _values(self, batch: TensorDictBase) -> Tensor:
        """The loss before any mean, [*B, ...]."""
        owner, actor = type(self).__name__, self._modules["actor_network"]
        assert actor is not None
        action, inputs = self.read(batch, "action"), read_inputs(actor, batch, owner)
        if self.loss_function == "nll":
            return -log_prob_of(self, distribution_on_tensors(actor, inputs, batch.batch_size), action)
        prediction = call_on_tensors(actor, inputs, self._paths["action"], batch.batch_size)
        kind = self.loss_function
        if kind is None:
            kind = "l2" if action.is_floating_point() else "cross_entropy"
        if kind == "cross_entropy":
            return self._cross_entropy(prediction, action)
        if not isinstance(kind, str):
            return kind(prediction, action)
        if prediction.shape != action.shape:
            raise self._misfit(prediction, action, "must have one shape")
        return distance_loss(prediction, action.to(prediction.dtype), _DISTANCES[kind])

    def _cross_entropy(self, logits: Tensor, action: Tensor) -> Tensor:
        """Of logits [*B, n]; a one-hot action is taken as the index of its one."""
        rows = logits.shape[:-1]
        index = action
        if action.shape == (*rows, 1):
            index = action.squeeze(-1)
        elif action.shape == logits.shape:
            index = action.to(torch.float32).argmax(-1)
        if index.shape != rows:
            raise self._misfit(logits, action, "must be logits [*B, n] with indices [*B], [*B, 1] or one-hot [*B, n]")
        flat = F.cross_entropy(logits.flatten(0, -2), index.flatten().long(), reduction="none")
        return flat.reshape(rows)

    def _without_padding(self, mask: Tensor | None, padding: Tensor) -> Tensor:
        """What counts: rows of the mask that are no padding."""
        key = quoted(self._paths["pad_mask"])
        if padding.dtype is not torch.bool:
            raise SpecError(f"{type(self).__name__}: {key} must be bool; got {padding.dtype}")
        if mask is None:
            return ~padding
        if padding.shape[: mask.ndim] != mask.shape:
            raise SpecError(
                f"{type(self).__name__}: {key} {list(padding.shape)} must begin with the shape of "
                f"{quoted(self._paths['mask'])}, {list(mask.shape)}"
            )
        return ~padding & mask.reshape(mask.shape + (1,) * (padding.ndim - mask.ndim))

    def _misfit(self, prediction: Tensor, action: Tensor, rule: str) -> SpecError:
        return SpecError(
            f"{type(self).__name__}: the policy's {quoted(self._paths['action'])} {list(prediction.shape)} and the "
            f"dataset's {list(action.shape)} {rule}"
        )
