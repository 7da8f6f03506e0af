"""BenchMARL as one run: MAPPO, IPPO or QMIX with the hyperparameters of our recipes, its learning curve to a CSV.

    python benchmarks/marl_learning/benchmarl_run.py mappo navigation --frames 60000 --seed 0 --out run.csv

Runs in an environment of its own, see requirements/benchmarl.txt. What its configuration does not offer stays as it is
there: actor and critic have an optimiser each, each with its own gradient clip.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig, QmixConfig
from benchmarl.environments import PettingZooClass, PettingZooTask, VmasTask
from benchmarl.experiment import Callback, Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from mpe2 import simple_spread_v3
from tensordict import TensorDictBase
from torchrl.envs import EnvBase, PettingZooWrapper

ON_POLICY = ("mappo", "ippo")


class Curve(Callback):
    """Keeps, for every collected batch, the frames so far and the mean return of an agent over the ended episodes."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []
        self.frames = 0

    def on_batch_collected(self, batch: TensorDictBase) -> None:
        """Called after each collection."""
        self.frames += batch.numel()
        ended = batch["next", "done"].squeeze(-1)
        if not bool(ended.any()):
            return
        (group,) = self.experiment.group_map
        returns = batch["next", group, "episode_reward"][ended]
        self.points.append((self.frames, returns.double().mean().item()))
        print(*self.points[-1], flush=True)


class Spread(PettingZooClass):
    """simple_spread of mpe2: BenchMARL's own task looks for it in ``pettingzoo.mpe``, which PettingZoo 1.27 has not."""

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Makes one environment."""
        game = {"N": 3, "local_ratio": 0.5, "max_cycles": 25, "continuous_actions": continuous_actions}
        return lambda: PettingZooWrapper(simple_spread_v3.parallel_env(**game), seed=seed, device=device)

    def has_state(self) -> bool:
        """The state is what all agents observe, as in our recipe."""
        return False

    def state_spec(self, env: EnvBase) -> None:
        """None: no entry of its own."""
        return None


def task_of(name: str) -> Any:
    """The task with the same settings as the environment that our recipe makes."""
    if name == "navigation":
        task = VmasTask.NAVIGATION.get_from_yaml()
        task.config.update(n_agents=4, shared_rew=True, max_steps=100)  # the scenario's own defaults
        return task
    own = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    return Spread(own.name, {**own.config, "max_cycles": 25, "local_ratio": 0.5, "N": 3})


def experiment_config(algorithm: str, task: str, frames: int, folder: str) -> ExperimentConfig:
    """BenchMARL's defaults, changed to our recipe's values."""
    config = ExperimentConfig.get_from_yaml()
    config.max_n_frames, config.max_n_iters = frames, None
    config.evaluation, config.render, config.create_json = False, False, False
    config.loggers, config.save_folder = [], folder
    config.gamma = 0.9 if algorithm == "qmix" else 0.99  # QMIX's values run away with 0.99, theirs as well as ours
    config.adam_eps = 1e-8
    config.prefer_continuous_actions = task == "navigation"
    values: dict[tuple[str, str], dict[str, Any]] = {
        ("on", "navigation"): {
            "lr": 3e-4,
            "clip_grad_val": 1.0,
            "on_policy_collected_frames_per_batch": 6000,
            "on_policy_n_envs_per_worker": 60,
            "on_policy_n_minibatch_iters": 30,
            "on_policy_minibatch_size": 400,
        },
        ("on", "spread"): {
            "lr": 7e-4,
            "clip_grad_val": 1.0,
            "on_policy_collected_frames_per_batch": 5000,
            "on_policy_n_envs_per_worker": 1,
            "on_policy_n_minibatch_iters": 10,
            "on_policy_minibatch_size": 500,
        },
        ("off", "spread"): {
            "lr": 5e-4,
            "clip_grad_val": 10.0,
            "polyak_tau": 0.01,
            "exploration_eps_init": 1.0,
            "exploration_eps_end": 0.05,
            "exploration_anneal_frames": frames // 5,
            "off_policy_collected_frames_per_batch": 100,
            "off_policy_n_envs_per_worker": 1,
            "off_policy_n_optimizer_steps": 8,
            "off_policy_train_batch_size": 256,
            "off_policy_memory_size": 100_000,
            "off_policy_init_random_frames": 2000,
        },
    }
    for name, value in values["on" if algorithm in ON_POLICY else "off", task].items():
        setattr(config, name, value)
    return config


def algorithm_config(algorithm: str, task: str) -> Any:
    """The algorithm with our recipe's values."""
    if algorithm == "qmix":
        return QmixConfig.get_from_yaml()
    config = {"mappo": MappoConfig, "ippo": IppoConfig}[algorithm].get_from_yaml()
    config.loss_critic_type, config.clip_epsilon, config.critic_coef = "smooth_l1", 0.2, 1.0
    config.lmbda, config.entropy_coef = (0.9, 1e-4) if task == "navigation" else (0.95, 0.01)
    return config


def model_config(algorithm: str, task: str) -> MlpConfig:
    """The networks' layers; our QMIX agents have rectifiers, our actors and critics tanh."""
    config = MlpConfig.get_from_yaml()
    if algorithm == "qmix":
        config.num_cells, config.activation_class = [128, 128], torch.nn.ReLU
    else:
        config.num_cells = [256, 256] if task == "navigation" else [64, 64]
        config.activation_class = torch.nn.Tanh
    return config


def main() -> None:
    """One run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=[*ON_POLICY, "qmix"])
    parser.add_argument("task", choices=["navigation", "spread"])
    parser.add_argument("--frames", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="CSV")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    curve = Curve()
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            task_of(options.task),
            algorithm_config(options.algorithm, options.task),
            model_config(options.algorithm, options.task),
            seed=options.seed,
            config=experiment_config(options.algorithm, options.task, options.frames, folder),
            callbacks=[curve],
        )
        experiment.run()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("frames", "return"), *curve.points])


if __name__ == "__main__":
    main()
