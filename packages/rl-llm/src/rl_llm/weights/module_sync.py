"""``ModuleWeightSync``: weights of a trained module copied into modules of the same process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import CollectorError
from rl_llm.policies.base import LLMWrapperBase

__all__ = ["ModuleWeightSync", "chosen_targets", "named_weights"]


class ModuleWeightSync:
    """Copies weights into other copies of a model, e.g. the one that generates beside the one that is trained.

    Args:
        targets: policies or modules, numbered from 0.

    Example:
        >>> actor, learner = nn.Linear(2, 1), nn.Linear(2, 1)
        >>> ModuleWeightSync([actor]).send(learner)
        1
        >>> torch.equal(actor.weight, learner.weight)
        True
    """

    def __init__(self, targets: Sequence[nn.Module]) -> None:
        self.targets = list(targets)
        if not self.targets:
            raise CollectorError("ModuleWeightSync needs at least one module to send weights to")
        self._version = 0

    @property
    def version(self) -> int:
        """The version of the weights sent last; 0 before any."""
        return self._version

    @torch.no_grad()
    def send(self, weights: Any, worker_ids: list[int] | None = None) -> int:
        """Copy weights to all targets, or to some.

        Args:
            weights: a module, a policy, or names and tensors.
            worker_ids: numbers of the targets; None is all.

        Returns:
            The new version.

        Raises:
            CollectorError: names or shapes differ from a target's.
        """
        given = named_weights(weights)
        for number in chosen_targets(worker_ids, len(self.targets)):
            target = self.targets[number]
            module = target.model if isinstance(target, LLMWrapperBase) else target
            _check_same(given, module.state_dict(), number)
        self._version += 1
        for number in chosen_targets(worker_ids, len(self.targets)):
            target = self.targets[number]
            if isinstance(target, LLMWrapperBase):
                with target.engine_state.lock:
                    target.model.load_state_dict(given)
                    target.engine_state.version = self._version
            else:
                target.load_state_dict(given)
        return self._version


def named_weights(weights: Any) -> dict[str, Tensor]:
    """Names and tensors of a policy, of a module, or of a mapping.

    Raises:
        CollectorError: none of these, or nothing in it.
    """
    if isinstance(weights, LLMWrapperBase):
        weights = weights.model
    if isinstance(weights, nn.Module):
        weights = weights.state_dict()
    if not isinstance(weights, Mapping) or not weights:
        raise CollectorError(
            f"weights are a module, a policy, or a mapping of names to tensors that is not empty; got "
            f"{type(weights).__name__}"
        )
    return dict(weights)


def chosen_targets(worker_ids: list[int] | None, count: int) -> list[int]:
    """Numbers of the targets that are addressed.

    Raises:
        CollectorError: there is no target of that number.
    """
    chosen = list(range(count)) if worker_ids is None else worker_ids
    unknown = [number for number in chosen if not 0 <= number < count]
    if unknown:
        raise CollectorError(f"there are targets 0 to {count - 1}, asked for {unknown}")
    return chosen


def _check_same(given: Mapping[str, Tensor], own: Mapping[str, Tensor], number: int) -> None:
    missing, unknown = sorted(set(own) - set(given)), sorted(set(given) - set(own))
    shapes = [name for name in given if name in own and given[name].shape != own[name].shape]
    if missing or unknown or shapes:
        raise CollectorError(
            f"target {number} is another model: missing {missing[:3] or 'nothing'}, unknown {unknown[:3] or 'nothing'}"
            f", of another shape {shapes[:3] or 'nothing'}. Nothing was copied"
        )
