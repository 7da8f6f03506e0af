"""Generative adversarial imitation: the loss of the discriminator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.gail import discriminator_loss, slope_penalty

__all__ = ["GAILKeys", "GAILLoss"]

_EXPERT = "It comes from the demonstrations."
_POLICY = "Put the policy's steps beside the expert's, one a row."


@dataclass(frozen=True)
class GAILKeys(LossKeys):
    """The entries of the discriminator's loss."""

    expert_action: Key = field(default="action", metadata=entry(producer=_EXPERT))
    """[*B, ...]; also the discriminator's in_key for actions."""
    expert_observation: Key = field(default="observation", metadata=entry(producer=_EXPERT))
    """[*B, ...]; also the discriminator's in_key for observations."""
    collector_action: Key = field(default="collector_action", metadata=entry(producer=_POLICY))
    """[*B, ...]: what the policy did."""
    collector_observation: Key = field(default="collector_observation", metadata=entry(producer=_POLICY))
    """[*B, ...]: where it did it."""
    discriminator_pred: Key = "d_logits"
    """[*B, 1]: what the discriminator writes: the probability that a step is the expert's, or its logit."""


class GAILLoss(LossModule):
    r"""Trains a discriminator to tell an expert's steps (D near 1) from the policy's (D near 0).

    .. math:: L = -\log D(s_E, a_E) - \log(1 - D(s, a)) + \lambda (\| \nabla D(\hat s, \hat a) \|_2 - 1)^2

    The penalty is taken at a random point between an expert's step and a policy's. The policy's reward is then, e.g.,
    ``-log(1 - D)``. Returns ``loss``, and with the penalty its detached value ``gp_loss``, which ``loss`` includes.

    Args:
        discriminator_network: a module whose in_keys are ``tensor_keys.expert_observation`` and
            ``tensor_keys.expert_action`` (one or both) and which writes ``tensor_keys.discriminator_pred``.
        use_grad_penalty: add the penalty on the discriminator's slope.
        gp_lambda: its weight; may be assigned later.
        from_logits: whether the discriminator writes logits, which are more exact than probabilities.
        reduction: "mean", "sum" or "none" (per row).

    Raises:
        SpecError: an option is not admitted.

    Ho and Ermon, 2016, Generative Adversarial Imitation Learning, algorithm 1, arXiv 1606.03476. Gulrajani et al.,
    2017, Improved Training of Wasserstein GANs, eq. 3, arXiv 1704.00028.
    """

    default_keys: ClassVar[Any] = GAILKeys()

    def __init__(
        self,
        discriminator_network: nn.Module,
        *,
        use_grad_penalty: bool = False,
        gp_lambda: float = 10.0,
        from_logits: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.add_network("discriminator_network", discriminator_network)
        self.use_grad_penalty = use_grad_penalty
        self.from_logits = from_logits
        self.add_scalar("gp_lambda", gp_lambda)

    def default_in_keys(self) -> list[Key]:
        names = ("expert_action", "expert_observation", "collector_action", "collector_observation")
        return [self.path(name) for name in names]

    def default_out_keys(self) -> list[Key]:
        return ["loss", "gp_loss"] if self.use_grad_penalty else ["loss"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The loss of a batch [*B] that holds one step of the expert and one of the policy in each row."""
        mask = self.valid_rows(batch)
        expert, collected = self._pairs(batch)
        # One call on twice the rows: a batch norm sees both.
        joined = [torch.cat(pair) for pair in zip(expert, collected, strict=True)]
        size = batch.batch_size
        if not size:
            raise SpecError(f"{type(self).__name__} needs a batch of rows; the batch size is []")
        answers = self._discriminate(joined, torch.Size((2 * size[0], *size[1:])))
        of_expert, of_policy = answers.split(size[0])
        rows = discriminator_loss(of_expert, of_policy, from_logits=self.from_logits).squeeze(-1)
        if not self.use_grad_penalty:
            return {"loss": self.reduce(rows, mask)}
        penalty = self.gp_lambda * self._penalty(expert, collected, size)
        return {"loss": self.reduce(rows + penalty, mask), "gp_loss": masked_mean(penalty.detach(), mask)}

    def _pairs(self, batch: TensorDictBase) -> tuple[list[Tensor], list[Tensor]]:
        """The discriminator's inputs of the expert and of the policy."""
        owner = type(self).__name__
        parts = {self.path(f"expert_{name}"): name for name in ("observation", "action")}
        expert, collected = [], []
        for key in self._modules["discriminator_network"].in_keys:  # type: ignore[union-attr]
            name = parts.get(as_key(key))
            if name is None:
                raise SpecError(
                    f"{owner}: the discriminator reads {quoted(as_key(key))}, which is neither "
                    f"{' nor '.join(map(quoted, parts))}. Call loss.set_keys(expert_observation=..., "
                    "expert_action=...)."
                )
            first, second = self.read(batch, f"expert_{name}"), self.read(batch, f"collector_{name}")
            if first.shape != second.shape:
                raise SpecError(
                    f"{owner}: {quoted(self.path(f'expert_{name}'))} {list(first.shape)} and "
                    f"{quoted(self.path(f'collector_{name}'))} {list(second.shape)} must have one shape"
                )
            expert.append(first)
            collected.append(second)
        return expert, collected

    def _discriminate(self, inputs: Sequence[Tensor], batch_size: torch.Size) -> Tensor:
        key = self._paths["discriminator_pred"]
        network = self._modules["discriminator_network"]
        assert network is not None
        answer = call_on_tensors(network, inputs, key, batch_size)
        if answer.shape != (*batch_size, 1):
            raise SpecError(
                f"{type(self).__name__}: the discriminator must write {quoted(key)} [*B, 1]; got {list(answer.shape)} "
                f"for a batch of {list(batch_size)}"
            )
        return answer

    def _penalty(self, expert: list[Tensor], collected: list[Tensor], size: torch.Size) -> Tensor:
        """The penalty per row, at a random point between the two steps; the same share for all inputs of a row."""
        share = torch.rand(size, device=expert[0].device)
        trains = torch.is_grad_enabled()
        with torch.enable_grad():
            between = []
            for first, second in zip(expert, collected, strict=True):
                start, end = first.detach(), second.detach()
                if not start.is_floating_point():
                    start, end = start.to(share.dtype), end.to(share.dtype)
                weight = share.reshape(size + (1,) * (start.ndim - len(size))).to(start.dtype)
                between.append((end + weight * (start - end)).requires_grad_(True))
            answer = self._discriminate(between, size)
            slopes = torch.autograd.grad(answer.sum(), between, create_graph=trains)
        return slope_penalty(list(slopes), len(size))
