"""``WeightSync``: how trained weights reach the copies of a policy that act."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["WeightSync"]


@runtime_checkable
class WeightSync(Protocol):
    """Carries weights, with a version, from a learner to actors.

    Versions grow by one with each ``send``, and an actor writes the version it acted with into its data. A ``send``
    that an addressed actor does not acknowledge raises :class:`~rl_core.errors.CollectorError`. A sync never lands in
    the middle of a policy call.
    """

    @property
    def version(self) -> int:
        """The version of the weights sent last; 0 before any."""
        ...

    def send(self, weights: Any, worker_ids: list[int] | None = None) -> int:
        """Send weights to all actors, or to some; returns the version once all of them have acknowledged it."""
        ...
