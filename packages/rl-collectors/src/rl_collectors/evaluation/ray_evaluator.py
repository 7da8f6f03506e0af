"""``RayEvaluator``: an evaluator in a Ray actor."""

from __future__ import annotations

from typing import Any

from rl_collectors.evaluation.evaluator import Evaluator

__all__ = ["RayEvaluator"]


class RayEvaluator(Evaluator):
    """An :class:`Evaluator` with ``backend="ray"``.

    Args:
        env: what makes the environment: a function, an ``EnvRef``, or a name such as ``"gym:CartPole-v1"``.
        policy: what is trained; the actor has a copy.
        **kwargs: see :class:`Evaluator`.
    """

    def __init__(self, env: Any, policy: Any = None, **kwargs: Any) -> None:
        super().__init__(env, policy, **{**kwargs, "backend": "ray"})
