"""Deep Q-learning and its distributional kin in one flat script: dqn, c51 and qr_dqn differ in network and loss only.

Read :meth:`DQN.train` from top to bottom: collect with an epsilon-greedy policy, keep the steps, and fit the values of
taken actions to bootstrapped targets. Mnih et al. 2013, arXiv 1312.5602; Hessel et al. 2017, arXiv 1710.02298.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from rl_core import registry
from rl_core.errors import RLError
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.recipes.presets import C51_PRESETS, DQN_PRESETS, QR_DQN_PRESETS
from rl_trainers.recipes.replay import ReplayRecipe
from rl_trainers.recipes.single_agent import check_discrete

__all__ = ["C51", "DQN", "QRDQN"]


@dataclass(frozen=True, kw_only=True)
class DQN(ReplayRecipe):
    """Train action values of an environment with one discrete action and vector observations.

    Double Q-learning, a dueling network, prioritised replay and n-step returns are options.
    """

    recipe: ClassVar[str] = "dqn"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = DQN_PRESETS

    double_dqn: bool = True
    """Whether the online network chooses the next action that the target network judges."""
    dueling: bool = False
    """Whether the network has a head for the state's value and one for the actions' advantages."""
    target_update: int = 250
    """Optimiser steps between two copies into the target network."""
    epsilon_start: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.05
    """Share of random actions at the end of the annealing."""
    annealing_frames: int = 0
    """Steps over which that share falls; 0: a tenth of the run."""
    anneal_learning_rate: bool = False
    """Whether the step size falls linearly to zero at the end of the budget."""
    max_grad_norm: float = 10.0
    """Longest gradient; longer ones are scaled down."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        train_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Environments, the greedy policy, and the one that explores.
        env, eval_env, observation_keys = self.make_envs(stack)
        check_discrete(env, self.env, self.recipe)
        actor = self.make_actor(env, observation_keys)
        actor(env.reset())  # the first call finds the number of inputs
        explorer = registry.modules.get("egreedy")(
            env.full_action_spec_unbatched,
            eps_init=self.epsilon_start,
            eps_end=self.epsilon_end,
            annealing_num_steps=self.annealing_frames or max(1, self.frames // 10),
        )

        # Loss, targets, optimiser, buffer.
        loss = self.make_loss(actor)
        loss.make_value_estimator("td0", gamma=self.gamma)
        targets = registry.target_updates.get("hard")(loss, value_network_update_interval=self.target_update)
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate, fused=True)
        rounds = max(1, math.ceil((self.frames - self.warmup_frames) / self.frames_per_batch))
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda done: max(0.0, 1 - done / rounds) if self.anneal_learning_rate else 1.0
        )
        buffer = self.make_buffer()
        collector = registry.collectors.get("serial")(
            env,
            registry.modules.get("sequential")(actor, explorer),
            frames_per_batch=self.frames_per_batch,
            total_frames=self.frames,
            init_random_frames=self.warmup_frames,
        )
        stack.callback(collector.shutdown)

        run = self.open_run(
            folder,
            stack,
            loss=loss,
            targets=targets,
            optimizer=optimizer,
            scheduler=scheduler,
            explorer=explorer,
            buffer=buffer,
            collector=collector,
        )
        if not self.resume:
            collector.set_seed(train_seed)

        # The algorithm.
        with run:
            for batch in run.batches(collector):  # [N, T]
                self.store(buffer, batch, observation_keys)
                explorer.step(batch.numel())
                self.anneal_beta(buffer, run.frames)
                if run.frames >= self.warmup_frames:
                    for _ in range(self.updates_per_batch):
                        steps = buffer.sample()
                        values = loss(steps)
                        optimizer.zero_grad()
                        values["loss"].backward()
                        grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                        optimizer.step()
                        targets.step()
                        if self.prioritized:
                            buffer.update_tensordict_priority(steps)
                        run.record({**values, "grad_norm": grad_norm})
                    scheduler.step()
                run.log({"optim/epsilon": float(explorer.eps)})
                collector.update_policy_weights_()
                if self.evaluation_due(run):
                    self.evaluate_now(run, eval_env, actor, eval_seed)
            result = self.evaluate_now(run, eval_env, actor, eval_seed)
        self.finish(folder, run, actor, result, title=self.title, video_seed=video_seed)
        return result

    # ---------------------------------------------------------------- what the kin differ in
    @property
    def title(self) -> str:
        """What the learning curve is called."""
        parts = [("double ", self.double_dqn), ("dueling ", self.dueling), ("prioritised ", self.prioritized)]
        return "".join(word for word, chosen in parts if chosen) + "DQN"

    def make_actor(self, env: Any, observation_keys: Sequence[Any]) -> nn.Module:
        """A network for action values, and the greedy choice behind it."""
        net = self.make_network(env.action_spec_unbatched.n)
        return registry.modules.get("q_value_actor")(net, observation_keys, spec=env.action_spec_unbatched)

    def make_loss(self, actor: nn.Module) -> Any:
        """The distance of values to their targets."""
        return registry.losses.get("dqn")(actor, double_dqn=self.double_dqn, loss_function="smooth_l1")

    def make_network(self, outputs: int | tuple[int, int]) -> nn.Module:
        """A perceptron, or a dueling one: the last hidden layer belongs to the heads."""
        if not self.dueling:
            return registry.modules.get("mlp")(
                out_features=outputs, num_cells=list(self.hidden), activation_class=nn.ReLU
            )
        if len(self.hidden) < 2:
            raise RLError(f"--dueling needs two hidden layers or more, one for the heads; got --hidden {self.hidden}")
        *shared, last = self.hidden
        features = {"num_cells": shared[:-1], "out_features": shared[-1], "activation_class": nn.ReLU}
        heads = {"num_cells": [last], "activation_class": nn.ReLU}
        return registry.modules.get("dueling_mlp")(outputs, mlp_kwargs_feature=features, mlp_kwargs_output=heads)


@dataclass(frozen=True, kw_only=True)
class C51(DQN):
    """Train distributions of action values on fixed atoms, for one discrete action and vector observations.

    The atoms must span the returns that occur (discounted ones). Bellemare et al. 2017, arXiv 1707.06887.
    """

    recipe: ClassVar[str] = "c51"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = C51_PRESETS

    atoms: int = 51
    """Atoms of a distribution."""
    value_min: float = -100.0
    """The lowest atom."""
    value_max: float = 100.0
    """The highest atom."""

    @property
    def title(self) -> str:
        """What the learning curve is called."""
        return "C51"

    def make_actor(self, env: Any, observation_keys: Sequence[Any]) -> nn.Module:
        """A network for log-probabilities of atoms, and the greedy choice behind it."""
        if not self.value_min < self.value_max or self.atoms < 2:
            raise RLError(
                "c51 needs --value-min below --value-max and two --atoms or more; got "
                f"{self.value_min}, {self.value_max} and {self.atoms}"
            )
        spec = env.action_spec_unbatched
        net = self.make_network((self.atoms, spec.n))
        support = torch.linspace(self.value_min, self.value_max, self.atoms)
        return registry.modules.get("distributional_q_value_actor")(net, support, observation_keys, spec=spec)

    def make_loss(self, actor: nn.Module) -> Any:
        """The cross-entropy to the projected target."""
        return registry.losses.get("distributional_dqn")(actor, double_dqn=self.double_dqn)


@dataclass(frozen=True, kw_only=True)
class QRDQN(DQN):
    """Train quantiles of action values, for one discrete action and vector observations.

    Dabney et al. 2017, arXiv 1710.10044.
    """

    recipe: ClassVar[str] = "qr_dqn"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = QR_DQN_PRESETS

    quantiles: int = 50
    """Quantiles of a distribution."""

    @property
    def title(self) -> str:
        """What the learning curve is called."""
        return "QR-DQN"

    def make_actor(self, env: Any, observation_keys: Sequence[Any]) -> nn.Module:
        """A network for quantiles, and the greedy choice behind it."""
        spec = env.action_spec_unbatched
        net = self.make_network((self.quantiles, spec.n))
        return registry.modules.get("quantile_q_value_actor")(net, observation_keys, spec=spec)

    def make_loss(self, actor: nn.Module) -> Any:
        """Quantile regression to the target's samples."""
        return registry.losses.get("qr_dqn")(actor, double_dqn=self.double_dqn)
