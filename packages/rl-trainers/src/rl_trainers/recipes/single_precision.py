"""Single precision, which networks have: MuJoCo's observations and many datasets come in float64."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core import registry

__all__ = ["env_in_single_precision", "rows_in_single_precision"]


def env_in_single_precision(env: Any) -> Any:
    """The environment with float32 where it has float64; itself if it has none."""
    specs = (env.full_observation_spec, env.full_reward_spec, env.full_action_spec)
    leaves = [spec for group in specs for spec in group.values(True, True)]
    if all(spec.dtype != torch.float64 for spec in leaves):
        return env
    return env.append_transform(registry.transforms.get("DoubleToFloat")())


def rows_in_single_precision(rows: TensorDictBase) -> TensorDictBase:
    """The rows with float32 where they have float64."""
    single = rows.apply(lambda leaf: leaf.float() if leaf.dtype == torch.float64 else leaf)
    assert single is not None  # it is where entries are to be left out that there may be none
    return single
