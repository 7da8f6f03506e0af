"""The process's random generators as a checkpoint component."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["GlobalRNGState"]


class GlobalRNGState:
    """The state of Python's ``random``, NumPy's global generator and torch's (CPU and, where present, CUDA).

    Example:
        >>> rng = GlobalRNGState()
        >>> state = rng.state_dict(); a = torch.rand(1)
        >>> rng.load_state_dict(state); bool(a == torch.rand(1))
        True
    """

    def state_dict(self) -> dict[str, Any]:
        """All generators' states as tensors and numbers."""
        version, words, gauss = random.getstate()
        return {
            "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
            "numpy": np.random.get_state(legacy=False),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Put every generator where it was; states of GPUs that this machine lacks are left out."""
        python = state_dict["python"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        np.random.set_state(state_dict["numpy"])
        torch.set_rng_state(state_dict["torch"].cpu())
        if torch.cuda.is_available():
            for device, state in enumerate(state_dict["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(state.cpu(), device)
