"""The decision transformer's loss: the distance of a sequence model's actions to those of the dataset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.keys import Key, as_key
from rl_core.losses.keys import entry
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, read_inputs
from rl_objectives.functional.distance import check_distance, distance_loss
from rl_objectives.losses.critic import check_same_shape
from rl_objectives.losses.imitation import row_means, weighted_rows

__all__ = ["DTKeys", "DTLoss"]


@dataclass(frozen=True)
class DTKeys(LossKeys):
    """The entries of the decision transformers' losses. The mask may be per step, bool [*B, T]."""

    action_target: Key = field(default="action", metadata=entry(producer="It comes from the dataset."))
    """[*B, T, A]: what the dataset did."""
    action_pred: Key = "action"
    """[*B, T, A]: what the policy writes."""
    priority_weight: Key = "priority_weight"
    """[*B] or [*B, 1], read if present: weights of the rows."""


class DTLoss(LossModule):
    r"""The distance between the actions of a sequence policy and those of the dataset, at each step.

    .. math:: L = d(\pi(\hat R_{\le t}, s_{\le t}, a_{<t}), a_t)

    averaged over the features of an action. Returns ``loss``. Steps of padding are kept out by the mask
    (``loss.set_keys(mask="mask")``), and out of the attention by the policy if it reads the same entry.

    Args:
        actor_network: a module over windows [*B, T, ...] that writes ``tensor_keys.action_pred``, such as a
            ``ProbabilisticActor`` over a ``DTActor``.
        loss_function: "l2", "l1" or "smooth_l1".
        reduction: "mean", "sum" or "none" (per row, or per step where the batch or the mask has steps).
        device: kept for compatibility; the loss is where its network is.

    Raises:
        SpecError: an option is not admitted.

    Chen et al., 2021, Decision Transformer: Reinforcement Learning via Sequence Modeling, section 3, arXiv 2106.01345.
    """

    default_keys: ClassVar[Any] = DTKeys()

    def __init__(
        self,
        actor_network: nn.Module,
        *,
        loss_function: str = "l2",
        reduction: str = "mean",
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(reduction=reduction)
        self.add_network("actor_network", actor_network)
        self.loss_function = check_distance(loss_function)

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self._modules["actor_network"].in_keys]  # type: ignore[union-attr]
        return list(dict.fromkeys([*inputs, self.path("action_target")]))

    def default_out_keys(self) -> list[Key]:
        return ["loss"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The loss of a batch of windows."""
        owner, actor = type(self).__name__, self._modules["actor_network"]
        assert actor is not None
        mask, target = self.valid_rows(batch), self.read(batch, "action_target")
        inputs = read_inputs(actor, batch, owner)
        action = call_on_tensors(actor, inputs, self._paths["action_pred"], batch.batch_size)
        named = (self._paths["action_pred"], action), (self._paths["action_target"], target)
        check_same_shape(owner, *named)
        error = distance_loss(action, target, self.loss_function)
        rows = row_means(error, max(batch.ndim, 0 if mask is None else mask.ndim))
        return {"loss": self.reduce(weighted_rows(self, batch, rows), mask)}
