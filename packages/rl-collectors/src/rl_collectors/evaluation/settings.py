"""What an evaluation is made from, and what one of them is asked for; both can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from rl_collectors.evaluation.statistics import TransformState
from rl_core.exploration import ExplorationType

__all__ = ["EvaluationSettings", "Job", "Runner"]


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """What all evaluations of an evaluator have in common; see :class:`~rl_collectors.Evaluator` for most of it.

    Attributes:
        place: "here": in the caller's thread; "thread": in one beside it; "elsewhere": in another process.
        live: the policy is the one that is trained, and acts itself where no weights are given.
        draws: seeds the random numbers of each evaluation where there is no `seed`.
    """

    env: Any
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    policy: Any = None
    policy_factory: Callable[[], Any] | None = None
    num_trajectories: int = 10
    max_steps: int | None = None
    exploration_type: ExplorationType | None = ExplorationType.DETERMINISTIC
    reward_keys: Any = "reward"
    reward_reduction: Literal["sum", "mean"] = "sum"
    metrics_fn: Callable[..., Mapping[str, Any]] | None = None
    device: torch.device | None = None
    trust_policy: bool = False
    seed: int | None = None
    draws: int = 0
    dump_video: bool = True
    video_every: int = 1
    timeout: float | None = None
    init_fn: Callable[[], Any] | None = None
    num_threads: int = 1
    place: Literal["here", "thread", "elsewhere"] = "here"
    live: bool = False


@dataclass(frozen=True)
class Job:
    """One evaluation.

    Attributes:
        number: of the evaluation, from 1.
        step: frames trained so far.
        version: of the weights.
        weights: a snapshot of them; None: those that the policy has.
        statistics: a snapshot of the training environment's; None: those that the environment has.
    """

    number: int
    step: int | None
    version: int
    weights: dict[str, Tensor] | None
    statistics: list[TransformState] | None

    @property
    def name(self) -> str:
        """In words, for messages."""
        return f"evaluation {self.number}" + ("" if self.step is None else f" at step {self.step}")


class Runner(Protocol):
    """Where evaluations happen."""

    def run(self, job: Job) -> dict[str, float]:
        """Evaluate, which takes a while; one at a time. An error is raised as it is to be told."""
        ...

    def stop(self) -> None:
        """Have an evaluation under way give up soon; called from another thread."""
        ...

    def close(self) -> None:
        """Give back what was made; calling it twice is harmless."""
        ...
