"""Deterministic policy gradients in one flat script: td3, and ddpg, its predecessor with one critic.

Read :meth:`TD3.train` from top to bottom: collect a few frames with noise on the actions, keep them, and make a few
updates of critics and, less often, of the actor. Fujimoto et al. 2018, arXiv 1802.09477.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core import registry
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.recipes.presets import TD3_PRESETS
from rl_trainers.recipes.replay import ReplayRecipe, total_loss
from rl_trainers.recipes.single_agent import check_continuous

__all__ = ["DDPG", "TD3"]


@dataclass(frozen=True, kw_only=True)
class TD3(ReplayRecipe):
    """Train a deterministic policy by twin delayed policy gradients, for bounded continuous actions."""

    recipe: ClassVar[str] = "td3"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = TD3_PRESETS
    title: ClassVar[str] = "TD3"
    unit_actions: ClassVar[bool] = True

    env: str = "gym:Pendulum-v1"
    """Registry id of the environment, "provider:id"."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    tau: float = 0.005
    """Share of the networks that enters their targets after each update of the actor."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on collected actions, in halves of the action's range."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target's actions, in the same unit."""
    noise_clip: float = 0.5
    """Largest noise on the target's actions, in the same unit."""
    policy_delay: int = 2
    """Updates of the critics to one of the actor and the targets."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        train_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Environments, the policy, the one that explores, and a critic.
        env, eval_env, observation_keys = self.make_envs(stack)
        check_continuous(env, self.env, self.recipe)
        spec = env.action_spec_unbatched
        mlp, sequential = registry.modules.get("mlp"), registry.modules.get("sequential")
        shape: dict[str, Any] = {"num_cells": list(self.hidden), "activation_class": nn.ReLU}
        actor = sequential(
            registry.modules.get("actor")(mlp(out_features=spec.shape[0], **shape), observation_keys, ["param"]),
            registry.modules.get("tanh")(["param"], ["action"], spec=spec),
        )
        critic = registry.modules.get("value_operator")(
            mlp(out_features=1, **shape), in_keys=[*observation_keys, "action"]
        )
        critic(actor(env.reset()))  # the first call finds the number of inputs
        sigma = self.exploration_noise
        explorer = registry.modules.get("additive_gaussian")(spec, sigma_init=sigma, sigma_end=sigma)

        # Loss, targets, optimiser, buffer.
        loss = self.make_loss(actor, critic, spec)
        loss.make_value_estimator("td0", gamma=self.gamma)
        targets = registry.target_updates.get("soft")(loss, tau=self.tau)
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate, fused=True)
        buffer = self.make_buffer()
        collector = registry.collectors.get("serial")(
            env,
            sequential(actor, explorer),
            frames_per_batch=self.frames_per_batch,
            total_frames=self.frames,
            init_random_frames=self.warmup_frames,
        )
        stack.callback(collector.shutdown)

        run = self.open_run(folder, stack, loss=loss, optimizer=optimizer, buffer=buffer, collector=collector)
        if not self.resume:
            collector.set_seed(train_seed)

        # The algorithm. The actor's loss passes no gradient into the critics, so that one backward pass serves both.
        with run:
            for batch in run.batches(collector):  # [N, T]
                self.store(buffer, batch, observation_keys)
                self.anneal_beta(buffer, run.frames)
                first = run.updates * self.updates_per_batch
                for update in range(first, first + self.updates_per_batch if run.frames >= self.warmup_frames else 0):
                    steps, whole = buffer.sample(), update % self.policy_delay == 0
                    values = loss(steps) if whole else self.critics_only(loss, steps)
                    optimizer.zero_grad()
                    total_loss(values).backward()
                    optimizer.step()  # parameters without a gradient stay as they are
                    if whole:
                        targets.step()
                    if self.prioritized:
                        buffer.update_tensordict_priority(steps)
                    run.record(values)
                collector.update_policy_weights_()
                if self.evaluation_due(run):
                    self.evaluate_now(run, eval_env, actor, eval_seed)
            result = self.evaluate_now(run, eval_env, actor, eval_seed)
        self.finish(folder, run, actor, result, title=self.title, video_seed=video_seed)
        return result

    # ---------------------------------------------------------------- what ddpg differs in
    def make_loss(self, actor: nn.Module, critic: nn.Module, spec: Any) -> Any:
        """The losses of critics and actor."""
        return registry.losses.get("td3")(
            actor,
            critic,
            action_spec=spec,
            policy_noise=self.policy_noise,
            noise_clip=self.noise_clip,
            loss_function="l2",
        )

    def critics_only(self, loss: Any, steps: TensorDictBase) -> dict[str, Tensor]:
        """The losses of an update that leaves the actor alone."""
        value, logs = loss.qvalue_loss(steps)
        return {"loss_qvalue": value, **logs}


@dataclass(frozen=True, kw_only=True)
class DDPG(TD3):
    """Train a deterministic policy by deep deterministic policy gradients: one critic, no noise on the target.

    Lillicrap et al. 2015, arXiv 1509.02971.
    """

    recipe: ClassVar[str] = "ddpg"
    title: ClassVar[str] = "DDPG"

    policy_noise: float = 0.0
    """Without effect: the target's actions have no noise."""
    noise_clip: float = 0.0
    """Likewise."""
    policy_delay: int = 1
    """Updates of the critic to one of the actor and the targets."""

    def make_loss(self, actor: nn.Module, critic: nn.Module, spec: Any) -> Any:
        """The losses of critic and actor."""
        return registry.losses.get("ddpg")(actor, critic, delay_actor=True, loss_function="l2")

    def critics_only(self, loss: Any, steps: TensorDictBase) -> dict[str, Tensor]:
        """The losses of an update that leaves the actor alone."""
        value, logs = loss.value_loss(steps)
        return {"loss_value": value, **logs}
