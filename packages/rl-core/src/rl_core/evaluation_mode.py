"""A policy's modules in eval mode within a block, and each in its own mode again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["evaluation_mode"]


@contextmanager
def evaluation_mode(policy: Any) -> Iterator[None]:
    """A block within which a module and all parts of it are in eval mode; other policies are left as they are.

    Args:
        policy: any policy.

    Example:
        >>> policy = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
        >>> with evaluation_mode(policy):
        ...     policy[0].training
        False
        >>> policy[0].training, policy[1].training
        (True, False)
    """
    if not isinstance(policy, nn.Module):
        yield
        return
    training = {module: module.training for module in policy.modules()}
    policy.eval()
    try:
        yield
    finally:
        for module, was_training in training.items():
            module.training = was_training
