"""Multi-agent PPO in one flat script: with a critic that sees all agents (MAPPO) or one that sees its own (IPPO).

Read :meth:`MAPPO.train` from top to bottom: it builds an actor, a critic and a loss for each group of agents by their
registry names, then loops over collect, estimate advantages, and epochs of minibatches.
Yu et al. 2021, arXiv 2103.01955; de Witt et al. 2020, arXiv 2011.09533.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict.nn import TensorDictSequential
from torch import nn

from rl_core import registry
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.evaluation import evaluate
from rl_trainers.plots import plot_learning_curve
from rl_trainers.progress import number
from rl_trainers.recipes.groups import episode_returns, make_group_env, track_episodes
from rl_trainers.recipes.presets import MAPPO_PRESETS
from rl_trainers.recipes.recipe import Recipe

__all__ = ["IPPO", "MAPPO"]


@dataclass(frozen=True, kw_only=True)
class MAPPO(Recipe):
    """Train groups of agents by proximal policy optimisation with a critic per group that sees all its agents.

    Each agent acts on its own observation; the agents of a group share their networks unless told otherwise. Returns
    are those of one agent, the mean over all.
    """

    recipe: ClassVar[str] = "mappo"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MAPPO_PRESETS
    centralized: ClassVar[bool] = True
    """Whether a critic sees the observations of all agents of its group."""

    env: str = "vmas:navigation"
    """Registry id of the environment, "provider:id"."""
    num_envs: int = 60
    """Environments stepped together, where the simulator is batched."""
    max_steps: int = 100
    """Steps after which an episode is cut, where the simulator asks for it (VMAS)."""
    frames_per_batch: int = 6000
    """Environment steps between two updates, over all environments."""
    epochs: int = 30
    """Passes over a batch in one update."""
    minibatch_size: int = 400
    """Steps in one optimiser step."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    gamma: float = 0.99
    """Discount per step."""
    lmbda: float = 0.9
    """Decay of the advantage estimate (GAE), between 0 (one step) and 1 (whole returns)."""
    clip_epsilon: float = 0.2
    """How far the ratio of new to old probability may leave 1 before its gradient is cut."""
    entropy_coeff: float = 1e-4
    """Weight of the entropy bonus."""
    critic_coeff: float = 1.0
    """Weight of the critic's loss."""
    max_grad_norm: float = 1.0
    """Longest gradient of a group; longer ones are scaled down."""
    share_params: bool = True
    """Whether the agents of a group have one actor and one critic."""
    agent_id: bool = False
    """Whether the networks are told which agent they compute for."""
    value_norm: bool = False
    """Whether critics predict standardised values (PopArt statistics)."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer, in actors and critics."""
    eval_every: int = 0
    """Frames between two deterministic evaluations; 0 makes ten of them in the run."""
    eval_episodes: int = 20
    """Episodes of an evaluation."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it; returns are the mean over agents.
        """
        seed_everything(self.seed)
        train_seed, eval_seed = spawn_seeds(self.seed, 2)

        # Environments.
        env = make_group_env(self.env, num_envs=self.num_envs, max_steps=self.max_steps)
        groups = list(env.group_map)
        env = track_episodes(env, groups)
        stack.callback(env.close)
        eval_env = make_group_env(self.env, num_envs=self.eval_episodes, max_steps=self.max_steps)
        stack.callback(eval_env.close)

        # For each group an actor, a critic and a loss; one optimiser each.
        build_actor, build_critic = (registry.modules.get(f"build_group_{part}") for part in ("actor", "critic"))
        network = {"num_cells": self.hidden, "share_params": self.share_params, "agent_id": self.agent_id}
        actors = {group: build_actor(env, group, **network) for group in groups}
        critics = {group: build_critic(env, group, centralized=self.centralized, **network) for group in groups}
        policy = TensorDictSequential(*actors.values())
        TensorDictSequential(policy, *critics.values())(env.reset())  # the first call finds the number of inputs
        losses: dict[str, Any] = {}
        for group in groups:
            losses[group] = registry.losses.get(self.recipe)(
                actors[group],
                critics[group],
                clip_epsilon=self.clip_epsilon,
                entropy_coeff=self.entropy_coeff,
                critic_coeff=self.critic_coeff,
                loss_critic_type="l2" if self.value_norm else "smooth_l1",
                value_norm=registry.modules.get("pop_art_value_norm")() if self.value_norm else None,
            )
            losses[group].set_group(group)
            losses[group].make_value_estimator(gamma=self.gamma, lmbda=self.lmbda)
        optimizers = {
            group: torch.optim.Adam(loss.parameters(), lr=self.learning_rate) for group, loss in losses.items()
        }
        collector = registry.collectors.get("serial")(
            env, policy, frames_per_batch=self.frames_per_batch, total_frames=self.frames
        )
        stack.callback(collector.shutdown)

        run = self.open_run(
            folder,
            stack,
            losses=nn.ModuleDict(losses),
            collector=collector,
            **{f"optimizer_{group}": optimizer for group, optimizer in optimizers.items()},
        )
        if not self.resume:
            collector.set_seed(train_seed)

        # The algorithm.
        eval_every = self.eval_every or max(1, self.frames // 10)
        scored: dict[str, Any] = {"reward_key": [(group, "reward") for group in groups], "reward_reduction": "mean"}
        with run:
            for batch in run.batches(collector):  # [N, T]
                run.log(episode_returns(batch, groups))
                for loss in losses.values():
                    loss.value_estimator(batch)  # writes the group's "advantage" and "value_target"
                steps = batch.exclude("next").reshape(-1)  # [N * T]
                for _ in range(self.epochs):
                    for index in torch.randperm(len(steps)).split(self.minibatch_size):
                        minibatch = steps[index]
                        for group, loss in losses.items():
                            values = loss(minibatch)
                            total = sum(value for key, value in values.items() if key.startswith("loss_"))
                            optimizers[group].zero_grad()
                            total.backward()
                            grad_norm = nn.utils.clip_grad_norm_(loss.parameters(), self.max_grad_norm)
                            optimizers[group].step()
                            label = f"{group}/" if len(groups) > 1 else ""
                            run.record({f"{label}{key}": value for key, value in values.items()})
                            run.record({f"{label}grad_norm": grad_norm})
                collector.update_policy_weights_()
                if run.due(eval_every) and run.frames < self.frames:
                    run.log_evaluation(evaluate(eval_env, policy, self.eval_episodes, seed=eval_seed, **scored))
            result = evaluate(eval_env, policy, self.eval_episodes, seed=eval_seed, **scored)
            run.log_evaluation(result)
        curve = plot_learning_curve(
            folder / "metrics.csv",
            folder / "learning_curve.png",
            title=f"{self.recipe.upper()} on {self.env}, seed {self.seed}",
        )
        episodes = f"mean of agents, {int(result['episodes'])} episodes"
        rows = {
            "evaluation": f"return {number(result['return_mean'])} ± {number(result['return_std'])} ({episodes})",
            "learning curve": curve.name,
        }
        self.report(folder, run, rows)
        return result


@dataclass(frozen=True, kw_only=True)
class IPPO(MAPPO):
    """Train groups of agents by proximal policy optimisation, each agent with a critic that sees what it sees.

    Each agent acts on its own observation; the agents of a group share their networks unless told otherwise. Returns
    are those of one agent, the mean over all.
    """

    recipe: ClassVar[str] = "ippo"
    centralized: ClassVar[bool] = False

    env: str = "vmas:navigation"
    """Registry id of the environment, "provider:id"."""
