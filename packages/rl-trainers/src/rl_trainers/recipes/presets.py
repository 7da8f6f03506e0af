"""What each environment needs of a recipe's defaults, found by trying.

Rewards are scaled so that the critic's targets stay within about 10: actor and critic share one gradient clip, and with
unscaled rewards the critic's gradient takes all of it (one seed of CartPole then fell from
497 to 137 in mid-run).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "GRPO_MODEL_PRESETS",
    "GRPO_PRESETS",
    "MAPPO_PRESETS",
    "PPO_PRESETS",
    "QMIX_PRESETS",
    "SFT_MODEL_PRESETS",
    "SFT_PRESETS",
]

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

MAPPO_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "vmas:navigation": {"frames": 300_000},
    "pettingzoo:mpe2/simple_spread_v3": {
        "frames": 500_000,
        "frames_per_batch": 5000,
        "epochs": 10,
        "minibatch_size": 500,
        "learning_rate": 7e-4,
        "lmbda": 0.95,
        "entropy_coeff": 0.01,
        "hidden": (64, 64),
        "eval_episodes": 50,
    },
}
"""Changes to the fields of :class:`~rl_trainers.recipes.mappo.MAPPO`, by environment."""

QMIX_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Episodes are cut after 25 steps and bootstrapped: with 0.99 values are those of 100 steps, and the state-dependent
    # mixing weights ran away (mean value +1,670 after 100,000 frames, where no return is positive).
    "pettingzoo:mpe2/simple_spread_v3": {"frames": 200_000, "gamma": 0.9},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.qmix.QMIX`, by environment."""

GRPO_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "letters": {"frames": 12_800, "learning_rate": 2e-3},
    "addition": {
        "frames": 71_680,
        "prompts_per_batch": 32,
        "group_size": 16,
        "max_new_tokens": 1,
        "minibatch_size": 256,
        "entropy_coeff": 0.04,
    },
}
"""Changes to the fields of :class:`~rl_trainers.recipes.grpo.GRPO`, by task."""

GRPO_MODEL_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "smollm2": {
        "frames": 24,
        "prompts_per_batch": 2,
        "group_size": 4,
        "max_new_tokens": 8,
        "learning_rate": 1e-5,
        "eval_prompts": 4,
    },
}
"""Changes to them by model, over those by task."""

SFT_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "letters": {"frames": 2_600, "batch_size": 26},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.sft.SFT`, by task."""

SFT_MODEL_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "smollm2": {"frames": 24, "batch_size": 4, "learning_rate": 1e-5, "eval_prompts": 4},
}
"""Changes to them by model, over those by task."""
