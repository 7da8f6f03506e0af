"""The Composite of ten leaves, from the spec classes of whichever library."""

from __future__ import annotations

from typing import Any

import torch


def ten_leaves(specs: Any) -> Any:
    """Observations, a choice, flags and a group of agents: ten leaves, six of them at the root."""
    return specs.Composite(
        position=specs.Bounded(low=-1.0, high=1.0, shape=(3,), dtype=torch.float32),
        velocity=specs.Unbounded(shape=(6,), dtype=torch.float32),
        pixels=specs.Bounded(low=0, high=255, shape=(3, 8, 8), dtype=torch.uint8),
        action=specs.OneHot(4),
        done=specs.Categorical(2, shape=(1,), dtype=torch.bool),
        terminated=specs.Categorical(2, shape=(1,), dtype=torch.bool),
        agents=specs.Composite(
            observation=specs.Unbounded(shape=(4, 5), dtype=torch.float32),
            action=specs.Categorical(5, shape=(4,)),
            torque=specs.Bounded(low=-2.0, high=2.0, shape=(4, 2), dtype=torch.float32),
            alive=specs.Binary(n=4, dtype=torch.bool),
        ),
    )
