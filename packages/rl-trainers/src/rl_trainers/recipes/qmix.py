"""QMIX in one flat script: agents with discrete actions and one reward learn action values that a network mixes.

Read :meth:`QMIX.train` from top to bottom: collect with epsilon-greedy agents, keep the steps, and fit the mixed value
of their actions to its bootstrapped target. Rashid et al. 2018, arXiv 1803.11485.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl_core import registry
from rl_core.errors import RLError
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.evaluation import evaluate
from rl_trainers.plots import plot_learning_curve
from rl_trainers.progress import number
from rl_trainers.recipes.groups import episode_returns, make_group_env, track_episodes
from rl_trainers.recipes.presets import QMIX_PRESETS
from rl_trainers.recipes.recipe import Recipe

__all__ = ["QMIX"]


@dataclass(frozen=True, kw_only=True)
class QMIX(Recipe):
    """Train one group of cooperating agents with discrete actions by QMIX.

    The team's reward is the mean of the agents'; the mixing network sees the environment's state where it has one, else
    all observations. Returns are those of one agent, the mean over all.
    """

    recipe: ClassVar[str] = "qmix"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = QMIX_PRESETS

    env: str = "pettingzoo:mpe2/simple_spread_v3"
    """Registry id of the environment, "provider:id"."""
    num_envs: int = 10
    """Environments stepped together, where the simulator is batched."""
    max_steps: int = 100
    """Steps after which an episode is cut, where the simulator asks for it (VMAS)."""
    frames_per_batch: int = 100
    """Environment steps between two updates, over all environments."""
    updates_per_batch: int = 8
    """Optimiser steps after each batch."""
    minibatch_size: int = 256
    """Steps in one optimiser step."""
    buffer_size: int = 100_000
    """Steps kept for replay."""
    warmup_frames: int = 2_000
    """Steps collected before learning begins."""
    learning_rate: float = 5e-4
    """Adam's step size."""
    gamma: float = 0.99
    """Discount per step."""
    tau: float = 0.01
    """Share of the online networks that enters their targets at each optimiser step."""
    epsilon_start: float = 1.0
    """Share of random actions at the start."""
    epsilon_end: float = 0.05
    """Share of random actions at the end of the annealing."""
    annealing_frames: int = 0
    """Steps over which that share falls; 0: a fifth of the run."""
    max_grad_norm: float = 10.0
    """Longest gradient; longer ones are scaled down."""
    double_dqn: bool = True
    """Whether the online networks choose the next actions that the targets judge."""
    mixer: str = "qmix"
    """How values are mixed: "qmix" (a monotone network) or "vdn" (their sum)."""
    mixing_embed_dim: int = 32
    """Units of the mixing network."""
    share_params: bool = True
    """Whether the agents have one network."""
    agent_id: bool = True
    """Whether the network is told which agent it computes for."""
    hidden: tuple[int, ...] = (128, 128)
    """Units of each hidden layer of the agents' network."""
    eval_every: int = 0
    """Frames between two greedy evaluations; 0 makes ten of them in the run."""
    eval_episodes: int = 50
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
        group = _only_group(env)
        env = track_episodes(env, [group])
        stack.callback(env.close)
        eval_env = make_group_env(self.env, num_envs=self.eval_episodes, max_steps=self.max_steps)
        stack.callback(eval_env.close)

        # Networks: greedy agents, epsilon-greedy agents, and the mixer.
        agents = registry.modules.get("build_group_q_actor")(
            env, group, num_cells=self.hidden, share_params=self.share_params, agent_id=self.agent_id
        )
        legal = (group, "action_mask")
        explorer = registry.modules.get("egreedy")(
            env.full_action_spec_unbatched,
            eps_init=self.epsilon_start,
            eps_end=self.epsilon_end,
            annealing_num_steps=self.annealing_frames or max(1, self.frames // 5),
            action_key=(group, "action"),
            action_mask_key=legal if legal in env.observation_keys else None,
        )
        mixer = self._mixer(env, group)
        TensorDictSequential(agents, mixer)(env.reset())  # the first call finds the number of inputs

        # Loss, targets, optimiser, buffer.
        loss = registry.losses.get("qmix")(agents, mixer, delay_value=True, double_dqn=self.double_dqn)
        loss.set_keys(
            local_value=(group, "chosen_action_value"),
            action_value=(group, "action_value"),
            action=(group, "action"),
            action_mask=legal,
            agent_mask=(group, "mask"),
            agent_terminated=(group, "terminated"),
        )
        loss.make_value_estimator("td0", gamma=self.gamma)
        targets = registry.target_updates.get("soft")(loss, tau=self.tau)
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        storage = registry.storages.get("lazy_tensor")(self.buffer_size)
        buffer = registry.buffers.get("tensordict_replay")(storage=storage, batch_size=self.minibatch_size)
        collector = registry.collectors.get("serial")(
            env,
            TensorDictSequential(agents, explorer),
            frames_per_batch=self.frames_per_batch,
            total_frames=self.frames,
        )
        stack.callback(collector.shutdown)

        run = self.open_run(
            folder, stack, loss=loss, explorer=explorer, optimizer=optimizer, buffer=buffer, collector=collector
        )
        if not self.resume:
            collector.set_seed(train_seed)

        # The algorithm.
        eval_every = self.eval_every or max(1, self.frames // 10)
        scored: dict[str, Any] = {"reward_key": (group, "reward"), "reward_reduction": "mean"}
        with run:
            for batch in run.batches(collector):  # [N, T]
                run.log(episode_returns(batch, [group]))
                explorer.step(batch.numel())
                buffer.extend(_team_steps(batch, group))
                if run.frames >= self.warmup_frames:
                    for _ in range(self.updates_per_batch):
                        values = loss(buffer.sample())
                        optimizer.zero_grad()
                        values["loss"].backward()
                        grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                        optimizer.step()
                        targets.step()
                        run.record({**values, "grad_norm": grad_norm})
                run.log({"optim/epsilon": float(explorer.eps)})
                collector.update_policy_weights_()
                if run.due(eval_every) and run.frames < self.frames:
                    run.log_evaluation(evaluate(eval_env, agents, self.eval_episodes, seed=eval_seed, **scored))
            result = evaluate(eval_env, agents, self.eval_episodes, seed=eval_seed, **scored)
            run.log_evaluation(result)
        curve = plot_learning_curve(
            folder / "metrics.csv",
            folder / "learning_curve.png",
            title=f"{self.mixer.upper()} on {self.env}, seed {self.seed}",
        )
        episodes = f"mean of agents, {int(result['episodes'])} episodes"
        rows = {
            "evaluation": f"return {number(result['return_mean'])} ± {number(result['return_std'])} ({episodes})",
            "learning curve": curve.name,
        }
        self.report(folder, run, rows)
        return result

    def _mixer(self, env: Any, group: str) -> TensorDictModule:
        """The agents' chosen values and, for QMIX, the state, to the team's value."""
        values: Any = (group, "chosen_action_value")
        n_agents = len(env.group_map[group])
        if self.mixer == "vdn":
            net, inputs = registry.modules.get("vdn_mixer")(n_agents), [values]
        elif self.mixer == "qmix":
            state = "state" if "state" in env.observation_keys else (group, "observation")
            shape = env.observation_spec[state].shape[len(env.batch_size) :]
            net, inputs = registry.modules.get("qmixer")(shape, self.mixing_embed_dim, n_agents), [values, state]
        else:
            raise RLError(f"--mixer is 'qmix' or 'vdn'; got {self.mixer!r}")
        return TensorDictModule(net, in_keys=inputs, out_keys=["chosen_action_value"])


def _only_group(env: Any) -> str:
    if len(env.group_map) != 1:
        raise RLError(
            f"the qmix recipe trains one group of agents; {env!r} has {', '.join(env.group_map)}. Group them with the "
            "environment's group_map, or write an own recipe"
        )
    return next(iter(env.group_map))


def _team_steps(batch: TensorDictBase, group: str) -> TensorDictBase:
    """The steps ``[N * T]`` with the team's reward, the mean of the agents', in place of what learning does not use."""
    steps = batch.exclude("collector", (group, "action_value"), (group, "chosen_action_value")).reshape(-1)
    steps.set(("next", "reward"), steps.get(("next", group, "reward")).mean(-2))
    return steps
