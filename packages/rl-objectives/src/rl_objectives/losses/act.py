"""Behaviour cloning of action chunks by a variational autoencoder."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.keys import quoted
from rl_core.losses.module import LossModule
from rl_core.losses.networks import read_inputs
from rl_core.losses.reduction import masked_mean
from rl_objectives.functional.variational import kl_from_standard_normal
from rl_objectives.losses.bc import BCKeys
from rl_objectives.losses.imitation import row_means, weighted_rows

__all__ = ["ACTLoss", "ChunkAutoencoder"]


@runtime_checkable
class ChunkAutoencoder(Protocol):
    """A policy that codes chunks of actions and writes them, such as ``ACTActor``."""

    in_keys: Any
    """Its observations."""

    def encode(self, action: Tensor, padding: Tensor | None, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Mean and log-variance, [*B, Z], of the style of chunks [*B, T, A] with padding bool [*B, T], if any."""
        ...

    def decode(self, latent: Tensor, *inputs: Tensor) -> Tensor:
        """Chunks [*B, T, A] of styles [*B, Z]."""
        ...


class ACTLoss(LossModule):
    r"""The distance of chunks of actions from what a policy makes of them, and the information it took from them.

    .. math::
        L = \frac{1}{T} \sum_{t \text{ stored}} \frac{1}{A} |a_t - \pi_\theta(s, z)_t|_1
            + \beta \, D_{KL}(q_\phi(z | a, s) \,\|\, N(0, 1)), \qquad z \sim q_\phi(z | a, s)

    Returns ``loss_act``, and the detached logs ``loss_reconstruction`` and ``loss_kl``, its two parts before beta:
    means over the rows that count. Padded steps are 0 in the sum and still count in T, so that each stored number
    weighs alike, however long its chunk. The divergence is a sum over z.

    Args:
        actor_network: a :class:`ChunkAutoencoder`: it has ``in_keys``, ``encode`` and ``decode``.
        kl_weight: beta, at least 0.
        reduction: "mean", "sum" or "none" (per row).

    Raises:
        SpecError: the actor is none, or kl_weight is negative.

    Zhao et al., 2023, Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, section IV-B and algorithm 1,
    arXiv 2304.13705.
    """

    default_keys: ClassVar[Any] = BCKeys()

    def __init__(self, actor_network: nn.Module, *, kl_weight: float = 10.0, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        if not isinstance(actor_network, ChunkAutoencoder):
            raise SpecError(
                f"{type(self).__name__} needs an actor_network with in_keys, encode and decode, such as ACTActor; got "
                f"{type(actor_network).__name__}"
            )
        if not kl_weight >= 0:
            raise SpecError(f"kl_weight is at least 0; got {kl_weight}")
        self.kl_weight = kl_weight
        self.add_network("actor_network", actor_network)

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self._modules["actor_network"].in_keys]  # type: ignore[union-attr]
        return list(dict.fromkeys([*inputs, self.path("action")]))

    def default_out_keys(self) -> list[Key]:
        return ["loss_act", "loss_reconstruction", "loss_kl"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The loss of a batch [*B] of chunks [*B, T, A]."""
        actor, mask = self._modules["actor_network"], self.valid_rows(batch)
        assert isinstance(actor, ChunkAutoencoder) and isinstance(actor, nn.Module)
        action, padding = self._chunks(batch)
        inputs = read_inputs(actor, batch, type(self).__name__)
        mean, log_variance = actor.encode(action, padding, *inputs)
        chunk = actor.decode(torch.addcmul(mean, (log_variance / 2).exp(), torch.randn_like(mean)), *inputs)
        if chunk.shape != action.shape:
            raise LossError(
                f"{type(self).__name__}: the policy's chunk {list(chunk.shape)} and the dataset's "
                f"{quoted(self._paths['action'])} {list(action.shape)} must have one shape"
            )
        distance = (chunk - action).abs()
        if padding is not None:
            distance = distance.masked_fill(padding.unsqueeze(-1), 0)
        reconstruction, divergence = row_means(distance, batch.ndim), kl_from_standard_normal(mean, log_variance)
        rows = weighted_rows(self, batch, reconstruction + self.kl_weight * divergence)
        return {
            "loss_act": self.reduce(rows, mask),
            "loss_reconstruction": masked_mean(reconstruction.detach(), mask),
            "loss_kl": masked_mean(divergence.detach(), mask),
        }

    def _chunks(self, batch: TensorDictBase) -> tuple[Tensor, Tensor | None]:
        """Actions [*B, T, A], zeros where padded, and the padding bool [*B, T], if there is any."""
        action, padding = self.read(batch, "action"), batch.get(self._paths["pad_mask"], None)
        owner, key = type(self).__name__, quoted(self._paths["action"])
        if action.ndim != batch.ndim + 2:
            raise LossError(
                f"{owner}: {key} {list(action.shape)} must be a chunk of actions [T, A] for each row of the batch "
                f"{list(batch.batch_size)}"
            )
        if padding is None:
            return action, None
        if padding.dtype is not torch.bool or padding.shape != action.shape[:-1]:
            raise LossError(
                f"{owner}: {quoted(self._paths['pad_mask'])} is bool, one for each action of {key} "
                f"{list(action.shape)}; got {padding.dtype} {list(padding.shape)}"
            )
        return action.masked_fill(padding.unsqueeze(-1), 0), padding  # attention would carry a NaN that it weighs by 0
