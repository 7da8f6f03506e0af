"""One optimiser per group of agents, stepped, clipped, saved and restored together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from rl_core.errors import CheckpointError, SpecError

__all__ = ["GroupOptimizers", "optimizer_per_group"]

Build = Callable[[list[nn.Parameter]], Optimizer]


class GroupOptimizers(Mapping[str, Optimizer]):
    """The optimisers of several groups: a mapping from group to optimiser, and what one does with all of them at once.

    Args:
        optimizers: one per group.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = dict(optimizers)

    def __getitem__(self, group: str) -> Optimizer:
        return self._optimizers[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._optimizers)

    def __len__(self) -> int:
        return len(self._optimizers)

    def step(self) -> None:
        """Step every group."""
        for optimizer in self._optimizers.values():
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of every group."""
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=set_to_none)

    def clip_grad_norm(self, max_norm: float) -> dict[str, Tensor]:
        """Scale the gradients of each group down to a norm of at most ``max_norm``, each group by itself.

        Args:
            max_norm: largest norm, > 0; inf only measures.

        Returns:
            The norm of each group's gradients before, a scalar.
        """
        return {
            group: nn.utils.clip_grad_norm_(
                [parameter for part in optimizer.param_groups for parameter in part["params"]], max_norm
            )
            for group, optimizer in self._optimizers.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of each group's optimiser."""
        return {group: optimizer.state_dict() for group, optimizer in self._optimizers.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore every group.

        Raises:
            CheckpointError: the state is of other groups.
        """
        if set(state_dict) != set(self._optimizers):
            raise CheckpointError(
                f"the state holds the groups {sorted(state_dict)}; the optimisers are of {sorted(self._optimizers)}. "
                "To restore some groups only: optimizers[group].load_state_dict(state[group])."
            )
        for group, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state_dict[group])


def optimizer_per_group(losses: Mapping[str, nn.Module], make: Build | Mapping[str, Build]) -> GroupOptimizers:
    """One optimiser for the trainable parameters of each group's loss.

    Args:
        losses: a loss per group.
        make: builds an optimiser from a list of parameters; or one such function per group.

    Returns:
        The optimisers by group, in the order of ``losses``.

    Raises:
        SpecError: there is no group, ``make`` lacks a group, a loss has no trainable parameter, or two groups share a
            parameter, which would be stepped twice.

    >>> import torch
    >>> losses = {"predators": nn.Linear(2, 1), "prey": nn.Linear(3, 1)}
    >>> optimizers = optimizer_per_group(losses, lambda parameters: torch.optim.Adam(parameters, lr=3e-4))
    >>> sum(loss(torch.ones(1, loss.in_features)).sum() for loss in losses.values()).backward()
    >>> sorted(optimizers.clip_grad_norm(0.5))
    ['predators', 'prey']
    >>> optimizers.step()
    >>> optimizers["prey"].param_groups[0]["lr"]
    0.0003
    """
    if not losses:
        raise SpecError("optimizer_per_group needs the loss of at least one group")
    if isinstance(make, Mapping) and set(make) != set(losses):
        raise SpecError(f"make is for the groups {sorted(make)}, the losses are of {sorted(losses)}")
    owners: dict[int, str] = {}
    optimizers = {}
    for group, loss in losses.items():
        parameters = []
        for name, parameter in loss.named_parameters():
            if not parameter.requires_grad:
                continue
            other = owners.setdefault(id(parameter), group)
            if other != group:
                raise SpecError(
                    f"the groups {other!r} and {group!r} share the parameter {name!r}, which two optimisers would step "
                    "one after the other. Give each group networks of its own, or build one optimiser over both losses."
                )
            parameters.append(parameter)
        if not parameters:
            raise SpecError(f"the loss of group {group!r} has no trainable parameter")
        optimizers[group] = (make[group] if isinstance(make, Mapping) else make)(parameters)
    return GroupOptimizers(optimizers)
