"""What a worker is made from, and what it says about itself when it is ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from rl_collectors.weights.scheme import WeightReceiver
from rl_core.envs.ends import EndGroup

__all__ = ["EnvFacts", "WorkerSettings"]


@dataclass(frozen=True)
class WorkerSettings:
    """Everything that a worker needs, in a form that can be sent.

    Attributes:
        index: of the worker, from 0.
        create_env_fn: makes its environment.
        policy: what acts; every worker has a copy.
        policy_factory: makes the policy instead.
        collector_class: what steps in the worker, a :class:`~rl_collectors.Collector`.
        collector_kwargs: further arguments of that one. Its ``frames_per_batch`` is how many frames are taken between
            two looks whether the batch shall be cut short.
        seed: of its random numbers.
        init_fn: called first.
        num_threads: of torch in the worker.
        receivers: model id -> how its weights arrive.
    """

    index: int
    create_env_fn: Any
    policy: Any
    policy_factory: Callable[[], Any] | None
    collector_class: type
    collector_kwargs: Mapping[str, Any]
    seed: int
    init_fn: Callable[[], Any] | None = None
    num_threads: int = 1
    receivers: Mapping[str, WeightReceiver] = field(default_factory=dict)


@dataclass(frozen=True)
class EnvFacts:
    """What the owner must know about a worker's environment.

    Attributes:
        batch_size: its batch size.
        end_groups: its end flags.
        name: its class, for messages.
    """

    batch_size: torch.Size
    end_groups: list[EndGroup]
    name: str
