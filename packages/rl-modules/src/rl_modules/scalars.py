"""Numbers as tensors without dims, made once: torch wraps a Python number anew at each operation."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["scalar"]


@lru_cache(maxsize=1024)
def scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A constant; not to be changed in place.

    Args:
        value: the number.
        dtype: type of the tensor.
        device: where it lies.
    """
    with torch.inference_mode(False):  # it outlives the call that made it
        return torch.tensor(value, dtype=dtype, device=device)
