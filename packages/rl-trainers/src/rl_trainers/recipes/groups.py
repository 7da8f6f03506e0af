"""What the multi-agent recipes share: environments of agent groups, and the returns of their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_core import registry
from rl_trainers.recipes.single_precision import env_in_single_precision

__all__ = ["episode_returns", "make_group_env", "track_episodes"]


def make_group_env(env: str, *, num_envs: int, max_steps: int) -> Any:
    """An environment of agent groups by its registry id.

    Args:
        env: "provider:id".
        num_envs: environments that step together, for batched simulators (VMAS).
        max_steps: where VMAS cuts episodes; games of PettingZoo have limits of their own.
    """
    provider = env.partition(":")[0].rpartition("/")[2]
    options: dict[str, Any] = {}
    if provider == "vmas":
        options = {"num_envs": num_envs, "max_steps": max_steps}
    elif provider == "pettingzoo":
        options = {"use_mask": True}
    return env_in_single_precision(registry.envs.make(env, **options))


def track_episodes(env: Any, groups: Sequence[str]) -> Any:
    """The environment with each agent's return so far, ``(group, "episode_reward")``, and the steps so far."""
    reward_sum = registry.transforms.get("RewardSum")(
        in_keys=[(group, "reward") for group in groups], out_keys=[(group, "episode_reward") for group in groups]
    )
    return env.append_transform(reward_sum).append_transform(registry.transforms.get("StepCounter")())


def episode_returns(batch: TensorDictBase, groups: Sequence[str]) -> dict[str, float]:
    """The mean return of an agent over the episodes that ended in a batch ``[*B, T]``; nothing where none did."""
    ended = batch.get(("next", "done")).reshape(-1).nonzero().squeeze(-1)
    if not ended.numel():
        return {}
    rows = batch.numel()
    returns = [batch.get(("next", group, "episode_reward")).reshape(rows, -1) for group in groups]
    return {"train/return": torch.cat(returns, -1).index_select(0, ended).double().mean().item()}
