"""Numbers of an update: means of what each optimiser step reported, and the episodes that ended in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase

__all__ = ["MeanMetrics", "episode_metrics", "frames_in"]


class MeanMetrics:
    """Collects metrics of many optimiser steps without waiting for the device, and gives their means.

    Example:
        >>> means = MeanMetrics()
        >>> means.add({"loss": torch.tensor(1.0)}); means.add({"loss": torch.tensor(3.0), "norm": 2})
        >>> means.pop()
        {'loss': 2.0, 'norm': 2.0}
        >>> means.pop()
        {}
    """

    def __init__(self) -> None:
        self._values: dict[str, list[torch.Tensor | float]] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Note numbers or tensors (of which the mean counts); names may differ from call to call."""
        for name, value in metrics.items():
            noted = value.detach() if isinstance(value, torch.Tensor) else float(value)
            self._values.setdefault(name, []).append(noted)

    def pop(self) -> dict[str, float]:
        """The means since the last call."""
        means = {name: _mean(values) for name, values in self._values.items()}
        self._values = {}
        return means


def _mean(values: list[torch.Tensor | float]) -> float:
    tensors = [value.float().mean() for value in values if isinstance(value, torch.Tensor)]
    numbers = [value for value in values if not isinstance(value, torch.Tensor)]
    total = sum(numbers) + (torch.stack(tensors).sum().item() if tensors else 0.0)
    return total / len(values)


def frames_in(batch: TensorDictBase) -> int:
    """The environment steps of a batch; padding under ``("collector", "mask")`` does not count."""
    mask = batch.get(("collector", "mask"), None)
    return batch.numel() if mask is None else int(mask.sum())


def episode_metrics(
    batch: TensorDictBase,
    *,
    return_key: Any = ("next", "episode_reward"),
    length_key: Any = ("next", "step_count"),
    done_key: Any = ("next", "done"),
) -> dict[str, float]:
    """The episodes that ended in a batch: mean return, mean length (steps) and their count.

    Args:
        batch: ``[*B, T]`` from a collector whose environment has the transforms RewardSum and StepCounter.
        return_key: the return so far; without it the batch gives no return.
        length_key: the steps so far; without it no length.
        done_key: the end flag.

    Returns:
        ``return``, ``episode_length`` and ``episodes``; only ``episodes`` where none ended.
    """
    done = batch.get(done_key).reshape(-1)
    ended = done.nonzero().squeeze(-1)
    metrics = {"episodes": float(ended.numel())}
    if ended.numel():
        for name, key in (("return", return_key), ("episode_length", length_key)):
            values = batch.get(key, None)
            if values is not None:
                metrics[name] = values.reshape(done.shape[0], -1).sum(-1).index_select(0, ended).double().mean().item()
    return metrics
