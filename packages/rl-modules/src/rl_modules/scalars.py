"""Numbers as tensors without dims, made once: torch wraps a Python number anew at each operation."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["scalar"]


_KNOWN: dict[tuple[float, torch.dtype, torch.device], Tensor] = {}


def scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor | float:
    """A constant; not to be changed in place. Compiled code gets the number itself, which costs nothing there.

    Args:
        value: the number.
        dtype: type of the tensor.
        device: where it lies.
    """
    if torch.compiler.is_compiling():
        return value
    key = (value, dtype, device)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= 1024:
            _KNOWN.clear()
        with torch.inference_mode(False):  # it outlives the call that made it
            found = _KNOWN[key] = torch.tensor(value, dtype=dtype, device=device)
    return found
