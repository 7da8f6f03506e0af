"""Stable-Baselines3 as one run of an experiment, its learning curve to a CSV.

    python benchmarks/learning/sb3_run.py dqn-cartpole --seed 0 --out run.csv

Runs in the environment of the peers (stable_baselines3 and sb3_contrib 2.9.2). The settings are those of our recipe.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise

sys.path.insert(0, str(Path(__file__).resolve().parent))

from experiments import EXPERIMENTS


def starts(seed: int, episodes: int) -> list[int]:
    """The seeds of the episodes that evaluate our run of this seed, as ``rl_core.training.seeding`` draws them."""
    evaluation = _spawned(seed, 3)[1]
    return _spawned(evaluation, episodes)


def _spawned(seed: int, count: int) -> list[int]:
    return [int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(count)]


class Curve(BaseCallback):
    """Evaluates at every multiple of so many frames, on the episodes on which ours is evaluated."""

    def __init__(self, env_id: str, every: int, episodes: int, seed: int) -> None:
        super().__init__()
        self.env = SyncVectorEnv([partial(gymnasium.make, env_id)] * episodes)
        self.seeds, self.every, self.next_at = starts(seed, episodes), every, every
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps >= self.next_at:
            self.measure()
        return True

    def measure(self) -> None:
        """Add a point: the mean return of the first episode of each environment."""
        observation, _ = self.env.reset(seed=self.seeds)
        returns, running = np.zeros(len(self.seeds)), np.ones(len(self.seeds), dtype=bool)
        state, begins = None, np.ones(len(self.seeds), dtype=bool)
        while running.any():
            action, state = self.model.predict(observation, state, begins, deterministic=True)
            observation, reward, terminated, truncated, _ = self.env.step(action)
            returns += np.where(running, reward, 0.0)
            begins = terminated | truncated
            running &= ~begins
        self.points.append((self.num_timesteps, float(returns.mean())))
        self.next_at += self.every


def make_model(env: Any, settings: dict[str, Any], seed: int) -> BaseAlgorithm:
    """The algorithm with its settings."""
    name, policy = settings.pop("algorithm"), settings.pop("policy", "MlpPolicy")
    sigma = settings.pop("action_noise", None)
    if sigma is not None:
        size = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, sigma))
    library: Any = importlib.import_module("stable_baselines3")
    if not hasattr(library, name):
        library = importlib.import_module("sb3_contrib")
    model: BaseAlgorithm = getattr(library, name)(policy, env, seed=seed, device="cpu", **settings)
    return model


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--contender", default="sb3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="CSV")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    task = EXPERIMENTS[options.experiment]
    settings = dict(task.peers[options.contender])
    env_id = task.env.partition(":")[2]
    if env_id not in gymnasium.registry and ":" not in env_id:
        importlib.import_module("tasks")  # registers the tasks that are not gymnasium's
    env = make_vec_env(env_id, n_envs=settings.pop("n_envs", 1), seed=options.seed)
    model = make_model(env, settings, options.seed)
    curve = Curve(env_id, task.frames // task.evaluations, task.eval_episodes, options.seed)
    model.learn(task.frames, callback=curve)
    if curve.next_at <= task.frames:
        curve.measure()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("frames", "return"), *curve.points])


if __name__ == "__main__":
    main()
