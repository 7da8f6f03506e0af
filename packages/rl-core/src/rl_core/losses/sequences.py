"""Values of each step and of the step after it, from a network that reads whole sequences.

The entries under "next" are no sequence: behind the last observation of an episode stands the *second* observation of
the following one. Here each row is laid out as it was lived, last observations included, and the network runs once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_core.errors import SpecError
from rl_core.keys import Key, as_key
from rl_core.losses.networks import call_on_tensors
from rl_core.policy_state import carried_state

__all__ = ["LivedSequence", "sequence_outputs"]


class LivedSequence:
    """Each row of a batch as it was lived: its steps, and behind each that has no successor the observation it led to.

    After each step that is done or whose successor is flagged as a first step, and after the last one, the next
    observation is put in; everywhere else the successor itself is it. What a network gives for the next observation
    thus follows from the state that it reaches at their step, and never from that of another episode.

    Args:
        ends: bool ``[*B, T]``, True where the successor of a step is not the following row; see :meth:`of`.

    Attributes:
        batch_size: ``[*B, T + E]``, that of the laid out steps.
    """

    def __init__(self, ends: Tensor) -> None:
        self._size = ends.shape
        steps = ends.shape[-1]
        ends = ends.reshape(-1, steps).clone()
        ends[:, -1] = True
        place = torch.arange(steps, device=ends.device) + ends.long().cumsum(-1) - ends.long()  # of each step
        rows = torch.arange(ends.shape[0], device=ends.device).unsqueeze(-1)
        source = rows * (2 * steps) + torch.arange(steps, device=ends.device)
        total = int(place[:, -1].max()) + 2
        # The last observation, where a row has nothing more to say.
        gather = (rows * (2 * steps) + (2 * steps - 1)).repeat(1, total)
        gather.scatter_(1, place, source)
        row, step = ends.nonzero(as_tuple=True)
        gather[row, place[row, step] + 1] = source[row, step] + steps
        self._gather = gather.flatten()
        self._where = (place + rows * total).flatten()
        self.batch_size = torch.Size((*self._size[:-1], total))

    @classmethod
    def of(
        cls, network: nn.Module, observation: Sequence[Tensor], batch_size: torch.Size, done: Tensor | None = None
    ) -> LivedSequence:
        """The layout of a batch for a network that :func:`~rl_core.reads_sequences`.

        Args:
            network: the network.
            observation: its inputs, one tensor ``[*B, T, ...]`` for each in_key, flags on first steps among them.
            batch_size: ``[*B, T]``, time last.
            done: bool ``[*B, T, 1]``, the end flags under "next"; needed for padded rows, which no first step follows.

        Raises:
            SpecError: there is no time dimension, or the network reads no flag on first steps.
        """
        if not batch_size:
            raise SpecError("a network that reads sequences needs a batch [*B, T]; this one has no dimensions")
        ends = _episode_ends(network, observation, batch_size)
        if done is not None:
            ends |= done.reshape(*ends.shape, -1).any(-1)
        return cls(ends.reshape(batch_size))

    def join(self, now: Tensor, following: Tensor) -> Tensor:
        """The laid out steps ``[*B, T + E, ...]`` of an entry and of that under "next", both ``[*B, T, ...]``."""
        dims = len(self._size)
        both = torch.cat([now, following.to(now.dtype)], dims - 1)
        lived = both.flatten(0, dims - 1).index_select(0, self._gather)
        return lived.reshape(*self.batch_size, *now.shape[dims:])

    def split(self, values: Tensor, lead: int = 0) -> tuple[Tensor, Tensor]:
        """What belongs to each step and to the next one, both ``[*L, *B, T, ...]``, of values ``[*L, *B, T + E, ...]``.

        Args:
            values: what was computed of the laid out steps.
            lead: number of dimensions L before the batch's.
        """
        flat = values.flatten(lead, lead + len(self._size) - 1)
        pair = flat.index_select(lead, self._where), flat.index_select(lead, self._where + 1)
        now, following = (part.unflatten(lead, self._size) for part in pair)
        return now, following


def sequence_outputs(
    network: nn.Module,
    observation: Sequence[Tensor],
    following: Sequence[Tensor],
    key: Key,
    batch_size: torch.Size,
    done: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One output of a network at each step and at the next one, by one call on ``[*B, T + E]`` steps.

    The steps are laid out as they were lived, see :class:`LivedSequence`.

    Args:
        network: a network that :func:`~rl_core.reads_sequences`.
        observation: its inputs, one tensor ``[*B, T, ...]`` for each in_key.
        following: its inputs under "next".
        key: the output that is wanted.
        batch_size: ``[*B, T]``, time last.
        done: bool ``[*B, T, 1]``, the end flags under "next"; needed for padded rows, which no first step follows.

    Returns:
        The output at each step and that at the next, both ``[*B, T, ...]``.

    Raises:
        SpecError: there is no time dimension, or the network reads no flag on first steps.
    """
    lived = LivedSequence.of(network, observation, batch_size, done)
    inputs = [lived.join(now, then) for now, then in zip(observation, following, strict=True)]
    return lived.split(call_on_tensors(network, inputs, key, lived.batch_size))


def _episode_ends(network: nn.Module, observation: Sequence[Tensor], batch_size: torch.Size) -> Tensor:
    """Flags ``[N, T]`` of steps whose successor is a first step, and the last one."""
    keys = [as_key(key) for key in network.in_keys]  # type: ignore[union-attr]
    steps = batch_size[-1]
    ends = torch.zeros(batch_size, dtype=torch.bool, device=observation[0].device).reshape(-1, steps)
    found = [key for key in carried_state(network).init_keys if key in keys]
    if not found:
        raise SpecError(
            f"{type(network).__name__} reads sequences without a flag on first steps; its in_keys are {keys}"
        )
    for key in found:
        first = observation[keys.index(key)].reshape(-1, steps)
        ends[:, :-1] |= first[:, 1:]
    ends[:, -1] = True
    return ends
