"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, synchronous) on vector observations, in one flat script.

Read :meth:`A2C.train` from top to bottom: it builds the parts by their registry names, then loops over collect a few
steps, estimate advantages, and one optimiser step on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from rl_core import registry
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.recipes.actor_critic import make_actor, make_critic, orthogonal
from rl_trainers.recipes.presets import A2C_PRESETS
from rl_trainers.recipes.single_agent import SingleAgentRecipe

__all__ = ["A2C"]


@dataclass(frozen=True, kw_only=True)
class A2C(SingleAgentRecipe):
    """Train a policy by advantage actor-critic: an MLP actor and an MLP critic on vector observations.

    Discrete actions get a categorical policy, bounded continuous ones a tanh-squashed normal.
    """

    recipe: ClassVar[str] = "a2c"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = A2C_PRESETS

    env: str = "gym:CartPole-v1"
    """Registry id of the environment, "provider:id"."""
    num_envs: int = 8
    """Environments stepped together."""
    frames_per_batch: int = 40
    """Environment steps in one update, over all environments."""
    learning_rate: float = 7e-4
    """RMSprop's step size at the start."""
    anneal_learning_rate: bool = False
    """Whether the step size falls linearly to zero at the end of the budget."""
    gamma: float = 0.99
    """Discount per step."""
    lmbda: float = 1.0
    """Decay of the advantage estimate (GAE), between 0 (one step) and 1 (all rewards of the batch)."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    critic_coeff: float = 0.5
    """Weight of the critic's loss."""
    normalize_advantage: bool = False
    """Whether advantages are standardised over the batch."""
    max_grad_norm: float = 0.5
    """Longest gradient; longer ones are scaled down."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, in the actor and in the critic."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        train_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Environments.
        env, eval_env, observation_keys = self.make_envs(stack)

        # Networks, loss and optimiser.
        actor, critic = make_actor(env, observation_keys, self.hidden), make_critic(observation_keys, self.hidden)
        actor(critic(env.reset()))  # the first call finds the number of inputs
        orthogonal(actor, last_gain=0.01)
        orthogonal(critic, last_gain=1.0)
        gae = registry.estimators.get("gae")(gamma=self.gamma, lmbda=self.lmbda, value_network=critic)
        loss = registry.losses.get("a2c")(
            actor,
            critic,
            entropy_bonus=self.entropy_coeff > 0,
            entropy_coeff=self.entropy_coeff,
            critic_coeff=self.critic_coeff,
            loss_critic_type="l2",
            normalize_advantage=self.normalize_advantage,
        )
        parameters = list(loss.parameters())
        optimizer = torch.optim.RMSprop(parameters, lr=self.learning_rate, alpha=0.99, eps=1e-5)
        updates = math.ceil(self.frames / self.frames_per_batch)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda update: max(0.0, 1 - update / updates) if self.anneal_learning_rate else 1.0
        )
        collector = registry.collectors.get("serial")(
            env, actor, frames_per_batch=self.frames_per_batch, total_frames=self.frames
        )
        stack.callback(collector.shutdown)

        run = self.open_run(
            folder, stack, actor=actor, critic=critic, optimizer=optimizer, scheduler=scheduler, collector=collector
        )
        if not self.resume:
            collector.set_seed(train_seed)

        # The algorithm.
        used = [*observation_keys, "action", "advantage", "value_target"]
        with run:
            for batch in run.batches(collector):  # [N, T]
                with torch.no_grad():
                    gae(batch)  # writes "advantage" and "value_target"
                losses = loss(batch.select(*used).reshape(-1))
                total = sum(value for key, value in losses.items() if key.startswith("loss_"))
                optimizer.zero_grad()
                total.backward()
                grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                optimizer.step()
                scheduler.step()
                run.record({**losses, "grad_norm": grad_norm})
                collector.update_policy_weights_()
                if self.evaluation_due(run):
                    self.evaluate_now(run, eval_env, actor, eval_seed)
            result = self.evaluate_now(run, eval_env, actor, eval_seed)
        self.finish(folder, run, actor, result, title="A2C", video_seed=video_seed)
        return result
