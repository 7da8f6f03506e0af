"""What target updaters share: the pairs of tensors, the first copy, and the state for checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from rl_core.errors import SpecError
from rl_core.losses.module import LossModule

__all__ = ["TargetNetUpdater"]


class TargetNetUpdater(ABC):
    """Moves a loss's target networks towards its online ones at each :meth:`step`.

    Args:
        loss: a loss that was built with at least one target network. Targets are set equal to their sources now, unless
            the loss was restored by ``load_state_dict``: a resumed run goes on with the targets that it had, whether
            the updater is built before or after loading.

    Raises:
        SpecError: the loss has no target.
    """

    def __init__(self, loss: LossModule) -> None:
        self._pairs = loss.target_pairs()
        if not self._pairs:
            raise SpecError(
                f"{type(loss).__name__} has no target network to update. Build it with a delayed network "
                "(delay_value=True, delay_qvalue=True or delay_actor=True), or drop the updater."
            )
        if not loss.targets_restored:
            self.init_()

    @torch.no_grad()
    def init_(self) -> None:
        """Set each target equal to its source."""
        for source, target in self.tensors():
            target.copy_(source)

    def tensors(self) -> list[tuple[Tensor, Tensor]]:
        """(source, target) for every parameter and buffer, as they are now."""
        return [pair.tensors() for pair in self._pairs]

    @abstractmethod
    def step(self) -> None:
        """Update the targets once, after the optimiser's step."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the loss's own state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
