"""Epsilon-greedy exploration."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn.probabilistic import interaction_type
from torch import Tensor

from rl_core.errors import PolicyError
from rl_core.keys import Key
from rl_core.specs import Categorical, Composite, OneHot, TensorSpec
from rl_modules.distributions.masked import MaskedCategorical
from rl_modules.policies.base import PolicyModule

__all__ = ["EGreedyModule"]


class EGreedyModule(PolicyModule):
    """Replaces each row's action by a random legal one with probability epsilon.

    It acts under ``ExplorationType.RANDOM`` or outside of any exploration context, and passes actions through
    otherwise. Epsilon falls linearly with the frames told to :meth:`step`.

    Args:
        spec: spec of the action, a leaf or a Composite that holds the action key.
        eps_init: epsilon at the start.
        eps_end: epsilon after ``annealing_num_steps`` frames.
        annealing_num_steps: frames from ``eps_init`` to ``eps_end``.
        action_key: the action.
        action_mask_key: bool ``[*B, n]`` in the data, True where an action is allowed; none unless given.
        device: device of epsilon.

    >>> from rl_core.specs import OneHot
    >>> greedy = EGreedyModule(OneHot(3), eps_init=1.0, eps_end=0.1, annealing_num_steps=100)
    >>> greedy.step(50)
    >>> round(greedy.eps.item(), 4)
    0.55
    """

    eps: Tensor
    eps_init: Tensor
    eps_end: Tensor

    def __init__(
        self,
        spec: TensorSpec,
        eps_init: float = 1.0,
        eps_end: float = 0.1,
        annealing_num_steps: int = 1000,
        *,
        action_key: Key = "action",
        action_mask_key: Key | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= eps_end <= eps_init <= 1.0:
            raise ValueError(f"EGreedyModule needs 0 <= eps_end <= eps_init <= 1; got {eps_end} and {eps_init}.")
        self._set_keys([action_key] if action_mask_key is None else [action_key, action_mask_key], [action_key])
        self.register_buffer("eps_init", torch.tensor(float(eps_init), device=device))
        self.register_buffer("eps_end", torch.tensor(float(eps_end), device=device))
        self.register_buffer("eps", torch.tensor(float(eps_init), device=device))
        self.annealing_num_steps = annealing_num_steps
        self._spec: TensorSpec = spec[self.in_keys[0]] if isinstance(spec, Composite) else spec
        if action_mask_key is not None and not isinstance(self._spec, (OneHot, Categorical)):
            raise ValueError(
                f"An action mask fits OneHot and Categorical actions; the spec is {type(self._spec).__name__}."
            )

    @property
    def spec(self) -> TensorSpec:
        """The spec of the action."""
        return self._spec

    def step(self, frames: int = 1) -> None:
        """Lower epsilon by the share of ``frames`` in the annealing.

        Args:
            frames: environment frames since the last call.
        """
        fall = (self.eps_init - self.eps_end) * (frames / self.annealing_num_steps)
        self.eps.copy_(torch.maximum(self.eps - fall, self.eps_end))

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        action = inputs[0]
        if interaction_type() not in (None, ExplorationType.RANDOM):
            return (action,)
        event_ndim = self._spec.ndim - self._spec.batch_ndim
        rows = action.shape[: action.ndim - event_ndim]
        explores = torch.rand(rows, device=action.device) < self.eps.to(action.device)
        random = self._random(action) if len(inputs) == 1 else self._random_allowed(inputs[1])
        if random.shape != action.shape:
            raise PolicyError(
                f"EGreedyModule got an action of shape {list(action.shape)}; the spec says {list(self._spec.shape)}."
            )
        return (torch.where(explores.reshape((*rows, *[1] * event_ndim)), random.to(action), action),)

    def _random(self, action: Tensor) -> Tensor:
        extra = action.ndim - self._spec.ndim
        random: Tensor = self._spec.rand(action.shape[:extra]) if extra > 0 else self._spec.rand()
        return random

    def _random_allowed(self, mask: Tensor) -> Tensor:
        index = MaskedCategorical(torch.zeros_like(mask, dtype=torch.float32), mask=mask).draw()
        return F.one_hot(index, mask.shape[-1]) if isinstance(self._spec, OneHot) else index
