"""The sampler contract: which rows make up the next batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from rl_core.buffers.storage import Storage

__all__ = ["Sampler"]


class Sampler(ABC):
    """Draws slots of a storage.

    Semantics that every sampler keeps:

    - Slots are in ``range(len(storage))``; an empty storage raises :class:`~rl_core.errors.ReplayBufferError`.
    - Randomness comes from :attr:`generator`, or from torch's global generator (``torch.manual_seed``) where it is
      ``None``, and from nowhere else.
    - The buffer calls :meth:`extend` after each write, so a sampler never looks for changes itself.
    """

    generator: torch.Generator | None = None
    """A CPU generator, set by the buffer; its state is saved by whoever made it."""

    uses_priorities: bool = False
    """Whether :meth:`update_priority` has an effect."""

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """Draw the next batch.

        Args:
            storage: where the rows are.
            batch_size: the number of rows asked for, >= 1. A sampler may give fewer where its docstring says so.

        Returns:
            Slots, int64 ``[B]`` on the CPU, and a dict of extra entries, each a tensor with leading size B or a value
            about the whole batch.
        """

    def attach(self, buffer: Any) -> None:
        """Take note of the buffer that draws with this sampler, before its first use.

        A sampler that has to know more of the rows than their slots asks `buffer` for it, and goes without where it is
        used on its own or by a buffer that does not offer it.
        """
        return None

    def complete(self, batch: Any, info: dict[str, Any]) -> Any:
        """Mark in the batch what this sampler has drawn, such as where sequences were cut.

        Args:
            batch: the rows that were drawn, a copy, collated and not yet transformed.
            info: the dict that came with their slots; entries may be added, changed and taken out.

        Returns:
            The batch.
        """
        return batch

    @property
    def ran_out(self) -> bool:
        """Whether the pass over the data that :meth:`begin_epoch` started is complete; an endless sampler says no."""
        return False

    def begin_epoch(self) -> None:
        """Start a new pass: called when iteration over the buffer starts. Endless samplers ignore it."""
        return None

    def extend(self, index: torch.Tensor) -> None:
        """Take note of newly written slots, int64 ``[n]``."""
        return None

    def mark_update(self, index: torch.Tensor) -> None:
        """Take note of slots whose rows were changed in place, int64 ``[n]``."""
        return None

    def update_priority(
        self, index: torch.Tensor, priority: torch.Tensor, generation: torch.Tensor | None = None
    ) -> None:
        """Set raw priorities, ``[n]`` or ``[n, ...]``, of slots ``[n]``; negative slots are skipped.

        A sampler that gives "index_generation" (int64 ``[B]``) with its samples gets those back as `generation`, and
        skips rows that were written since. The buffer leaves `generation` out where there is none.
        """
        return None

    def empty(self) -> None:
        """Start over with an empty storage."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The position within an epoch, priorities and the like, as plain data; without the generator."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state."""
        return None
