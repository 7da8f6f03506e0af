"""What each environment needs of a recipe's defaults, found by trying.

Rewards are scaled so that the critic's targets stay within about 10: actor and critic share one gradient clip, and with
unscaled rewards the critic's gradient takes all of it (one seed of CartPole then fell from
497 to 137 in mid-run).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PPO_PRESETS"]

PPO_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gym:CartPole-v1": {
        "frames": 50_000,
        "num_envs": 8,
        "frames_per_batch": 512,
        "epochs": 10,
        "minibatch_size": 256,
        "learning_rate": 1e-3,
        "gamma": 0.98,
        "lmbda": 0.9,
        "reward_scale": 0.1,
    },
    "gym:Pendulum-v1": {
        "frames": 100_000,
        "num_envs": 8,
        "frames_per_batch": 2048,
        "epochs": 10,
        "minibatch_size": 256,
        "learning_rate": 1e-3,
        "gamma": 0.98,
        "lmbda": 0.9,
        "reward_scale": 0.1,
    },
}
"""Changes to the fields of :class:`~rl_trainers.recipes.ppo.PPO`, by environment."""
