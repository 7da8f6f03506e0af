"""What is trained: each experiment is a recipe of ours on a task, and the same algorithm of a peer.

Our dqn, c51 and qr_dqn let the step size fall on CartPole; the peer keeps it constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EVALUATIONS", "EVAL_EPISODES", "EXPERIMENTS", "Experiment"]

EVALUATIONS = 20
"""Deterministic evaluations in a run, evenly spaced; the last one at its end."""
EVAL_EPISODES = 20
"""Episodes of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One algorithm on one task at a number of frames."""

    recipe: str
    """Ours."""
    env: str
    """The registry id; the part after ":" is gymnasium's."""
    frames: int
    ours: Mapping[str, Any] = field(default_factory=dict)
    """Options of the recipe, beside its preset."""
    data_frames: int = 0
    """Learn from the replay of a sac run of so many frames, one for all seeds; 0: learn from the environment."""
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
_CQL = {"hidden": (128, 128), "minibatch_size": 128, "learning_rate": 1e-3}

EXPERIMENTS: Mapping[str, Experiment] = {
    "dqn-cartpole": Experiment(
        recipe="dqn", env="gym:CartPole-v1", frames=50_000, peers={"sb3": {"algorithm": "DQN", **_DQN}}
    ),
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
        recipe="crossq", env="gym:Pendulum-v1", frames=4_000, peers={"sb3": {"algorithm": "CrossQ", **_CROSSQ}}
    ),
    "redq-pendulum": Experiment(recipe="redq", env="gym:Pendulum-v1", frames=2_500),
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
    "bc-pendulum": Experiment(recipe="bc", env="gym:Pendulum-v1", frames=5_000, data_frames=5_000),
    "iql-pendulum": Experiment(recipe="iql", env="gym:Pendulum-v1", frames=8_000, data_frames=5_000),
    "td3_bc-pendulum": Experiment(recipe="td3_bc", env="gym:Pendulum-v1", frames=10_000, data_frames=5_000),
    "cql-pendulum": Experiment(recipe="cql", env="gym:Pendulum-v1", frames=4_000, data_frames=5_000, ours=_CQL),
    "dt-pendulum": Experiment(recipe="dt", env="gym:Pendulum-v1", frames=3_000, data_frames=5_000),
}
"""By name, in the order in which they are run."""
