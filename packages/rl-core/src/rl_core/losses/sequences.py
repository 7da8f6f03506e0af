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

__all__ = ["sequence_outputs"]


def sequence_outputs(
    network: nn.Module,
    observation: Sequence[Tensor],
    following: Sequence[Tensor],
    key: Key,
    batch_size: torch.Size,
    done: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One output of a network at each step and at the next one, by one call on ``[*B, T + E]`` steps.

    After each step that is done or whose successor is flagged as a first step, and after the last one, the next
    observation is put in; everywhere else the successor itself is it. The next outputs thus follow from the state that
    the network reaches at their step, and never from that of another episode.

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
    if not batch_size:
        raise SpecError("a network that reads sequences needs a batch [*B, T]; this one has no dimensions")
    steps, count = batch_size[-1], batch_size.numel()
    ends = _episode_ends(network, observation, batch_size)
    if done is not None:
        ends |= done.reshape(*ends.shape, -1).any(-1)
    place = torch.arange(steps, device=ends.device) + ends.long().cumsum(-1) - ends.long()  # of each step
    rows = torch.arange(ends.shape[0], device=ends.device).unsqueeze(-1) * (2 * steps)
    source = rows + torch.arange(steps, device=ends.device)
    total = int(place[:, -1].max()) + 2
    gather = (rows + (2 * steps - 1)).repeat(1, total)  # the last observation, where a row has nothing more to say
    gather.scatter_(1, place, source)
    row, step = ends.nonzero(as_tuple=True)
    gather[row, place[row, step] + 1] = source[row, step] + steps
    dims = len(batch_size)
    inputs = []
    for now, then in zip(observation, following, strict=True):
        both = torch.cat([now, then.to(now.dtype)], dims - 1)
        lived = both.flatten(0, dims - 1).index_select(0, gather.flatten())
        inputs.append(lived.reshape(*batch_size[:-1], total, *now.shape[dims:]))
    output = call_on_tensors(network, inputs, key, torch.Size((*batch_size[:-1], total)))
    flat = output.reshape(ends.shape[0] * total, *output.shape[dims:])
    where = (place + torch.arange(ends.shape[0], device=ends.device).unsqueeze(-1) * total).flatten()
    shape = (*batch_size, *output.shape[dims:])
    assert where.numel() == count
    return flat.index_select(0, where).reshape(shape), flat.index_select(0, where + 1).reshape(shape)


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
