"""Behaviour cloning of a diffusion policy: its network learns to see the noise in noised demonstrations."""

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
from rl_objectives.functional.diffusion import noised
from rl_objectives.losses.bc import BCKeys
from rl_objectives.losses.imitation import row_means, weighted_rows

__all__ = ["Denoiser", "DiffusionBCLoss"]


@runtime_checkable
class Denoiser(Protocol):
    """A policy that predicts the noise in an action, such as ``DiffusionActor``."""

    in_keys: Any
    """Its observations."""
    alpha_bar: Tensor
    """[K]: the share of the clean action's variance that is left at each step."""

    def predict_noise(self, noisy_action: Tensor, step: Tensor, *inputs: Tensor) -> Tensor:
        """The noise, [*B, ...], in actions [*B, ...] at steps [*B] in [0, K)."""
        ...


class DiffusionBCLoss(LossModule):
    r"""The squared error of the predicted noise, at a random step for each row.

    .. math:: L = \|\epsilon - \epsilon_\theta(\sqrt{\bar\alpha_k} a + \sqrt{1 - \bar\alpha_k} \epsilon, k, s)\|^2,
        \qquad k \sim U\{0, ..., K - 1\}, \quad \epsilon \sim N(0, 1)

    Returns ``loss_diffusion_bc``, averaged over the features of an action.

    Args:
        actor_network: a :class:`Denoiser`: it has ``in_keys``, ``alpha_bar`` and ``predict_noise``.
        reduction: "mean", "sum" or "none" (per row).

    Raises:
        SpecError: the actor is none.

    Ho et al., 2020, Denoising Diffusion Probabilistic Models, algorithm 1, arXiv 2006.11239; Chi et al., 2023,
    Diffusion Policy: Visuomotor Policy Learning via Action Diffusion, eq. 5, arXiv 2303.04137.
    """

    default_keys: ClassVar[Any] = BCKeys()

    def __init__(self, actor_network: nn.Module, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        if not isinstance(actor_network, Denoiser):
            raise SpecError(
                f"{type(self).__name__} needs an actor_network with in_keys, alpha_bar and predict_noise, such as "
                f"DiffusionActor; got {type(actor_network).__name__}"
            )
        self.add_network("actor_network", actor_network)

    def default_in_keys(self) -> list[Key]:
        inputs = [as_key(key) for key in self._modules["actor_network"].in_keys]  # type: ignore[union-attr]
        return list(dict.fromkeys([*inputs, self.path("action")]))

    def default_out_keys(self) -> list[Key]:
        return ["loss_diffusion_bc"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The loss of a batch [*B]."""
        mask, padding = self.valid_rows(batch), batch.get(self._paths["pad_mask"], None)
        action = self.read(batch, "action")
        if padding is not None:
            key = quoted(self._paths["pad_mask"])
            if padding.dtype is not torch.bool or padding.shape != action.shape[: padding.ndim]:
                raise LossError(
                    f"{type(self).__name__}: {key} is bool with the leading shape of the action {list(action.shape)}; "
                    f"got {padding.dtype} {list(padding.shape)}"
                )
            counts = ~padding
            mask = counts if mask is None else counts & mask.reshape(mask.shape + (1,) * (counts.ndim - mask.ndim))
        dims = max(batch.ndim, 0 if mask is None else mask.ndim)
        rows = weighted_rows(self, batch, row_means(self._errors(batch, action), dims))
        return {"loss_diffusion_bc": self.reduce(rows, mask)}

    def _errors(self, batch: TensorDictBase, action: Tensor) -> Tensor:
        """The squared error of each number, [*B, ...]."""
        actor = self._modules["actor_network"]
        assert isinstance(actor, Denoiser) and isinstance(actor, nn.Module)
        step = torch.randint(actor.alpha_bar.shape[0], batch.batch_size, device=action.device)
        noise = torch.randn_like(action)
        noisy = noised(action, noise, actor.alpha_bar.take(step).to(action.dtype))
        predicted = actor.predict_noise(noisy, step, *read_inputs(actor, batch, type(self).__name__))
        if predicted.shape != noise.shape:
            raise LossError(
                f"{type(self).__name__}: the predicted noise {list(predicted.shape)} must have the shape of the "
                f"action, {list(noise.shape)}"
            )
        return (predicted - noise).square()
