"""Temporal ensembling: at each step the average of all that overlapping action chunks said of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl_core import CarriedState, StateCarrier, Unbounded
from rl_core.errors import PolicyError, SpecError
from rl_core.keys import Key, as_key, join, leaf_name, sibling
from rl_core.policy import row_policy
from rl_modules.policies.base import PolicyModule

__all__ = ["TemporalEnsemble"]


class TemporalEnsemble(StateCarrier, PolicyModule):
    r"""Asks an actor for a chunk at every step, and takes the weighted mean of all actions proposed for that step.

    .. math:: a_t = \frac{\sum_i w_i A_t[i]}{\sum_i w_i}, \qquad w_i = e^{-m i}

    where A_t[0] is the oldest proposal for step t since the episode began, of at most T. Not the proposals but their
    means are carried in the TensorDict, for the steps to come, and the number of steps taken, like a recurrent state:
    read at the root, written under "next"; collectors and rollouts add what the environment lacks.

    Args:
        actor: module with keys that writes chunks ``[*B, T, A]`` of real numbers; its further outputs are dropped.
        chunk_shape: (T, A).
        decay: m. The smaller, the faster new observations count; below 0 the newest proposals weigh most.
        action_key: the chunk's key, and that of the action taken.
        init_key: the flag on first steps.

    Raises:
        PolicyError: the actor does not write the action.
        SpecError: decay is not finite, or the shape has no steps.

    Zhao et al., 2023, Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware, section IV-A and algorithm 2,
    arXiv 2304.13705.

    >>> from rl_modules import Actor, MLP
    >>> actor = Actor(MLP(3, torch.Size([4, 2])))  # four actions of two numbers
    >>> TemporalEnsemble(actor, (4, 2)).out_keys
    ['action', ('next', 'action_means'), ('next', 'action_age')]
    """

    def __init__(
        self,
        actor: nn.Module,
        chunk_shape: Sequence[int],
        *,
        decay: float = 0.01,
        action_key: Key = "action",
        init_key: Key = "is_init",
    ) -> None:
        super().__init__()
        self.actor, self.chunk_shape, self.decay = actor, tuple(chunk_shape), decay
        self.action_key = as_key(action_key)
        written = [as_key(key) for key in actor.out_keys]  # type: ignore[union-attr]
        if self.action_key not in written:
            raise PolicyError(
                f"TemporalEnsemble needs {self.action_key!r}; {type(actor).__name__} writes {written}. Name the chunk: "
                "action_key=..."
            )
        if len(self.chunk_shape) < 2 or self.chunk_shape[0] < 1 or not math.isfinite(decay):
            raise SpecError(
                f"TemporalEnsemble needs chunk_shape=(T, A) with T >= 1, and a finite decay; got {self.chunk_shape} "
                f"and {decay}"
            )
        self._place = written.index(self.action_key)
        name = leaf_name(self.action_key)
        self._means, self._age = (sibling(self.action_key, f"{name}_{part}") for part in ("means", "age"))
        self._init_key = init_key
        self._given = [as_key(key) for key in actor.in_keys]  # type: ignore[union-attr]
        inputs = [*self._given, self._means, self._age]
        inputs += [] if init_key in inputs else [init_key]
        self._set_keys(inputs, [self.action_key, join("next", self._means), join("next", self._age)])
        self._newest: Tensor
        self.register_buffer("_newest", newest_share(self.chunk_shape[0], decay), persistent=False)

    def carried_state(self) -> CarriedState:
        """The means of what was proposed for this step and those after it, and the number of steps taken."""
        means = Unbounded(shape=self.chunk_shape, dtype=self._newest.dtype)
        return CarriedState({self._means: means, self._age: Unbounded(shape=(1,), dtype=torch.int64)}, [self._init_key])

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        values = dict(zip(self.in_keys, inputs, strict=True))
        means, age = values[self._means], values[self._age]
        first = values[self._init_key].reshape(age.shape)
        age = age.masked_fill(first, 0)
        extra = (1,) * (len(self.chunk_shape) - 1)
        means = means.masked_fill(first.reshape(*first.shape, *extra), 0)
        steps = self.chunk_shape[0]
        chunk = self._propose([values[key] for key in self._given], age.shape[:-1])
        # Of the step j from now a chunk was made at each of the last T - 1 - j steps, as far as the episode goes back.
        made = torch.minimum(age, torch.arange(steps - 1, -1, -1, device=age.device))
        share = self._newest[made].reshape(*made.shape, *extra)
        means = torch.lerp(means, chunk, share)
        now, later = means.split([1, steps - 1], age.ndim - 1)
        ahead = torch.cat([later, torch.zeros_like(now)], age.ndim - 1)
        return now.squeeze(age.ndim - 1), ahead, (age + 1).clamp(max=steps)

    def _propose(self, given: list[Tensor], lead: torch.Size) -> Tensor:
        """The actor's chunk."""
        bare = row_policy(self.actor)
        if bare is not None:
            chunk: Tensor = bare.call(*given)[self._place]
        else:
            data = self.actor(TensorDict(dict(zip(self._given, given, strict=True)), batch_size=lead))
            chunk = data.get(self.action_key)
        if chunk.shape != (*lead, *self.chunk_shape):
            raise PolicyError(
                f"{type(self.actor).__name__} wrote the chunk {self.action_key!r} of shape {list(chunk.shape)}; with "
                f"chunk_shape={self.chunk_shape} it must be {[*lead, *self.chunk_shape]}"
            )
        return chunk


def newest_share(steps: int, decay: float) -> Tensor:
    """The newest proposal's share of the mean, where so many older ones were made: ``[steps]``, beginning with 1.

    >>> newest_share(3, 0.0)
    tensor([1.0000, 0.5000, 0.3333])
    """
    weights = (decay * torch.arange(steps, dtype=torch.float64)).exp()  # of all proposals over that of the newest
    return (1 / weights.cumsum(0)).to(torch.get_default_dtype())
