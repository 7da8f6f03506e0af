"""A numpy loop backwards over time, vectorised over the batch, with the deltas computed in the loop or before it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from _data import GAMMA, LMBDA, batch_of


def build(batch: int, time: int, deltas_first: bool) -> Callable[[], object]:
    """One repetition is one estimate of the whole batch."""
    data = batch_of(batch, time)
    # Time first, as rollout buffers that are written step by step lie in memory.
    reward, done, terminated, next_value = (
        np.ascontiguousarray(data["next", name][..., 0].float().numpy().T)
        for name in ("reward", "done", "terminated", "state_value")
    )
    value = np.ascontiguousarray(data["state_value"][..., 0].numpy().T)

    def in_the_loop() -> tuple[np.ndarray, np.ndarray]:
        advantage = np.empty_like(reward)
        trace = np.zeros(batch, dtype=np.float32)
        for t in range(time - 1, -1, -1):
            delta = reward[t] + GAMMA * next_value[t] * (1 - terminated[t]) - value[t]
            trace = delta + GAMMA * LMBDA * (1 - done[t]) * trace
            advantage[t] = trace
        return advantage, advantage + value

    def before_the_loop() -> tuple[np.ndarray, np.ndarray]:
        delta = reward + GAMMA * next_value * (1 - terminated) - value
        decay = np.float32(GAMMA * LMBDA) * (1 - done)
        advantage = np.empty_like(delta)
        trace = np.zeros(batch, dtype=np.float32)
        for t in range(time - 1, -1, -1):
            trace = delta[t] + decay[t] * trace
            advantage[t] = trace
        return advantage, advantage + value

    return before_the_loop if deltas_first else in_the_loop
