"""The seeds and options of the resets to come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rl_core import spawn_seeds

__all__ = ["ResetArguments"]


class ResetArguments:
    """Holds one seed per environment until the reset that uses it; later resets go on with the simulator's generator.

    Without a seed, the first reset draws one from torch's generator, so that ``torch.manual_seed`` reproduces a run.

    Args:
        count: how many environments; None for a single one, which gets the root seed itself.
    """

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.seeds: list[int | None] | None = None
        self.options: dict[str, Any] | None = None

    def seed(self, seed: int) -> None:
        """Derive every environment's seed from one root seed."""
        self.seeds = [seed] if self.count is None else list(spawn_seeds(seed, self.count))

    def seed_each(self, seeds: Sequence[int | None]) -> None:
        """Give every environment its seed.

        Raises:
            ValueError: there are not as many seeds as environments.
        """
        if len(seeds) != (self.count or 1):
            raise ValueError(
                f"{len(seeds)} seeds for {self.count or 1} environments; give one for each, or one integer"
            )
        self.seeds = list(seeds)

    def take_seeds(self, rows: Sequence[int]) -> list[int | None]:
        """The seeds for a reset of some rows, None for the others; each is used once."""
        if self.seeds is None:
            self.seed(int(torch.randint(2**31 - 1, ()).item()))
        assert self.seeds is not None
        taken: list[int | None] = [None] * len(self.seeds)
        for row in rows:
            taken[row], self.seeds[row] = self.seeds[row], None
        return taken

    def take_options(self) -> dict[str, Any] | None:
        """The options for the next reset; used once."""
        options, self.options = self.options, None
        return None if options is None else dict(options)
