"""Mixer: what turns the values of a group's agents into the value of the team."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError

__all__ = ["Mixer"]


class Mixer(nn.Module, ABC):
    """Base of the mixers: checks shapes, leaves out agents that do not act, calls :meth:`mix`.

    Args:
        n_agents: agents of the group.
        state_shape: shape of the state that the mixture depends on; None: it depends on no state.
    """

    def __init__(self, n_agents: int, state_shape: Sequence[int] | None = None) -> None:
        super().__init__()
        self.n_agents = n_agents
        self.state_shape = None if state_shape is None else torch.Size(state_shape)
        self.state_features = 0 if state_shape is None else math.prod(state_shape)

    @property
    def needs_state(self) -> bool:
        """Whether the mixture depends on a state."""
        return self.state_shape is not None

    @abstractmethod
    def mix(self, values: Tensor, state: Tensor | None) -> Tensor:
        """The team's value [*B, 1] from agents' values [*B, n] and the flattened state [*B, F].

        A value of 0 must contribute nothing: agents that do not act are given one.
        """

    def forward(self, chosen_action_value: Tensor, *state_and_mask: Tensor, mask: Tensor | None = None) -> Tensor:
        """The value of the team.

        Args:
            chosen_action_value: [*B, n, 1], the values of the agents' actions.
            *state_and_mask: the state [*B, *state_shape] where the mixer needs one; after it the mask, unless that
                is given by its name.
            mask: bool [*B, n], True where the agent acts; others contribute nothing and get no gradient.

        Returns:
            [*B, 1].

        Raises:
            SpecError: a shape does not fit.
        """
        given = len(state_and_mask)
        if given == self.needs_state + 1 and mask is None:
            mask = state_and_mask[-1]
        elif given != self.needs_state:
            inputs = "chosen_action_value, state" if self.needs_state else "chosen_action_value"
            raise SpecError(f"{type(self).__name__} takes {inputs} and, optionally, mask; got {given + 1} inputs")
        batch = chosen_action_value.shape[:-2]
        if chosen_action_value.ndim < 2 or chosen_action_value.shape[-2:] != (self.n_agents, 1):
            raise SpecError(
                f"{type(self).__name__} mixes values [*B, {self.n_agents}, 1], one per agent; got "
                f"{list(chosen_action_value.shape)}"
            )
        values = chosen_action_value.squeeze(-1)
        if mask is not None:
            values = values.masked_fill(~self._checked_mask(mask, values), 0)
        if self.state_shape is None:
            return self.mix(values, None)
        return self.mix(values, self._flat_state(state_and_mask[0], batch, self.state_shape))

    def _checked_mask(self, mask: Tensor, values: Tensor) -> Tensor:
        if mask.dtype is not torch.bool or mask.shape != values.shape:
            raise SpecError(
                f"{type(self).__name__} takes a bool mask of shape {list(values.shape)}, one entry per row and agent; "
                f"got {mask.dtype} {list(mask.shape)}"
            )
        return mask

    def _flat_state(self, state: Tensor, batch: torch.Size, shape: torch.Size) -> Tensor:
        if state.shape != batch + shape:
            raise SpecError(
                f"{type(self).__name__} needs a state of shape {list(batch + shape)}: the batch of the agents' values, "
                f"then state_shape={list(shape)}; got {list(state.shape)}"
            )
        return state.reshape(*batch, self.state_features)
