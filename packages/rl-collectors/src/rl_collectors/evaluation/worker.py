"""``EvaluationWorker``: an environment and a policy that run complete episodes, whatever brings the orders."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_collectors.acting import on_device
from rl_collectors.background import StoppedError
from rl_collectors.evaluation.films import filming
from rl_collectors.evaluation.random_state import kept_random_state
from rl_collectors.evaluation.settings import EvaluationSettings, Job
from rl_collectors.evaluation.statistics import frozen, take_statistics
from rl_collectors.exploring import exploring
from rl_collectors.making import made_env
from rl_collectors.random_actions import random_policy
from rl_collectors.weights.named import write_weights
from rl_core.envs.episodes import Episode, episode_statistics, run_episodes
from rl_core.errors import CollectorError
from rl_core.evaluation_mode import evaluation_mode
from rl_core.policy import wrap_policy
from rl_core.policy_state import with_carried_state
from rl_core.training.seeding import seed_everything, spawn_seeds

__all__ = ["EvaluationWorker"]

Acting = Callable[[TensorDictBase], TensorDictBase]


class EvaluationWorker:
    """Runs evaluations, one after the other.

    Args:
        settings: what it is made from.
    """

    def __init__(self, settings: EvaluationSettings) -> None:
        self.settings = settings
        if settings.init_fn is not None:
            settings.init_fn()
        env, self._owns_env = made_env(settings.env, settings.env_kwargs, "env")
        try:
            made = settings.policy if settings.policy_factory is None else settings.policy_factory()
            self.policy = on_device(made, settings.device)
            self.env = with_carried_state(env, self.policy)
            self._acting: Acting = self._bound(self.policy)
        except BaseException:
            if self._owns_env:
                env.close()
            raise
        self._copy: tuple[nn.Module, Acting] | None = None

    def _bound(self, policy: Any) -> Acting:
        if policy is None:
            return random_policy(self.env)
        acting = wrap_policy(policy, self.env, trust=self.settings.trust_policy)
        device = self.settings.device
        if device is None:
            return acting

        def moved(td: TensorDictBase) -> TensorDictBase:
            return acting(td.to(device)).to(self.env.device or "cpu")

        return moved

    # ---------------------------------------------------------------- one evaluation
    def run(self, job: Job, stopped: Callable[[], bool]) -> dict[str, float]:
        """Evaluate.

        Args:
            job: what is asked for.
            stopped: asked before each step whether to give up.

        Returns:
            Numbers by name, without a prefix.

        Raises:
            StoppedError: it was asked to give up.
            CollectorError: it takes longer than `timeout`.
        """
        settings = self.settings
        if job.statistics is not None:
            take_statistics(self.env, job.statistics)
        policy, acting = self._acting_with(job)
        begun = time.monotonic()
        film = settings.dump_video and (job.number - 1) % settings.video_every == 0
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(exploring(settings.exploration_type, own_thread=settings.place == "thread"))
            stack.enter_context(evaluation_mode(policy))
            stack.enter_context(frozen(self.env))
            if settings.place != "thread":
                stack.enter_context(kept_random_state())
                seed_everything(self._draws(job))
            if settings.seed is not None:
                self.env.set_seed(settings.seed)
            if settings.dump_video:
                stack.enter_context(filming(self.env, film, job.step))
            episodes = run_episodes(
                self.env,
                acting,
                settings.num_trajectories,
                settings.max_steps,
                reward_key=settings.reward_keys,
                reward_reduction=settings.reward_reduction,
                keep_data=settings.metrics_fn is not None,
                before_step=lambda finished: self._look(begun, finished, stopped),
            )
        return self._told(job, episodes, time.monotonic() - begun)

    def _acting_with(self, job: Job) -> tuple[Any, Acting]:
        if job.weights is None:
            return self.policy, self._acting
        if not isinstance(self.policy, nn.Module):
            raise CollectorError(
                f"the evaluated policy is a {type(self.policy).__name__}, not a torch.nn.Module: it takes no weights"
            )
        if not self.settings.live:
            write_weights(self.policy, job.weights)
            return self.policy, self._acting
        if self._copy is None:  # the policy itself is trained on with the weights that it has
            module = copy.deepcopy(self.policy)
            self._copy = module, self._bound(module)
        write_weights(self._copy[0], job.weights)
        return self._copy

    def _draws(self, job: Job) -> int:
        seed = self.settings.seed
        return spawn_seeds(self.settings.draws, 1, key=(job.number,))[0] if seed is None else seed

    def _look(self, begun: float, finished: int, stopped: Callable[[], bool]) -> None:
        if stopped():
            raise StoppedError("the evaluator was shut down during an evaluation")
        limit = self.settings.timeout
        if limit is not None and time.monotonic() - begun > limit:
            raise CollectorError(
                f"the evaluation takes longer than timeout={limit:g} s: {finished} of {self.settings.num_trajectories} "
                "episodes have ended. Cut them with max_steps=..., run fewer, or give it more time"
            )

    def _told(self, job: Job, episodes: list[Episode], seconds: float) -> dict[str, float]:
        told: dict[str, float] = episode_statistics(episodes)
        told["fps"] = sum(episode.length for episode in episodes) / max(seconds, 1e-9)
        told["policy_version"] = float(job.version)
        if job.step is not None:
            told["step"] = float(job.step)
        if self.settings.metrics_fn is not None:
            found = self.settings.metrics_fn([episode.data for episode in episodes])
            if not isinstance(found, Mapping):
                raise CollectorError(
                    f"metrics_fn returned {type(found).__name__}; it returns numbers by name: {{'success': 0.5}}"
                )
            told.update({name: float(value) for name, value in found.items()})
        return told

    def close(self) -> None:
        """Close the environment, if it was made here."""
        if self._owns_env:
            self.env.close()
