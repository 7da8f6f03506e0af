"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347) on vector observations, in one flat script.

Read :meth:`PPO.train` from top to bottom: it builds the parts by their registry names, then loops over
collect, estimate advantages, and a few epochs of minibatches.
"""

from __future__ import annotations

import math
import warnings
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
from rl_trainers.evaluation import evaluate
from rl_trainers.plots import plot_learning_curve
from rl_trainers.progress import number
from rl_trainers.recipes.presets import PPO_PRESETS
from rl_trainers.recipes.recipe import Recipe
from rl_trainers.video import record_video, windowless

__all__ = ["PPO"]


@dataclass(frozen=True, kw_only=True)
class PPO(Recipe):
    """Train a policy by proximal policy optimisation: an MLP actor and an MLP critic on vector observations.

    Discrete actions get a categorical policy, bounded continuous ones a tanh-squashed normal. ``PPO.preset(id)`` and
    the command line begin with what suits the environment; the defaults below are for any other.
    """

    recipe: ClassVar[str] = "ppo"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PPO_PRESETS

    env: str = "gym:CartPole-v1"
    """Registry id of the environment, "provider:id"."""
    num_envs: int = 8
    """Environments stepped together."""
    frames_per_batch: int = 2048
    """Environment steps between two updates, over all environments."""
    epochs: int = 10
    """Passes over a batch in one update."""
    minibatch_size: int = 64
    """Steps in one optimiser step."""
    learning_rate: float = 3e-4
    """Adam's step size at the start."""
    anneal_learning_rate: bool = True
    """Whether the step size falls linearly to zero at the end of the budget."""
    gamma: float = 0.99
    """Discount per step."""
    lmbda: float = 0.95
    """Decay of the advantage estimate (GAE), between 0 (one step) and 1 (whole returns)."""
    clip_epsilon: float = 0.2
    """How far the ratio of new to old probability may leave 1 before its gradient is cut."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    critic_coeff: float = 0.5
    """Weight of the critic's loss."""
    max_grad_norm: float = 0.5
    """Longest gradient; longer ones are scaled down."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer, in the actor and in the critic."""
    reward_scale: float = 1.0
    """Factor on the rewards that the losses see; logged returns are unscaled."""
    eval_every: int = 0
    """Frames between two deterministic evaluations; 0 makes ten of them in the run."""
    eval_episodes: int = 20
    """Episodes of an evaluation."""
    check_finite: bool = True
    """Stop with an error that names the entry when an observation or reward is NaN or infinite."""
    video: bool = True
    """Whether to film the trained policy."""
    video_steps: int = 500
    """Longest film, in steps."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        train_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Environments. RewardSum and StepCounter write the return and length so far, for the learning curve.
        env = registry.envs.make(self.env, num_envs=self.num_envs, **_env_options(self.env))
        observation_keys = _vector_observations(env)
        for name in ("RewardSum", "StepCounter", *(["FiniteTensorDictCheck"] if self.check_finite else [])):
            env = env.append_transform(registry.transforms.get(name)())
        stack.callback(env.close)
        eval_env = registry.envs.make(self.env, num_envs=self.eval_episodes, **_env_options(self.env))
        stack.callback(eval_env.close)

        # Networks, loss and optimiser.
        actor, critic = _actor(env, observation_keys, self.hidden), _critic(observation_keys, self.hidden)
        actor(critic(env.reset()))  # the first call finds the number of inputs
        _orthogonal(actor, last_gain=0.01)
        _orthogonal(critic, last_gain=1.0)
        gae = registry.estimators.get("gae")(gamma=self.gamma, lmbda=self.lmbda, value_network=critic)
        loss = registry.losses.get("ppo")(
            actor,
            critic,
            clip_epsilon=self.clip_epsilon,
            entropy_bonus=self.entropy_coeff > 0,
            entropy_coeff=self.entropy_coeff,
            critic_coeff=self.critic_coeff,
            loss_critic_type="l2",
            normalize_advantage=True,
        )
        parameters = list(loss.parameters())
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate, eps=1e-5)
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
        eval_every = self.eval_every or max(1, self.frames // 10)
        used = [*observation_keys, "action", "action_log_prob", "advantage", "value_target"]
        with run:
            for batch in run.batches(collector):  # [N, T]
                batch["next", "reward"] = batch["next", "reward"] * self.reward_scale
                with torch.no_grad():
                    gae(batch)  # writes "advantage" and "value_target"
                steps = batch.select(*used).reshape(-1)  # [N * T]
                for _ in range(self.epochs):
                    for index in torch.randperm(len(steps)).split(self.minibatch_size):
                        losses = loss(steps[index])
                        total = sum(value for key, value in losses.items() if key.startswith("loss_"))
                        optimizer.zero_grad()
                        total.backward()
                        grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                        optimizer.step()
                        run.record(losses)
                        run.record({"grad_norm": grad_norm})
                run.log({"optim/learning_rate": float(scheduler.get_last_lr()[0])})
                scheduler.step()
                collector.update_policy_weights_()
                if run.due(eval_every) and run.frames < self.frames:
                    run.log_evaluation(evaluate(eval_env, actor, self.eval_episodes, seed=eval_seed))
            result = evaluate(eval_env, actor, self.eval_episodes, seed=eval_seed)
            run.log_evaluation(result)
        curve = plot_learning_curve(
            folder / "metrics.csv", folder / "learning_curve.png", title=f"PPO on {self.env}, seed {self.seed}"
        )
        film = self._film(folder, actor, video_seed) if self.video else None
        episodes = f"{int(result['episodes'])} deterministic episodes"
        rows = {
            "evaluation": f"return {number(result['return_mean'])} ± {number(result['return_std'])} ({episodes})",
            "learning curve": curve.name,
        }
        self.report(folder, run, rows | ({} if film is None else {"video": film.name}))
        return result

    def _film(self, folder: Path, actor: nn.Module, seed: int) -> Path | None:
        try:
            with windowless():
                env = registry.envs.make(self.env, from_pixels=True, pixels_only=False, **_env_options(self.env))
                with env:
                    env.set_seed(seed)
                    return record_video(env, actor, folder / "policy.mp4", max_steps=self.video_steps)
        except Exception as error:  # whatever a renderer raises, the trained policy is worth more than its film
            warnings.warn(f"no film of the policy: {type(error).__name__}: {error}", stacklevel=2)
            return None


def _env_options(env: str) -> dict[str, Any]:
    """Actions as numbers, not one-hot: a categorical policy samples and scores them faster."""
    return {"categorical_action_encoding": True} if env.partition(":")[0].rpartition("/")[2] == "gym" else {}


def _vector_observations(env: Any) -> list[Any]:
    """The observation entries, all of which must be vectors."""
    keys = list(env.observation_keys)
    for key in keys:
        shape = env.observation_spec[key].shape[len(env.batch_size) :]
        if len(shape) != 1 or not env.observation_spec[key].dtype.is_floating_point:
            raise RLError(
                f"the ppo recipe takes vector observations; {key!r} of {env!r} is {env.observation_spec[key].dtype} "
                f"{list(shape)}. Write an own recipe with a network for it"
            )
    return keys


def _actor(env: Any, in_keys: list[Any], hidden: Sequence[int]) -> nn.Module:
    """A stochastic policy: observation to distribution to action."""
    mlp = registry.modules.get("mlp")
    actor: nn.Module = registry.modules.get("build_actor")(
        env.action_spec_unbatched,
        lambda outputs: mlp(out_features=outputs, num_cells=list(hidden)),
        in_keys,
        action_key=env.action_key,
    )
    return actor


def _critic(in_keys: list[Any], hidden: Sequence[int]) -> nn.Module:
    """A network for the value of a state."""
    net = registry.modules.get("mlp")(out_features=1, num_cells=list(hidden))
    critic: nn.Module = registry.modules.get("value_operator")(net, in_keys=in_keys)
    return critic


def _orthogonal(network: nn.Module, last_gain: float) -> None:
    """Orthogonal weights and zero biases; a small last layer makes the first policy close to uniform.

    Huang et al. 2022, The 37 Implementation Details of Proximal Policy Optimization, detail 2.
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2))
        nn.init.zeros_(layer.bias)
