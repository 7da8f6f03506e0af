"""Gaussian noise on continuous actions."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor

from rl_core.keys import Key
from rl_core.specs import TensorSpec
from rl_modules.exploration.annealing import anneal_, one_action_spec
from rl_modules.policies.base import PolicyModule

__all__ = ["AdditiveGaussianModule"]


class AdditiveGaussianModule(PolicyModule):
    """Adds ``sigma * N(mean, std)`` to the action, and projects the sum onto the action's spec.

    It acts under ``ExplorationType.RANDOM`` or outside of any exploration context, and passes actions through
    otherwise. Sigma falls linearly with the frames told to :meth:`step`; it is part of the ``state_dict``.

    Args:
        spec: spec of the action, a leaf or a Composite that holds the action key.
        sigma_init: sigma at the start.
        sigma_end: sigma after ``annealing_num_steps`` frames.
        annealing_num_steps: frames from ``sigma_init`` to ``sigma_end``.
        mean: mean of the noise.
        std: its standard deviation where sigma is 1.
        action_key: the action.
        safe: accepted for compatibility; noisy actions are always projected.
        device: device of sigma.

    >>> from rl_core.specs import Bounded
    >>> noise = AdditiveGaussianModule(Bounded(-1.0, 1.0, (2,)), sigma_init=1.0, sigma_end=0.1, annealing_num_steps=100)
    >>> noise.step(50)
    >>> round(noise.sigma.item(), 4)
    0.55
    """

    sigma: Tensor
    sigma_init: Tensor
    sigma_end: Tensor

    def __init__(
        self,
        spec: TensorSpec,
        sigma_init: float = 1.0,
        sigma_end: float = 0.1,
        annealing_num_steps: int = 1000,
        mean: float = 0.0,
        std: float = 1.0,
        *,
        action_key: Key = "action",
        safe: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= sigma_end <= sigma_init:
            raise ValueError(
                f"AdditiveGaussianModule needs 0 <= sigma_end <= sigma_init; got {sigma_end}, {sigma_init}."
            )
        if annealing_num_steps < 1:
            raise ValueError(f"annealing_num_steps is {annealing_num_steps}; the annealing takes at least one frame.")
        self._set_keys([action_key], [action_key])
        self._spec = one_action_spec(spec, self.in_keys[0])
        if self._spec.dtype is None or not self._spec.dtype.is_floating_point:
            raise ValueError(f"AdditiveGaussianModule disturbs floats; the action's spec is {self._spec!r}.")
        self.mean, self.std = mean, std
        self.annealing_num_steps = annealing_num_steps
        self.register_buffer("sigma_init", torch.tensor(float(sigma_init), device=device))
        self.register_buffer("sigma_end", torch.tensor(float(sigma_end), device=device))
        self.register_buffer("sigma", torch.tensor(float(sigma_init), device=device))

    @property
    def spec(self) -> TensorSpec:
        """The spec of the action."""
        return self._spec

    def step(self, frames: int = 1) -> None:
        """Lower sigma by the share of ``frames`` in the annealing.

        Args:
            frames: environment frames since the last call.
        """
        anneal_(self.sigma, self.sigma_init, self.sigma_end, frames / self.annealing_num_steps)

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        (action,) = inputs
        if interaction_type() not in (None, ExplorationType.RANDOM):
            return (action,)
        noise = torch.randn_like(action) * self.std + self.mean
        spec = self._spec.to(action.device)
        return (spec.project(action + noise * self.sigma.to(action)),)
