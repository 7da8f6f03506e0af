"""What each environment needs of a recipe's defaults, found by trying.

Rewards are scaled so that the critic's targets stay within about 10: actor and critic share one gradient clip, and with
unscaled rewards the critic's gradient takes all of it (one seed of CartPole then fell from
497 to 137 in mid-run).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "A2C_PRESETS",
    "C51_PRESETS",
    "CQL_PRESETS",
    "CROSSQ_PRESETS",
    "DQN_PRESETS",
    "DT_PRESETS",
    "GRPO_MODEL_PRESETS",
    "GRPO_PRESETS",
    "IQL_PRESETS",
    "MAPPO_PRESETS",
    "OFFLINE_PRESETS",
    "PPO_PRESETS",
    "QMIX_PRESETS",
    "QR_DQN_PRESETS",
    "RECURRENT_PPO_PRESETS",
    "REDQ_PRESETS",
    "SAC_PRESETS",
    "SFT_MODEL_PRESETS",
    "SFT_PRESETS",
    "TD3_BC_PRESETS",
    "TD3_PRESETS",
    "TQC_PRESETS",
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

RECURRENT_PPO_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "native:TMaze": {
        "frames": 100_000,
        "num_envs": 16,
        "frames_per_batch": 2048,
        "minibatch_size": 512,
        "learning_rate": 1e-3,
        "entropy_coeff": 0.01,
        "video": False,
    },
}
"""Changes to the fields of :class:`~rl_trainers.recipes.recurrent_ppo.RecurrentPPO`, by environment."""

A2C_PRESETS: Mapping[str, Mapping[str, Any]] = {"gym:CartPole-v1": {"frames": 200_000}}
"""Changes to the fields of :class:`~rl_trainers.recipes.a2c.A2C`, by environment."""

_DQN_CARTPOLE: Mapping[str, Any] = {
    "frames": 50_000,
    "frames_per_batch": 256,
    "updates_per_batch": 128,
    "minibatch_size": 64,
    "learning_rate": 2.3e-3,
    "anneal_learning_rate": True,
    "target_update": 128,
    "annealing_frames": 8_000,
    "epsilon_end": 0.04,
}

_DQN_LUNAR_LANDER: Mapping[str, Any] = {
    "frames": 100_000,
    "frames_per_batch": 16,
    "updates_per_batch": 16,
    "minibatch_size": 128,
    "buffer_size": 50_000,
    "learning_rate": 6.3e-4,
    "target_update": 250,
    "annealing_frames": 12_000,
    "epsilon_end": 0.1,
}

DQN_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gym:CartPole-v1": _DQN_CARTPOLE,
    "gym:LunarLander-v3": _DQN_LUNAR_LANDER,
}
"""Changes to the fields of :class:`~rl_trainers.recipes.dqn.DQN`, by environment."""

C51_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Rewards of 1 a step, discounted by 0.99, add up to at most 100.
    "gym:CartPole-v1": {**_DQN_CARTPOLE, "value_min": 0.0, "value_max": 100.0},
    "gym:LunarLander-v3": {**_DQN_LUNAR_LANDER, "value_min": -200.0, "value_max": 200.0},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.dqn.C51`, by environment."""

QR_DQN_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gym:CartPole-v1": {**_DQN_CARTPOLE, "quantiles": 10},
    "gym:LunarLander-v3": _DQN_LUNAR_LANDER,
}
"""Changes to the fields of :class:`~rl_trainers.recipes.dqn.QRDQN`, by environment."""

_PENDULUM: Mapping[str, Any] = {
    "frames": 10_000,
    "frames_per_batch": 32,
    "updates_per_batch": 32,
    "learning_rate": 1e-3,
}
_LUNAR_LANDER: Mapping[str, Any] = {"frames": 200_000, "frames_per_batch": 32, "updates_per_batch": 32}
_HALF_CHEETAH: Mapping[str, Any] = {"frames": 1_000_000, "buffer_size": 1_000_000, "warmup_frames": 10_000}

SAC_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gym:Pendulum-v1": _PENDULUM,
    "gym:LunarLanderContinuous-v3": _LUNAR_LANDER,
    "gym:HalfCheetah-v5": _HALF_CHEETAH,
}
"""Changes to the fields of :class:`~rl_trainers.recipes.sac.SAC`, by environment."""

TQC_PRESETS: Mapping[str, Mapping[str, Any]] = SAC_PRESETS
"""Changes to the fields of :class:`~rl_trainers.recipes.sac.TQC`, by environment."""

REDQ_PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Five updates a frame are enough there; the paper's 20 are for MuJoCo.
    "gym:Pendulum-v1": {**_PENDULUM, "frames": 5_000, "updates_per_batch": 160, "policy_delay": 5},
    "gym:HalfCheetah-v5": {**_HALF_CHEETAH, "frames": 125_000, "warmup_frames": 5_000},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.sac.REDQ`, by environment."""

CROSSQ_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gym:Pendulum-v1": {**_PENDULUM, "critic_hidden": (256, 256)},
    "gym:HalfCheetah-v5": {**_HALF_CHEETAH, "warmup_frames": 5_000},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.sac.CrossQ`, by environment."""

TD3_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gym:Pendulum-v1": {**_PENDULUM, "gamma": 0.98},
    "gym:LunarLanderContinuous-v3": _LUNAR_LANDER,
    "gym:HalfCheetah-v5": _HALF_CHEETAH,
}
"""Changes to the fields of :class:`~rl_trainers.recipes.td3.TD3` and its predecessor, by environment."""

OFFLINE_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "gym:Pendulum-v1": {"frames": 10_000, "collect_frames": 5_000},
    "gym:HalfCheetah-v5": {"frames": 500_000, "collect_frames": 200_000},
}
"""Changes to the fields of the recipes that learn from data, by environment."""

CQL_PRESETS: Mapping[str, Mapping[str, Any]] = {
    **OFFLINE_PRESETS,
    # Rewards go down to -16: with 1 the penalty on unseen actions is lost beside the errors of values.
    "gym:Pendulum-v1": {**OFFLINE_PRESETS["gym:Pendulum-v1"], "min_q_weight": 10.0},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.offline.CQL`, by environment."""

IQL_PRESETS: Mapping[str, Mapping[str, Any]] = {
    **OFFLINE_PRESETS,
    # Rewards go down to -16: with 3 the errors of two values decide which few actions are copied at all.
    "gym:Pendulum-v1": {**OFFLINE_PRESETS["gym:Pendulum-v1"], "temperature": 0.3},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.offline.IQL`, by environment."""

TD3_BC_PRESETS: Mapping[str, Mapping[str, Any]] = {
    **OFFLINE_PRESETS,
    # Values there differ little from their mean size, by which they are divided; 2.5 leaves the data's actions behind.
    "gym:Pendulum-v1": {**OFFLINE_PRESETS["gym:Pendulum-v1"], "alpha": 0.6},
}
"""Changes to the fields of :class:`~rl_trainers.recipes.offline.TD3BC`, by environment."""

DT_PRESETS: Mapping[str, Mapping[str, Any]] = {"gym:Pendulum-v1": {"frames": 3_000, "width": 64, "layers": 2}}
"""Changes to the fields of :class:`~rl_trainers.recipes.dt.DT`, by environment."""

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
