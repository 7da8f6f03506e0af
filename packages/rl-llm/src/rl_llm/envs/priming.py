"""``ResetSource``: a transform that gives a reset its questions."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core import Transform

__all__ = ["ResetSource"]


class ResetSource(Transform):
    """Base of transforms that feed the reset of a chat environment."""

    def prime(
        self, tensordict: TensorDictBase | None, batch_size: torch.Size, columns: dict[str, Any]
    ) -> TensorDictBase | None:
        """The TensorDict to reset with.

        Args:
            tensordict: what ``reset`` was given; left as it is.
            batch_size: of the environment.
            columns: entries to write beside the first observation are added here.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prime")
