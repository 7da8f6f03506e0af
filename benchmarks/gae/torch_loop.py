"""A torch loop backwards over time, vectorised over the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _data import GAMMA, LMBDA, batch_of


def build(batch: int, time: int) -> Callable[[], object]:
    """One repetition is one estimate of the whole batch."""
    data = batch_of(batch, time)
    reward, done, terminated = (data["next", name] for name in ("reward", "done", "terminated"))
    value, next_value = data["state_value"], data["next", "state_value"]

    def estimate() -> tuple[torch.Tensor, torch.Tensor]:
        delta = reward + GAMMA * next_value * ~terminated - value
        decay = GAMMA * LMBDA * ~done
        advantage = torch.empty_like(delta)
        trace = torch.zeros(batch, 1)
        for t in range(time - 1, -1, -1):
            trace = delta[:, t] + decay[:, t] * trace
            advantage[:, t] = trace
        return advantage, advantage + value

    return estimate
