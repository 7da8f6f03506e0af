"""Schedules of a sampler's numbers, such as alpha and beta of prioritised replay, one step at a time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rl_buffers.buffer import ReplayBuffer
from rl_core.buffers import Sampler
from rl_core.errors import CheckpointError, ReplayBufferError

__all__ = ["LambdaScheduler", "LinearScheduler", "ParameterScheduler", "SchedulerList", "StepScheduler"]


class ParameterScheduler(ABC):
    """Sets one number of a sampler at each :meth:`step`; subclasses say to what.

    Args:
        obj: a sampler, or a buffer, whose sampler is meant (the one it has when a step is made).
        param_name: the attribute, for example "beta". Its present value is the initial one.
        min_value: values below become this.
        max_value: values above become this.

    Raises:
        ReplayBufferError: the sampler has no such number.
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        self._object = obj
        self.param_name = param_name
        self.min_value = -math.inf if min_value is None else float(min_value)
        self.max_value = math.inf if max_value is None else float(max_value)
        value = getattr(self._sampler, param_name, None)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ReplayBufferError(
                f"{type(self._sampler).__name__} has no number {param_name!r} to schedule; "
                "a PrioritizedSampler has 'alpha', 'beta' and 'eps'"
            )
        self.initial_value = float(value)
        self.step_count = 0

    @property
    def _sampler(self) -> Sampler:
        return self._object.sampler if isinstance(self._object, ReplayBuffer) else self._object

    def step(self) -> None:
        """Move on by one step and set the number."""
        self.step_count += 1
        value = min(max(self.value_at(self.step_count), self.min_value), self.max_value)
        setattr(self._sampler, self.param_name, value)

    @abstractmethod
    def value_at(self, step: int) -> float:
        """The value after `step` steps, >= 1, before it is clamped."""

    def state_dict(self) -> dict[str, Any]:
        """The steps made and the initial value; the present one is in the sampler's state."""
        return {"param_name": self.param_name, "initial_value": self.initial_value, "step_count": self.step_count}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on after the saved number of steps.

        Raises:
            CheckpointError: the state is of a schedule of another number.
        """
        if state_dict["param_name"] != self.param_name:
            raise CheckpointError(
                f"the state is of a schedule of {state_dict['param_name']!r}, this one is of {self.param_name!r}"
            )
        self.initial_value, self.step_count = float(state_dict["initial_value"]), int(state_dict["step_count"])


class LinearScheduler(ParameterScheduler):
    """Goes from the initial value to `final_value` in equal steps, and stays there.

    Args:
        obj: see :class:`ParameterScheduler`.
        param_name: see :class:`ParameterScheduler`.
        final_value: the last value.
        num_steps: how many steps it takes, >= 1.

    >>> from rl_buffers import PrioritizedSampler
    >>> sampler = PrioritizedSampler(10, alpha=0.6, beta=0.4)
    >>> beta = LinearScheduler(sampler, "beta", final_value=1.0, num_steps=3)
    >>> for _ in range(4):
    ...     beta.step()
    ...     print(round(sampler.beta, 3))
    0.6
    0.8
    1.0
    1.0
    """

    def __init__(self, obj: ReplayBuffer | Sampler, param_name: str, final_value: float, num_steps: int) -> None:
        super().__init__(obj, param_name)
        if num_steps < 1:
            raise ReplayBufferError(f"num_steps must be at least 1, got {num_steps}")
        self.final_value, self.num_steps = float(final_value), int(num_steps)

    def value_at(self, step: int) -> float:
        """``initial + (final - initial) * step / num_steps``."""
        if step >= self.num_steps:
            return self.final_value
        return self.initial_value + (self.final_value - self.initial_value) * (step / self.num_steps)


class StepScheduler(ParameterScheduler):
    """Multiplies the number by `gamma`, or adds it, once every `n_steps` steps.

    Args:
        obj: see :class:`ParameterScheduler`.
        param_name: see :class:`ParameterScheduler`.
        gamma: the factor or the summand.
        n_steps: how many steps pass between two changes, >= 1.
        mode: "multiplicative" or "additive".
        min_value: see :class:`ParameterScheduler`.
        max_value: see :class:`ParameterScheduler`.

    >>> from rl_buffers import PrioritizedSampler
    >>> sampler = PrioritizedSampler(10, alpha=0.8, beta=0.4)
    >>> alpha = StepScheduler(sampler, "alpha", gamma=0.5, n_steps=2)
    >>> for _ in range(4):
    ...     alpha.step()
    ...     print(sampler.alpha)
    0.8
    0.4
    0.4
    0.2
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if mode not in ("multiplicative", "additive"):
            raise ReplayBufferError(f"mode must be 'multiplicative' or 'additive', got {mode!r}")
        if n_steps < 1:
            raise ReplayBufferError(f"n_steps must be at least 1, got {n_steps}")
        self.gamma, self.n_steps, self.mode = float(gamma), int(n_steps), mode

    def value_at(self, step: int) -> float:
        """``initial * gamma^k`` or ``initial + k gamma`` after k changes."""
        changes = step // self.n_steps
        if self.mode == "additive":
            return self.initial_value + changes * self.gamma
        return self.initial_value * self.gamma**changes


class LambdaScheduler(ParameterScheduler):
    """Sets the initial value times ``lambda_fn(step)``, steps counted from 1.

    Args:
        obj: see :class:`ParameterScheduler`.
        param_name: see :class:`ParameterScheduler`.
        lambda_fn: gives the factor; it is not part of the state.
        min_value: see :class:`ParameterScheduler`.
        max_value: see :class:`ParameterScheduler`.
    """

    def __init__(
        self,
        obj: ReplayBuffer | Sampler,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        self.lambda_fn = lambda_fn

    def value_at(self, step: int) -> float:
        """``initial * lambda_fn(step)``."""
        return self.initial_value * float(self.lambda_fn(step))


class SchedulerList:
    """Several schedules that step together.

    Args:
        schedulers: the schedules, in the order of their steps.
    """

    def __init__(self, schedulers: ParameterScheduler | Iterable[ParameterScheduler] = ()) -> None:
        self.schedulers = [schedulers] if isinstance(schedulers, ParameterScheduler) else list(schedulers)

    def append(self, scheduler: ParameterScheduler) -> None:
        """Add one at the end."""
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """One step of each."""
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of all."""
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over their states.

        Raises:
            CheckpointError: there are more or fewer.
        """
        states = state_dict["schedulers"]
        if len(states) != len(self.schedulers):
            raise CheckpointError(f"the state is of {len(states)} schedules, this list has {len(self.schedulers)}")
        for scheduler, state in zip(self.schedulers, states, strict=True):
            scheduler.load_state_dict(state)
