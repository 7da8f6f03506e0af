"""The moving average of weights."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from rl_core.errors import SpecError
from rl_core.losses.module import LossModule
from rl_core.losses.targets import TargetPair
from rl_objectives.targets.updater import TargetNetUpdater

__all__ = ["SoftUpdate"]


class SoftUpdate(TargetNetUpdater):
    r"""Polyak averaging at every step.

    .. math:: \theta' \leftarrow \epsilon \theta' + (1 - \epsilon) \theta, \qquad \tau = 1 - \epsilon

    Floating-point buffers (running statistics) are averaged as well; counters, and constants with infinities, are
    copied.

    Args:
        loss: a loss with target networks.
        eps: the share that the target keeps, in [0, 1], usually near 1.
        tau: the share that it takes, in [0, 1], usually near 0. Exactly one of the two is given.

    Raises:
        SpecError: both or neither are given, one is outside [0, 1], or the loss has no target.

    Lillicrap et al., 2015, Continuous control with deep reinforcement learning, algorithm 1, arXiv 1509.02971.
    """

    def __init__(self, loss: LossModule, *, eps: float | None = None, tau: float | None = None) -> None:
        if (eps is None) == (tau is None):
            raise SpecError(f"SoftUpdate takes exactly one of eps and tau (tau = 1 - eps); got eps={eps}, tau={tau}")
        share = 1.0 - float(eps) if eps is not None else float(tau)  # type: ignore[arg-type]
        if not 0.0 <= share <= 1.0:
            raise SpecError(f"eps and tau lie in [0, 1]; got eps={eps}, tau={tau}")
        if eps is not None and eps < 0.5:
            text = f"SoftUpdate(eps={eps}) moves targets by {share:g} a step; did you mean tau={eps}?"
            warnings.warn(text, stacklevel=2)
        super().__init__(loss)
        self.tau = share

        kinds = [(pair, _can_be_averaged(pair)) for pair in self._pairs]
        averaged = [pair for pair, is_quantity in kinds if is_quantity]
        self._copied = [pair for pair, is_quantity in kinds if not is_quantity]
        # Owner and name, not the tensors, which .to() may replace; and no method per tensor, which would cost a third.
        self._sources = [(pair.source_owner, pair.name) for pair in averaged]
        self._targets = [(pair.target_owner, pair.name) for pair in averaged]

    def step(self) -> None:
        """Move each target by ``tau`` of its distance to the source."""
        sources: list[Any] = [owner[name] for owner, name in self._sources]
        targets: list[Any] = [owner[name] for owner, name in self._targets]
        with torch.no_grad():
            try:
                torch._foreach_lerp_(targets, sources, self.tau)
            except TypeError:
                self.tensors()  # says which tensor is gone, if that is the reason
                raise
            for pair in self._copied:
                source, target = pair.tensors()
                target.copy_(source)


def _can_be_averaged(pair: TargetPair) -> bool:
    """Whether the tensor is a quantity: counters are none, nor masks of -inf, whose distance is not a number."""
    source, target = pair.tensors()
    number = target.is_floating_point() or target.is_complex()
    return number and bool(source.isfinite().all()) and bool(target.isfinite().all())
