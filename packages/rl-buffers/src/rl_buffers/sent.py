"""Tensors in pickles as plain bytes, because torch's own way moves a tensor that is sent to a spawned process.

It moves the tensor's memory, so that addresses which a kernel has kept point nowhere, and it closes the file behind a
tensor that lives only while it is pickled before the other process has opened it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["SentTensor", "received", "sent"]


class SentTensor(NamedTuple):
    """A tensor's dtype, shape and bytes; a tensor on another device is sent as it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    content: Any


def sent(tensor: Tensor) -> SentTensor:
    """What to put into a pickle in the place of a tensor; the bytes are copied when it is pickled.

    >>> received(sent(torch.tensor([[1.5, 2.0]], dtype=torch.bfloat16)))
    tensor([[1.5000, 2.0000]], dtype=torch.bfloat16)
    """
    content: Any = tensor
    if tensor.device.type == "cpu":
        content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""
    return SentTensor(tensor.dtype, tuple(tensor.shape), content)


def received(packed: SentTensor) -> Tensor:
    """The tensor that was sent, a copy."""
    if isinstance(packed.content, Tensor):
        return packed.content
    if isinstance(packed.content, np.ndarray):
        return torch.from_numpy(packed.content.copy()).view(packed.dtype).reshape(packed.shape)
    return torch.empty(packed.shape, dtype=packed.dtype)
