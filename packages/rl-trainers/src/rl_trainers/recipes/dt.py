"""The decision transformer in one flat script: a policy that is told which return to reach, learnt from data.

Read :meth:`DT.train` from top to bottom: take the rows of a dataset, and fit a causal transformer to the actions of
windows of them; then act with the best return as the goal. Chen et al. 2021, arXiv 2106.01345.
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
from rl_core.errors import RLError
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.recipes.offline_data import behaviour_run, load_rows, with_step_count
from rl_trainers.recipes.presets import DT_PRESETS
from rl_trainers.recipes.single_agent import SingleAgentRecipe, check_continuous

__all__ = ["DT"]


@dataclass(frozen=True, kw_only=True)
class DT(SingleAgentRecipe):
    """Learn from data by a decision transformer: bounded continuous actions; a frame is an optimiser step."""

    recipe: ClassVar[str] = "dt"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = DT_PRESETS

    env: str = "gym:Pendulum-v1"
    """Registry id of the environment to evaluate on, "provider:id"."""
    data: str = ""
    """Rows to learn from: a run's folder (its replay), a folder of ``buffer.dumps``, or a dataset, "kind:id". If empty,
    a sac run of ``collect_frames`` is made first, and its replay is the dataset."""
    collect_frames: int = 5_000
    """Environment steps of that run."""
    frames: int = 10_000
    """Optimiser steps."""
    updates_per_round: int = 100
    """Optimiser steps to one row of the metrics."""
    windows: int = 64
    """Windows in one optimiser step."""
    context: int = 20
    """Steps of a window."""
    target_return: float = 0.0
    """The return to ask for in evaluations; 0: the largest of an episode in the data."""
    return_scale: float = 0.0
    """What returns are divided by; 0: the largest absolute return of an episode in the data."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    weight_decay: float = 1e-4
    """Adam's decoupled weight decay."""
    max_grad_norm: float = 0.25
    """Longest gradient; longer ones are scaled down."""
    width: int = 128
    """Features of a token."""
    layers: int = 3
    """Blocks of the transformer."""
    heads: int = 1
    """Attention heads."""
    dropout: float = 0.1
    """Of embeddings, attention weights, and what a block adds."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation, as :func:`rl_trainers.evaluate` gives it.
        """
        seed_everything(self.seed)
        data_seed, eval_seed, video_seed = spawn_seeds(self.seed, 3)

        # Environments.
        env, eval_env, observation_keys = self.make_envs(stack)
        check_continuous(env, self.env, self.recipe)
        if len(observation_keys) != 1:
            raise RLError(
                f"the {self.recipe} recipe takes one vector as observation; {self.env} has {observation_keys}"
            )
        (key,) = observation_keys
        eval_env = self.for_acting(eval_env)

        # The dataset: windows of an episode, with the rewards that are still to come.
        rows = with_step_count(
            load_rows(self.data or behaviour_run(self.env, self.collect_frames, data_seed, folder / "behaviour"))
        )
        returns = _episode_returns(rows)
        scale = self.return_scale or max(1e-6, float(returns.abs().max()))
        goal = self.target_return or float(returns.max())
        buffer = self._buffer(rows.select(key, "action", "step_count", ("next", "reward"), ("next", "done")))

        # Network, loss and optimiser.
        spec = env.action_spec_unbatched
        longest = int(rows["step_count"].max()) + 1
        actor = self._actor(env, key, spec, positions=max(longest, self.context, 1000))
        policy = WindowPolicy(actor, key, goal=goal, scale=scale, context=self.context, action_size=spec.shape[0])
        loss = registry.losses.get("dt")(actor)
        loss.set_keys(mask="mask")
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)

        run = self.open_run(folder, stack, loss=loss, optimizer=optimizer)

        # The algorithm.
        with run:
            for count in run.rounds(self.updates_per_round):
                for _ in range(count):
                    steps = buffer.sample()  # [windows * context], each padded by its last step
                    steps["return_to_go"] = steps["return_to_go"] / scale
                    steps["mask"] = steps["collector", "mask"]
                    values = loss(steps.reshape(-1, self.context))
                    optimizer.zero_grad()
                    values["loss"].backward()
                    grad_norm = nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
                    optimizer.step()
                    run.record({**values, "grad_norm": grad_norm})
                if self.evaluation_due(run):
                    self.evaluate_now(run, eval_env, policy, eval_seed)
            result = self.evaluate_now(run, eval_env, policy, eval_seed)
        labels = {"title": f"Decision transformer (goal {goal:.4g})", "x_label": "optimiser steps"}
        self.finish(folder, run, policy, result, video_seed=video_seed, **labels)
        return result

    def for_acting(self, env: Any) -> Any:
        """The environment with the return and length so far, which the policy reads."""
        for name in ("RewardSum", "StepCounter"):
            env = env.append_transform(registry.transforms.get(name)())
        return env

    def _buffer(self, rows: TensorDictBase) -> Any:
        sampler = registry.samplers.get("slices")(
            slice_len=self.context, strict_length=False, pad_output=True, span=(False, True), truncated_key=None
        )
        buffer = registry.buffers.get("tensordict_replay")(
            storage=registry.storages.get("lazy_tensor")(len(rows)),
            sampler=sampler,
            transform=registry.transforms.get("reward2go")(gamma=1.0, out_keys=["return_to_go"], unfinished="partial"),
            batch_size=self.windows * self.context,
        )
        buffer.extend(rows)
        return buffer

    def _actor(self, env: Any, key: Any, spec: Any, positions: int) -> nn.Module:
        sizes = {"n_embd": self.width, "n_layer": self.layers, "n_head": self.heads, "n_inner": 4 * self.width}
        dropout = {"resid_pdrop": self.dropout, "attn_pdrop": self.dropout}
        features = env.observation_spec[key].shape[-1]
        net = registry.modules.get("dt_actor")(features, spec.shape[0], {**sizes, **dropout, "n_positions": positions})
        inputs = [key, "action", "return_to_go", "step_count", "mask"]
        actor: nn.Module = registry.modules.get("sequential")(
            registry.modules.get("actor")(net, inputs, ["param"]),
            registry.modules.get("tanh")(["param"], ["action"], spec=spec),
        )
        return actor


class WindowPolicy(nn.Module):
    """Acts by a sequence policy: remembers the last steps of each environment, and what is left of the goal.

    It reads the observation, "step_count" and "episode_reward", the return so far, and writes "action".

    Args:
        actor: a module over windows.
        key: the observation.
        goal: the return to reach.
        scale: what returns are divided by.
        context: steps of a window.
        action_size: components of an action.
    """

    def __init__(
        self, actor: nn.Module, key: Any, *, goal: float, scale: float, context: int, action_size: int
    ) -> None:
        super().__init__()
        self.actor, self.key = actor, key
        self.goal, self.scale, self.context, self.action_size = goal, scale, context, action_size
        self._past: list[Tensor] = []

    def forward(self, td: TensorDictBase) -> TensorDictBase:
        """Write the action of the current step."""
        rows = td.batch_size
        observation, count = td[self.key], td["step_count"]
        left = (self.goal - td["episode_reward"]) / self.scale
        now = [observation, torch.zeros(*rows, self.action_size), left, count]
        if not self._past or self._past[0].shape[:-2] != rows:
            self._past = [
                torch.zeros(*rows, self.context, *value.shape[len(rows) :], dtype=value.dtype) for value in now
            ]
        self._past = [
            torch.cat([past[..., 1:, :], value.unsqueeze(-2)], -2) for past, value in zip(self._past, now, strict=True)
        ]
        ages = torch.arange(self.context - 1, -1, -1)
        mask = ages <= count
        action = self.actor.forward_tensors(*self._past, mask)[-1][..., -1, :]  # type: ignore[operator]
        self._past[1][..., -1, :] = action
        td.set("action", action)
        return td


def _episode_returns(rows: TensorDictBase) -> Tensor:
    """The sum of rewards of each whole episode, or of all rows where none ends."""
    reward, done = rows["next", "reward"].flatten(), rows["next", "done"].flatten()
    if not bool(done.any()):
        return reward.sum().reshape(1)
    totals = reward.cumsum(0)[done]
    return torch.diff(totals, prepend=totals.new_zeros(1))
