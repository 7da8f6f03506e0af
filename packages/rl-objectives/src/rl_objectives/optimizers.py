"""Several optimisers stepped as one."""

from __future__ import annotations

from torch.optim import Optimizer

from rl_core.errors import SpecError

__all__ = ["group_optimizers"]


def group_optimizers(*optimizers: Optimizer) -> Optimizer:
    """One optimiser with the parameter groups of all, each with its own learning rate and options.

    Args:
        *optimizers: one or more, of one class.

    Returns:
        A new optimiser of that class, with the state gathered so far. Step it instead of the given ones.

    Raises:
        SpecError: none is given, or the classes differ.

    >>> import torch
    >>> a, b = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    >>> both = group_optimizers(torch.optim.Adam([a], lr=1e-3), torch.optim.Adam([b], lr=1e-4))
    >>> [group["lr"] for group in both.param_groups]
    [0.001, 0.0001]
    """
    if not optimizers:
        raise SpecError("group_optimizers needs at least one optimiser")
    kind = type(optimizers[0])
    for optimizer in optimizers:
        if type(optimizer) is not kind:
            names = f"{kind.__name__} and {type(optimizer).__name__}"
            raise SpecError(f"group_optimizers takes optimisers of one class; got {names}")
    groups = [dict(group) for optimizer in optimizers for group in optimizer.param_groups]
    merged = kind(groups)  # type: ignore[call-arg]
    for optimizer in optimizers:
        merged.state.update(optimizer.state)
    return merged
