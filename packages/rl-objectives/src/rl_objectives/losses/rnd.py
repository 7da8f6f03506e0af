"""Random network distillation: the loss of the predictor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key
from rl_core.losses.keys import entry
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.targets import frozen_copy
from rl_objectives.functional.rnd import distillation_error

__all__ = ["RNDKeys", "RNDLoss"]


@dataclass(frozen=True)
class RNDKeys(LossKeys):
    """The entries of random network distillation."""

    observation: Key = field(
        default=("next", "observation"), metadata=entry(producer="The environment writes it; a collector keeps it.")
    )
    """[*B, ...]: what the bonus was given for."""


class RNDLoss(LossModule):
    r"""Trains a predictor towards a fixed random network, on a random part of the rows.

    .. math:: L = \frac{1}{E} \| \hat f(o') - f(o') \|^2

    Returns ``loss_predictor``. The same error without gradient is the bonus of an observation.

    Args:
        predictor_network: a plain network, observation to embedding [*B, E].
        target_network: another of the same output. A frozen copy of it is kept, and saved with the loss.
        obs_rms: standardises observations: a module from observations to observations of the same shape, such as
            ``RunningMeanStd``, the same as for the bonus; its moments are not updated here. None: left as they are.
        obs_clip: largest magnitude of a standardised observation.
        update_fraction: share of the rows that are trained on, in (0, 1], drawn anew for each batch.
        reduction: "mean" (over rows that are trained on), "sum" or "none" (per row, 0 for those left out).

    Raises:
        SpecError: the two networks are one, or an option is not admitted.

    Burda et al., 2018, Exploration by Random Network Distillation, sections 2.2 and 2.4, arXiv 1810.12894.
    """

    default_keys: ClassVar[Any] = RNDKeys()

    def __init__(
        self,
        predictor_network: nn.Module,
        target_network: nn.Module,
        *,
        obs_rms: nn.Module | None = None,
        obs_clip: float = 5.0,
        reduction: str = "mean",
        update_fraction: float = 0.25,
    ) -> None:
        super().__init__(reduction=reduction)
        owner = type(self).__name__
        if predictor_network is target_network:
            raise SpecError(f"{owner} needs two networks: one network predicts itself without error")
        if not 0.0 < update_fraction <= 1.0:
            raise SpecError(f"{owner}: update_fraction lies in (0, 1]; got {update_fraction}")
        self.predictor_network = predictor_network
        self.target_network = frozen_copy(target_network, "target_network")
        # Not a submodule: its moments belong to whoever updates them.
        self.__dict__["obs_rms"] = obs_rms
        self.obs_clip = obs_clip
        self.update_fraction = update_fraction

    def default_in_keys(self) -> list[Key]:
        return [self.path("observation")]

    def default_out_keys(self) -> list[Key]:
        return ["loss_predictor"]

    def compute(self, batch: TensorDictBase) -> dict[str, Tensor]:
        """The loss of a batch [*B]."""
        observation = self.read(batch, "observation")
        with torch.no_grad():
            if self.obs_rms is not None:
                observation = self.obs_rms(observation).clamp(-self.obs_clip, self.obs_clip)
            target = self.target_network(observation)
        error = distillation_error(self.predictor_network(observation), target)
        return {"loss_predictor": self.reduce(error, self._trained_rows(batch, error))}

    def _trained_rows(self, batch: TensorDictBase, error: Tensor) -> Tensor | None:
        """The rows that count, or None for all."""
        mask = self.valid_rows(batch)
        if self.update_fraction >= 1.0:
            return mask
        drawn = torch.rand(error.shape, device=error.device) < self.update_fraction
        return drawn if mask is None else drawn & mask
