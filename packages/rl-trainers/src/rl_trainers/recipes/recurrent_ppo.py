"""Proximal policy optimisation with an LSTM, for observations that do not tell the state, in one flat script.

Read :meth:`RecurrentPPO.train` from top to bottom: it is that of ppo, but for an LSTM before both heads, whose state
the collector carries from step to step, and for minibatches of whole sequences.
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
from rl_core.errors import RLError
from rl_core.policy_state import with_carried_state
from rl_core.recurrence import set_recurrent_mode
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.recipes.actor_critic import make_actor, make_critic, orthogonal
from rl_trainers.recipes.ppo import PPO
from rl_trainers.recipes.presets import RECURRENT_PPO_PRESETS

__all__ = ["RecurrentPPO"]


@dataclass(frozen=True, kw_only=True)
class RecurrentPPO(PPO):
    """Train a policy with memory by proximal policy optimisation: an LSTM on vector observations, then two MLP heads.

    Options are those of ppo; a minibatch holds as many whole sequences (the steps of one environment in a batch) as
    give about ``minibatch_size`` steps.
    """

    recipe: ClassVar[str] = "recurrent_ppo"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = RECURRENT_PPO_PRESETS

    env: str = "native:TMaze"
    """Registry id of the environment, "provider:id"."""
    lstm_units: int = 64
    """Units of the LSTM, which the actor and the critic share."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        train_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Environments.
        env, eval_env, observation_keys = self.make_envs(stack)
        if len(observation_keys) != 1:
            raise RLError(
                f"the {self.recipe} recipe takes one vector as observation; {self.env} has {observation_keys}"
            )
        (key,) = observation_keys

        # Networks: the LSTM and the two heads behind it. The environments carry its state from step to step.
        lstm = registry.modules.get("lstm")(
            env.observation_spec[key].shape[-1], self.lstm_units, in_key=key, out_key="features"
        )
        heads = make_actor(env, ["features"], self.hidden), make_critic(["features"], self.hidden)
        both = registry.modules.get("actor_value_operator")(lstm, *heads)
        actor, critic = both.get_policy_operator(), both.get_value_operator()
        env, eval_env = with_carried_state(env, actor), with_carried_state(eval_env, actor)
        both(env.reset())  # the first call finds the number of inputs
        orthogonal(heads[0], last_gain=0.01)
        orthogonal(heads[1], last_gain=1.0)

        # Loss and optimiser.
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
        parameters = list(both.parameters())
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate, eps=1e-5)
        updates = math.ceil(self.frames / self.frames_per_batch)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda update: max(0.0, 1 - update / updates) if self.anneal_learning_rate else 1.0
        )
        collector = registry.collectors.get("serial")(
            env, actor, frames_per_batch=self.frames_per_batch, total_frames=self.frames
        )
        stack.callback(collector.shutdown)

        run = self.open_run(folder, stack, networks=both, optimizer=optimizer, scheduler=scheduler, collector=collector)
        if not self.resume:
            collector.set_seed(train_seed)

        # The algorithm.
        used = [*dict.fromkeys([*actor.in_keys, *critic.in_keys])]
        used += ["action", "action_log_prob", "advantage", "value_target"]
        sequences = max(1, self.minibatch_size * self.num_envs // self.frames_per_batch)
        with run:
            for batch in run.batches(collector):  # [N, T]
                batch["next", "reward"] = batch["next", "reward"] * self.reward_scale
                with torch.no_grad():
                    gae(batch)  # writes "advantage" and "value_target"
                kept = batch.select(*used)
                for _ in range(self.epochs):
                    for index in torch.randperm(self.num_envs).split(sequences):
                        with set_recurrent_mode(True):  # the LSTM reads whole sequences, resets included
                            losses = loss(kept[index])
                        total = sum(value for key, value in losses.items() if key.startswith("loss_"))
                        optimizer.zero_grad()
                        total.backward()
                        grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                        optimizer.step()
                        run.record({**losses, "grad_norm": grad_norm})
                run.log({"optim/learning_rate": float(scheduler.get_last_lr()[0])})
                scheduler.step()
                collector.update_policy_weights_()
                if self.evaluation_due(run):
                    self.evaluate_now(run, eval_env, actor, eval_seed)
            result = self.evaluate_now(run, eval_env, actor, eval_seed)
        self.finish(folder, run, actor, result, title="Recurrent PPO", video_seed=video_seed)
        return result
