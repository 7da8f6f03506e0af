"""Offline learning in one flat script: iql, cql, td3_bc and bc differ in networks and loss only.

Read :meth:`Offline.train` from top to bottom: take the rows of a dataset, and update on minibatches of them; the
environment is there to evaluate.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core import registry
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.recipes.offline_data import behaviour_run, load_rows
from rl_trainers.recipes.presets import CQL_PRESETS, IQL_PRESETS, OFFLINE_PRESETS, TD3_BC_PRESETS
from rl_trainers.recipes.replay import total_loss
from rl_trainers.recipes.single_agent import SingleAgentRecipe, check_continuous
from rl_trainers.recipes.unit_actions import rows_in_unit_actions

__all__ = ["BC", "CQL", "IQL", "TD3BC", "Offline"]


@dataclass(frozen=True, kw_only=True)
class Offline(SingleAgentRecipe):
    """The base of recipes that learn from rows of the past; a frame is an optimiser step."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = OFFLINE_PRESETS
    title: ClassVar[str]
    """What the learning curve is called."""
    added: ClassVar[tuple[str, ...]]
    """The losses that are added up."""
    unit_actions: ClassVar[bool] = True

    env: str = "gym:Pendulum-v1"
    """Registry id of the environment to evaluate on, "provider:id"."""
    data: str = ""
    """Rows to learn from: a run's folder (its replay), a folder of ``buffer.dumps``, or a dataset, "kind:id". If empty,
    a sac run of ``collect_frames`` is made first, and its replay is the dataset."""
    collect_frames: int = 5_000
    """Environment steps of that run."""
    frames: int = 20_000
    """Optimiser steps."""
    updates_per_round: int = 250
    """Optimiser steps to one row of the metrics."""
    minibatch_size: int = 256
    """Steps of the dataset in one optimiser step."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    gamma: float = 0.99
    """Discount per step."""
    tau: float = 0.005
    """Share of the networks that enters their targets after each update."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        data_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Networks, loss and optimiser.
        env, eval_env, observation_keys = self.make_envs(stack)
        actor, loss = self.make_parts(env, observation_keys)
        targets = registry.target_updates.get("soft")(loss, tau=self.tau) if loss.target_pairs() else None
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate, fused=True)

        run = self.open_run(folder, stack, loss=loss, optimizer=optimizer)

        # The dataset.
        state = torch.random.get_rng_state()
        rows = load_rows(self.data or behaviour_run(self.env, self.collect_frames, data_seed, folder / "behaviour"))
        rows = rows_in_unit_actions(rows, env.base_env.action_spec_unbatched)
        torch.random.set_rng_state(state)  # whether the rows are collected now or were before makes no difference
        storage = registry.storages.get("lazy_tensor")(len(rows))
        buffer = registry.buffers.get("tensordict_replay")(storage=storage, batch_size=self.minibatch_size)
        ends = [("next", name) for name in ("reward", "done", "terminated")]
        buffer.extend(rows.select(*observation_keys, "action", *(("next", key) for key in observation_keys), *ends))

        # The algorithm.
        with run:
            for count in run.rounds(self.updates_per_round):
                for update in range(run.frames - count, run.frames):
                    values = self.losses(loss, buffer.sample(), update)
                    optimizer.zero_grad()
                    total_loss({name: values[name] for name in self.added if name in values}).backward()
                    optimizer.step()  # parameters without a gradient stay as they are
                    if targets is not None:
                        targets.step()
                    run.record(values)
                if self.evaluation_due(run):
                    self.evaluate_now(run, eval_env, actor, eval_seed)
            result = self.evaluate_now(run, eval_env, actor, eval_seed)
        self.finish(folder, run, actor, result, title=self.title, video_seed=video_seed, x_label="optimiser steps")
        return result

    # ---------------------------------------------------------------- what the algorithms differ in
    @abstractmethod
    def make_parts(self, env: Any, observation_keys: Sequence[Any]) -> tuple[nn.Module, Any]:
        """The policy, and its loss."""

    def losses(self, loss: Any, steps: TensorDictBase, update: int) -> dict[str, Tensor]:
        """The losses and logs of one update."""
        values: dict[str, Tensor] = loss(steps)
        return values

    # ---------------------------------------------------------------- networks
    def mlp(self, outputs: int) -> nn.Module:
        """A perceptron."""
        net: nn.Module = registry.modules.get("mlp")(
            out_features=outputs, num_cells=list(self.hidden), activation_class=nn.ReLU
        )
        return net

    def stochastic_actor(self, env: Any, observation_keys: Sequence[Any]) -> nn.Module:
        """A policy with a distribution, its number of inputs found."""
        make = registry.modules.get("build_actor")
        actor: nn.Module = make(env.action_spec_unbatched, self.mlp, observation_keys, return_log_prob=False)
        actor(env.reset())
        return actor

    def critic(self, env: Any, observation_keys: Sequence[Any], *more: Any) -> nn.Module:
        """A value of observations and further entries, its number of inputs found."""
        critic: nn.Module = registry.modules.get("value_operator")(self.mlp(1), in_keys=[*observation_keys, *more])
        critic(env.rand_action(env.reset()))
        return critic


@dataclass(frozen=True, kw_only=True)
class IQL(Offline):
    """Learn from data by implicit Q-learning: no action outside of the data is ever evaluated.

    Kostrikov et al. 2021, arXiv 2110.06169.
    """

    recipe: ClassVar[str] = "iql"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = IQL_PRESETS
    title: ClassVar[str] = "IQL"
    added: ClassVar[tuple[str, ...]] = ("loss_actor", "loss_qvalue", "loss_value")

    temperature: float = 3.0
    """How much better actions count more in the policy's regression; larger is greedier. It multiplies advantages
    and so belongs to the scale of rewards: 3 suits returns of about 1000 in 1000 steps."""
    expectile: float = 0.7
    """Of the values of the data's actions: 0.5 is their mean, 1 their maximum."""

    def make_parts(self, env: Any, observation_keys: Sequence[Any]) -> tuple[nn.Module, Any]:
        """The policy, and its loss."""
        check_continuous(env, self.env, self.recipe)
        actor = self.stochastic_actor(env, observation_keys)
        critics = self.critic(env, observation_keys, "action"), self.critic(env, observation_keys)
        options = {"temperature": self.temperature, "expectile": self.expectile, "loss_function": "l2"}
        return actor, registry.losses.get("iql")(actor, *critics, gamma=self.gamma, **options)


@dataclass(frozen=True, kw_only=True)
class CQL(Offline):
    """Learn from data by conservative Q-learning: critics that keep unseen actions low.

    Kumar et al. 2020, arXiv 2006.04779.
    """

    recipe: ClassVar[str] = "cql"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = CQL_PRESETS
    title: ClassVar[str] = "CQL"
    added: ClassVar[tuple[str, ...]] = ("loss_actor", "loss_qvalue", "loss_cql", "loss_alpha")

    min_q_weight: float = 1.0
    """Weight of the penalty on unseen actions; it belongs to the scale of rewards, as values do."""
    num_random: int = 4
    """Actions of each of three kinds that the penalty looks at."""

    def make_parts(self, env: Any, observation_keys: Sequence[Any]) -> tuple[nn.Module, Any]:
        """The policy, and its loss."""
        check_continuous(env, self.env, self.recipe)
        actor = self.stochastic_actor(env, observation_keys)
        critic = self.critic(env, observation_keys, "action")
        options = {"min_q_weight": self.min_q_weight, "num_random": self.num_random, "loss_function": "l2"}
        loss = registry.losses.get("cql")(
            actor, critic, action_spec=env.action_spec_unbatched, gamma=self.gamma, **options
        )
        return actor, loss


@dataclass(frozen=True, kw_only=True)
class TD3BC(Offline):
    """Learn from data by twin delayed policy gradients whose actor stays near the data's actions.

    Fujimoto and Gu 2021, arXiv 2106.06860.
    """

    recipe: ClassVar[str] = "td3_bc"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = TD3_BC_PRESETS
    title: ClassVar[str] = "TD3+BC"
    added: ClassVar[tuple[str, ...]] = ("loss_actor", "loss_qvalue")

    alpha: float = 2.5
    """Weight of the values beside the cloning."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target's actions, in halves of the action's range."""
    noise_clip: float = 0.5
    """Largest noise on the target's actions, in the same unit."""
    policy_delay: int = 2
    """Updates of the critics to one of the actor."""

    def make_parts(self, env: Any, observation_keys: Sequence[Any]) -> tuple[nn.Module, Any]:
        """The policy, and its loss."""
        check_continuous(env, self.env, self.recipe)
        spec = env.action_spec_unbatched
        actor = registry.modules.get("sequential")(
            registry.modules.get("actor")(self.mlp(spec.shape[0]), observation_keys, ["param"]),
            registry.modules.get("tanh")(["param"], ["action"], spec=spec),
        )
        actor(env.reset())
        loss = registry.losses.get("td3_bc")(
            actor,
            self.critic(env, observation_keys, "action"),
            action_spec=spec,
            alpha=self.alpha,
            policy_noise=self.policy_noise,
            noise_clip=self.noise_clip,
            loss_function="l2",
            gamma=self.gamma,
        )
        return actor, loss

    def losses(self, loss: Any, steps: TensorDictBase, update: int) -> dict[str, Tensor]:
        """The losses and logs of one update."""
        if update % self.policy_delay == 0:
            return super().losses(loss, steps, update)
        value, logs = loss.qvalue_loss(steps)
        return {"loss_qvalue": value, **logs}


@dataclass(frozen=True, kw_only=True)
class BC(Offline):
    """Learn to do what the data did, by maximum likelihood."""

    recipe: ClassVar[str] = "bc"
    title: ClassVar[str] = "Behaviour cloning"
    added: ClassVar[tuple[str, ...]] = ("loss_bc",)

    def make_parts(self, env: Any, observation_keys: Sequence[Any]) -> tuple[nn.Module, Any]:
        """The policy, and its loss."""
        actor = self.stochastic_actor(env, observation_keys)
        return actor, registry.losses.get("bc")(actor)
