"""``Timer``: how long the policy, the steps and the resets of an environment take."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from tensordict import TensorDictBase

from rl_core import Composite, Transform, Unbounded
from rl_core.keys import Key, as_key, as_path

__all__ = ["Timer"]


class Timer(Transform):
    """Writes seconds, float32 ``[*B]``.

    ``time_step``: of the step of the environment before this transform. ``time_policy``: between the end of the step
    (or reset) before and this step. ``time_reset``: of a reset, from the end of the step before it. What does not
    apply is 0.

    Args:
        out_keys: names of the three; default ``{time_key}_step``, ``{time_key}_policy``, ``{time_key}_reset``.
        time_key: their beginning.
    """

    def __init__(self, out_keys: Sequence[Key] | None = None, time_key: str = "time") -> None:
        super().__init__()
        names = [f"{time_key}_{what}" for what in ("step", "policy", "reset")] if out_keys is None else list(out_keys)
        if len(names) != 3:
            raise ValueError(f"Timer writes three entries (step, policy, reset); got out_keys={names}")
        self.out_keys = [as_key(as_path(key)) for key in names]
        self._idle_since: float | None = None
        self._stepping_since: float | None = None
        self._policy = 0.0

    def _write(self, tensordict: TensorDictBase, step: float, policy: float, reset: float) -> TensorDictBase:
        for key, seconds in zip(self.out_keys, (step, policy, reset), strict=True):
            tensordict.set(key, torch.full(tensordict.batch_size, seconds, device=tensordict.device))
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        now = self._stepping_since = time.perf_counter()
        self._policy = 0.0 if self._idle_since is None else now - self._idle_since
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        now = self._idle_since = time.perf_counter()
        step = 0.0 if self._stepping_since is None else now - self._stepping_since
        return self._write(next_tensordict, step, self._policy, 0.0)

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        now, before = time.perf_counter(), self._idle_since
        self._idle_since = now
        return self._write(tensordict_reset, 0.0, 0.0, 0.0 if before is None else now - before)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data stay as they are."""
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the times."""
        for key in self.out_keys:
            observation_spec.set(key, Unbounded(shape=observation_spec.shape, device=observation_spec.device))
        return observation_spec
