"""What is trained: each experiment is a recipe of ours on a task, and the same algorithm of a peer.

On CartPole dqn has the peer's settings; double_dqn, c51 and qr_dqn have our presets, where the step size falls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EXPERIMENTS", "Experiment"]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One algorithm on one task at a number of frames."""

    recipe: str
    """Ours."""
    env: str
    """The registry id; the part after ":" is gymnasium's."""
    frames: int
    evaluations: int = 20
    """Deterministic evaluations in a run, evenly spaced; the last one at its end."""
    eval_episodes: int = 20
    """Episodes of an evaluation."""
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Options of the recipe, beside its preset."""
    films: bool = True
    """Whether the recipe would film the policy at the end."""
    data_frames: int = 0
    """Learn from what the policy of a sac run of so many frames does, one for all seeds; 0: from the environment."""
    peers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of peers: by contender, "algorithm" (a class of stable_baselines3 or sb3_contrib) and its arguments."""


_DQN = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}

_SAC = {
    "learning_rate": 1e-3,
    "batch_size": 256,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "tau": 0.005,
    "train_freq": 32,
    "gradient_steps": 32,
    "policy_kwargs": {"net_arch": [256, 256]},
}
_TD3 = {**_SAC, "gamma": 0.98, "action_noise": 0.1}
_TQC = {**_SAC, "policy_kwargs": {"net_arch": [256, 256], "n_critics": 2, "n_quantiles": 25}}
_CROSSQ = {name: value for name, value in _SAC.items() if name != "tau"}
_A2C = {"learning_rate": 7e-4, "n_steps": 5, "gamma": 0.99, "gae_lambda": 1.0, "ent_coef": 0.0, "n_envs": 8}

_TMAZE = {
    "n_envs": 16,
    "learning_rate": 1e-3,
    "n_steps": 128,
    "batch_size": 512,
    "n_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "ent_coef": 0.01,
    "policy_kwargs": {"lstm_hidden_size": 64, "net_arch": [64, 64]},
}
_PPO = {"n_epochs": 10, "clip_range": 0.2, "vf_coef": 0.5, "max_grad_norm": 0.5}
_PPO_CARTPOLE = {
    **_PPO,
    "n_envs": 8,
    "n_steps": 64,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "gae_lambda": 0.9,
}
_PPO_LUNAR_LANDER = {
    **_PPO,
    "n_envs": 16,
    "n_steps": 256,
    "batch_size": 256,
    "learning_rate": 1e-3,
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "ent_coef": 0.01,
}
_LUNAR_LANDER = {
    "num_envs": 16,
    "frames_per_batch": 4096,
    "epochs": 10,
    "minibatch_size": 256,
    "learning_rate": 1e-3,
    "gamma": 0.999,
    "lmbda": 0.98,
    "entropy_coeff": 0.01,
    "anneal_learning_rate": False,
}

_CHEETAH = {
    "frames_per_batch": 32,
    "updates_per_batch": 32,
    "warmup_frames": 1000,
    "buffer_size": 100_000,
    "learning_rate": 1e-3,
    "gamma": 0.99,
}
_CHEETAH_TD3 = {**_SAC, "action_noise": 0.1}
_FEW = {"evaluations": 10, "eval_episodes": 5}  # episodes are long there
_PONG = {**_DQN, "learning_rate": 5e-4, "train_freq": 64, "gradient_steps": 16, "target_update_interval": 1024}
_PONG_OURS = {
    "frames_per_batch": 64,
    "updates_per_batch": 16,
    "minibatch_size": 64,
    "learning_rate": 5e-4,
    "target_update": 256,
    "annealing_frames": 16_000,
    "epsilon_end": 0.04,
}
_CQL = {"hidden": (128, 128), "minibatch_size": 128, "learning_rate": 1e-3}

EXPERIMENTS: Mapping[str, Experiment] = {
    "dqn-cartpole": Experiment(
        recipe="dqn",
        env="gym:CartPole-v1",
        frames=50_000,
        ours={"double_dqn": False, "anneal_learning_rate": False},
        peers={"sb3": {"algorithm": "DQN", **_DQN}},
    ),
    "double_dqn-cartpole": Experiment(recipe="dqn", env="gym:CartPole-v1", frames=50_000),
    "sac-pendulum": Experiment(
        recipe="sac", env="gym:Pendulum-v1", frames=6_000, peers={"sb3": {"algorithm": "SAC", **_SAC}}
    ),
    "td3-pendulum": Experiment(
        recipe="td3", env="gym:Pendulum-v1", frames=8_000, peers={"sb3": {"algorithm": "TD3", **_TD3}}
    ),
    "ddpg-pendulum": Experiment(
        recipe="ddpg", env="gym:Pendulum-v1", frames=8_000, peers={"sb3": {"algorithm": "DDPG", **_TD3}}
    ),
    "a2c-cartpole": Experiment(
        recipe="a2c", env="gym:CartPole-v1", frames=200_000, peers={"sb3": {"algorithm": "A2C", **_A2C}}
    ),
    "ppo-cartpole": Experiment(
        recipe="ppo", env="gym:CartPole-v1", frames=50_000, peers={"sb3": {"algorithm": "PPO", **_PPO_CARTPOLE}}
    ),
    "ppo-lunarlander": Experiment(
        recipe="ppo",
        env="gym:LunarLander-v3",
        frames=100_000,
        ours=_LUNAR_LANDER,
        peers={"sb3": {"algorithm": "PPO", **_PPO_LUNAR_LANDER}},
    ),
    "a2c-lunarlander": Experiment(
        recipe="a2c",
        env="gym:LunarLander-v3",
        frames=200_000,
        ours={"gamma": 0.995, "entropy_coeff": 1e-5},
        peers={"sb3": {"algorithm": "A2C", **_A2C, "gamma": 0.995, "ent_coef": 1e-5}},
    ),
    "sac-halfcheetah": Experiment(
        recipe="sac",
        env="gym:HalfCheetah-v5",
        frames=15_000,
        **_FEW,
        ours=_CHEETAH,
        peers={"sb3": {"algorithm": "SAC", **_SAC}},
    ),
    "td3-halfcheetah": Experiment(
        recipe="td3",
        env="gym:HalfCheetah-v5",
        frames=15_000,
        **_FEW,
        ours=_CHEETAH,
        peers={"sb3": {"algorithm": "TD3", **_CHEETAH_TD3}},
    ),
    "ddpg-halfcheetah": Experiment(
        recipe="ddpg",
        env="gym:HalfCheetah-v5",
        frames=15_000,
        **_FEW,
        ours=_CHEETAH,
        peers={"sb3": {"algorithm": "DDPG", **_CHEETAH_TD3}},
    ),
    "crossq-halfcheetah": Experiment(
        recipe="crossq",
        env="gym:HalfCheetah-v5",
        frames=10_000,
        **_FEW,
        ours={**_CHEETAH, "critic_hidden": (256, 256)},
        peers={
            "sb3": {
                "algorithm": "CrossQ",
                **_CROSSQ,
                "policy_kwargs": {"net_arch": {"pi": [256, 256], "qf": [256, 256]}},
            }
        },
    ),
    "tqc-halfcheetah": Experiment(
        recipe="tqc",
        env="gym:HalfCheetah-v5",
        frames=12_000,
        **_FEW,
        ours=_CHEETAH,
        peers={"sb3": {"algorithm": "TQC", **_TQC}},
    ),
    "redq-halfcheetah": Experiment(
        recipe="redq",
        env="gym:HalfCheetah-v5",
        frames=3_000,
        **_FEW,
        ours={**_CHEETAH, "updates_per_batch": 160, "policy_delay": 5},
    ),
    "c51-cartpole": Experiment(recipe="c51", env="gym:CartPole-v1", frames=50_000),
    "qr_dqn-cartpole": Experiment(
        recipe="qr_dqn",
        env="gym:CartPole-v1",
        frames=50_000,
        peers={"sb3": {"algorithm": "QRDQN", **_DQN, "policy_kwargs": {"net_arch": [256, 256], "n_quantiles": 10}}},
    ),
    "tqc-pendulum": Experiment(
        recipe="tqc", env="gym:Pendulum-v1", frames=4_000, peers={"sb3": {"algorithm": "TQC", **_TQC}}
    ),
    "crossq-pendulum": Experiment(
        recipe="crossq", env="gym:Pendulum-v1", frames=6_000, peers={"sb3": {"algorithm": "CrossQ", **_CROSSQ}}
    ),
    "redq-pendulum": Experiment(recipe="redq", env="gym:Pendulum-v1", frames=3_000),
    "recurrent_ppo-tmaze": Experiment(
        recipe="recurrent_ppo",
        env="native:TMaze",
        frames=60_000,
        peers={"sb3": {"algorithm": "RecurrentPPO", "policy": "MlpLstmPolicy", **_TMAZE}},
    ),
    "ppo-tmaze": Experiment(
        recipe="ppo",
        env="native:TMaze",
        frames=60_000,
        ours={
            "num_envs": 16,
            "frames_per_batch": 2048,
            "minibatch_size": 512,
            "learning_rate": 1e-3,
            "entropy_coeff": 0.01,
        },
    ),
    "bc-pendulum": Experiment(recipe="bc", env="gym:Pendulum-v1", frames=5_000, data_frames=6_000),
    "iql-pendulum": Experiment(recipe="iql", env="gym:Pendulum-v1", frames=8_000, data_frames=6_000),
    "td3_bc-pendulum": Experiment(recipe="td3_bc", env="gym:Pendulum-v1", frames=10_000, data_frames=6_000),
    "cql-pendulum": Experiment(recipe="cql", env="gym:Pendulum-v1", frames=4_000, data_frames=6_000, ours=_CQL),
    "dt-pendulum": Experiment(recipe="dt", env="gym:Pendulum-v1", frames=3_000, data_frames=6_000),
    "dreamer_v3-catch": Experiment(recipe="dreamer_v3", env="native:Catch", frames=20_000, films=False),
    "dqn-pong-ram": Experiment(
        recipe="dqn",
        env="gym:tasks:PongRam-v0",
        frames=100_000,
        **_FEW,
        ours=_PONG_OURS,
        peers={"sb3": {"algorithm": "DQN", **_PONG}},
    ),
    "c51-pong-ram": Experiment(
        recipe="c51",
        env="gym:tasks:PongRam-v0",
        frames=100_000,
        **_FEW,
        ours={**_PONG_OURS, "value_min": -5.0, "value_max": 5.0},
    ),
}
"""By name, in the order in which they are run."""
