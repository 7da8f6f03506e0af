"""Soft actor-critic and its kin in one flat script: sac, redq, tqc and crossq differ in critics and loss only.

Read :meth:`SAC.train` from top to bottom: collect a few frames with the stochastic policy, keep them, and make a few
updates of critics, actor and temperature. Haarnoja et al. 2018, arXiv 1812.05905.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core import registry
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.recipes.presets import CROSSQ_PRESETS, REDQ_PRESETS, SAC_PRESETS, TQC_PRESETS
from rl_trainers.recipes.replay import ReplayRecipe, total_loss
from rl_trainers.recipes.single_agent import check_continuous

__all__ = ["REDQ", "SAC", "TQC", "CrossQ"]


@dataclass(frozen=True, kw_only=True)
class SAC(ReplayRecipe):
    """Train a tanh-squashed normal policy by soft actor-critic: bounded continuous actions, vector observations."""

    recipe: ClassVar[str] = "sac"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = SAC_PRESETS
    unit_actions: ClassVar[bool] = True

    env: str = "gym:Pendulum-v1"
    """Registry id of the environment, "provider:id"."""
    critic_hidden: tuple[int, ...] = ()
    """Units of each hidden layer of the critics; as in the actor if empty."""
    num_critics: int = 2
    """Critics, each drawn for itself."""
    tau: float = 0.005
    """Share of the critics that enters their targets after each update."""
    alpha_init: float = 1.0
    """The temperature at the start: the weight of the entropy."""
    policy_delay: int = 1
    """Updates of the critics to one of the actor and the temperature."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        train_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Environments and networks.
        env, eval_env, observation_keys = self.make_envs(stack)
        check_continuous(env, self.env, self.recipe)
        actor = registry.modules.get("build_actor")(
            env.action_spec_unbatched,
            lambda outputs: self.make_net(_count_inputs(env, observation_keys), outputs, self.hidden),
            observation_keys,
            return_log_prob=False,
        )
        critic = self.make_critic(env, observation_keys)
        actor.eval()  # while it acts, which matters to normalised layers only
        critic.eval()(actor(env.reset()))  # the first call finds the number of inputs
        critic.train()

        # Loss, targets, optimiser, buffer.
        loss = self.make_loss(actor, critic)
        loss.make_value_estimator("td0", gamma=self.gamma)
        targets = registry.target_updates.get("soft")(loss, tau=self.tau) if loss.target_pairs() else None
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer = self.make_optimizer(parameters)
        buffer = self.make_buffer()
        collector = registry.collectors.get("serial")(
            env,
            actor,
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
                actor.train()
                first = run.updates * self.updates_per_batch
                for update in range(first, first + self.updates_per_batch if run.frames >= self.warmup_frames else 0):
                    steps = buffer.sample()
                    values = loss(steps) if update % self.policy_delay == 0 else _critics_only(loss, steps)
                    optimizer.zero_grad()
                    total_loss(values).backward()
                    optimizer.step()  # parameters without a gradient stay as they are
                    if targets is not None:
                        targets.step()
                    if self.prioritized:
                        buffer.update_tensordict_priority(steps)
                    run.record(values)
                actor.eval()
                collector.update_policy_weights_()
                if self.evaluation_due(run):
                    self.evaluate_now(run, eval_env, actor, eval_seed)
            result = self.evaluate_now(run, eval_env, actor, eval_seed)
        self.finish(folder, run, actor, result, title=self.title, video_seed=video_seed)
        return result

    # ---------------------------------------------------------------- what the kin differ in
    title: ClassVar[str] = "SAC"
    """What the learning curve is called."""

    def make_net(self, inputs: int, outputs: int, hidden: Sequence[int]) -> nn.Module:
        """The net of the actor or of a critic: :meth:`make_mlp`, unless it must know its inputs from the start."""
        return self.make_mlp(outputs, hidden)

    def make_mlp(self, outputs: int, hidden: Sequence[int]) -> nn.Module:
        """A perceptron of the actor's or the critics' kind; its inputs are found at the first call."""
        net: nn.Module = registry.modules.get("mlp")(
            out_features=outputs, num_cells=list(hidden), activation_class=nn.ReLU
        )
        return net

    def make_critic(self, env: Any, observation_keys: Sequence[Any], outputs: int = 1) -> nn.Module:
        """One critic of observations and an action; the loss makes the others of it."""
        inputs = _count_inputs(env, observation_keys) + env.action_spec.shape[-1]
        net = self.make_net(inputs, outputs, self.critic_hidden or self.hidden)
        critic: nn.Module = registry.modules.get("value_operator")(net, in_keys=[*observation_keys, "action"])
        return critic

    def make_loss(self, actor: nn.Module, critic: nn.Module) -> Any:
        """The losses of critics, actor and temperature."""
        return registry.losses.get("sac")(actor, critic, **self.shared_options(), loss_function="l2")

    def shared_options(self) -> dict[str, Any]:
        """The loss's options that all of the kin have."""
        return {"num_qvalue_nets": self.num_critics, "alpha_init": self.alpha_init}

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Of all networks and the temperature."""
        return torch.optim.Adam(parameters, lr=self.learning_rate, fused=True)


@dataclass(frozen=True, kw_only=True)
class REDQ(SAC):
    """Train by randomised ensembled double Q-learning: many critics, many updates a frame, few frames.

    Chen et al. 2021, arXiv 2101.05982.
    """

    recipe: ClassVar[str] = "redq"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = REDQ_PRESETS
    title: ClassVar[str] = "REDQ"

    updates_per_batch: int = 1280
    """Optimiser steps in a round."""
    num_critics: int = 10
    """Critics, each drawn for itself."""
    subset: int = 2
    """Critics, drawn anew at each update, whose smallest value is the target's."""
    policy_delay: int = 20
    """Updates of the critics to one of the actor and the temperature."""

    def make_loss(self, actor: nn.Module, critic: nn.Module) -> Any:
        """The losses of critics, actor and temperature."""
        options = {"sub_sample_len": self.subset, "min_alpha": None, "max_alpha": None, "loss_function": "l2"}
        return registry.losses.get("redq")(actor, critic, **self.shared_options(), **options)


@dataclass(frozen=True, kw_only=True)
class TQC(SAC):
    """Train by truncated quantile critics: distributions of returns, whose highest part does not enter the target.

    Kuznetsov et al. 2020, arXiv 2005.04269.
    """

    recipe: ClassVar[str] = "tqc"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = TQC_PRESETS
    title: ClassVar[str] = "TQC"

    quantiles: int = 25
    """Quantiles of each critic."""
    drop_quantiles: int = 2
    """Of the target's quantiles, how many of the highest are left out, for each critic."""

    def make_critic(self, env: Any, observation_keys: Sequence[Any], outputs: int = 1) -> nn.Module:
        """One critic of quantiles."""
        return super().make_critic(env, observation_keys, self.quantiles)

    def make_loss(self, actor: nn.Module, critic: nn.Module) -> Any:
        """The losses of critics, actor and temperature."""
        options = {"top_quantiles_to_drop_per_net": self.drop_quantiles}
        return registry.losses.get("tqc")(actor, critic, **self.shared_options(), **options)


@dataclass(frozen=True, kw_only=True)
class CrossQ(SAC):
    """Train by CrossQ: batch renormalisation, of the critics above all, instead of target networks.

    Bhatt et al. 2024, arXiv 1902.05605.
    """

    recipe: ClassVar[str] = "crossq"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = CROSSQ_PRESETS
    title: ClassVar[str] = "CrossQ"

    learning_rate: float = 1e-3
    """Adam's step size."""
    critic_hidden: tuple[int, ...] = (1024, 1024)
    """Units of each hidden layer of the critics; as in the actor if empty."""
    policy_delay: int = 3
    """Updates of the critics to one of the actor and the temperature."""
    norm_warmup: int = 100_000
    """Updates before the normalisation follows the running moments."""

    def make_net(self, inputs: int, outputs: int, hidden: Sequence[int]) -> nn.Module:
        """The net of the actor or of a critic: what each linear layer reads is normalised."""
        norm, layers = registry.modules.get("batch_renorm"), list[nn.Module]()
        for before, after in pairwise([inputs, *hidden, outputs]):
            layers += [norm(before, eps=1e-3, warmup_steps=self.norm_warmup), nn.Linear(before, after), nn.ReLU()]
        return _Joined(*layers[:-1])

    def make_loss(self, actor: nn.Module, critic: nn.Module) -> Any:
        """The losses of critics, actor and temperature."""
        return registry.losses.get("crossq")(actor, critic, **self.shared_options(), loss_function="l2")

    def make_optimizer(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        """Of all networks and the temperature, with the paper's short memory of gradients."""
        return torch.optim.Adam(parameters, lr=self.learning_rate, betas=(0.5, 0.999), fused=True)


class _Joined(nn.Sequential):
    """Layers of the inputs side by side."""

    def forward(self, *inputs: Tensor) -> Tensor:
        output: Tensor = super().forward(torch.cat(inputs, -1))
        return output


def _count_inputs(env: Any, observation_keys: Sequence[Any]) -> int:
    """Numbers in the observations of a step."""
    return sum(env.observation_spec[key].shape[-1] for key in observation_keys)


def _critics_only(loss: Any, steps: TensorDictBase) -> dict[str, Tensor]:
    """The losses of an update that leaves actor and temperature alone."""
    value, logs = loss.qvalue_loss(steps)
    return {"loss_qvalue": value, **logs}
