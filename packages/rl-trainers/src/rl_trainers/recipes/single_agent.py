"""What the recipes for one agent share: the environments, the evaluation at the end, the film and the report."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from rl_core import registry
from rl_core.errors import RLError
from rl_core.policy_state import with_carried_state
from rl_trainers.evaluation import evaluate
from rl_trainers.loop import TrainingRun
from rl_trainers.plots import plot_learning_curve
from rl_trainers.progress import number
from rl_trainers.recipes.recipe import Recipe
from rl_trainers.recipes.single_precision import env_in_single_precision
from rl_trainers.recipes.unit_actions import env_in_unit_actions
from rl_trainers.video import record_video, windowless

__all__ = ["SingleAgentRecipe", "check_continuous", "check_discrete", "env_options"]


@dataclass(frozen=True, kw_only=True)
class SingleAgentRecipe(Recipe):
    """The base of recipes that train one agent on vector observations."""

    env: str = "gym:CartPole-v1"
    """Registry id of the environment, "provider:id"."""
    num_envs: int = 1
    """Environments stepped together."""
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

    unit_actions: ClassVar[bool] = False
    """Whether the policy acts in [-1, 1], whatever the bounds of the environment's actions are."""

    def make_envs(self, stack: ExitStack) -> tuple[Any, Any, list[Any]]:
        """The environment to train on, with the return and length so far for the learning curve, and one to evaluate.

        Args:
            stack: closes them.

        Returns:
            Both environments, and the keys of their observations.
        """
        env = self.prepared(registry.envs.make(self.env, num_envs=self.num_envs, **env_options(self.env)))
        stack.callback(env.close)
        observation_keys = _vector_observations(env, self.env, self.recipe)
        for name in ("RewardSum", "StepCounter", *(["FiniteTensorDictCheck"] if self.check_finite else [])):
            env = env.append_transform(registry.transforms.get(name)())
        eval_env = self.prepared(registry.envs.make(self.env, num_envs=self.eval_episodes, **env_options(self.env)))
        stack.callback(eval_env.close)
        return env, eval_env, observation_keys

    def evaluation_due(self, run: TrainingRun) -> bool:
        """Whether to evaluate after the batch under way; the last evaluation is that of :meth:`finish`."""
        return run.due(self.eval_every or max(1, self.frames // 10)) and run.frames < self.frames

    def evaluate_now(self, run: TrainingRun, eval_env: Any, policy: nn.Module, seed: int) -> dict[str, float]:
        """Evaluate and log it."""
        result = evaluate(eval_env, policy, self.eval_episodes, seed=seed)
        run.log_evaluation(result)
        return result

    def finish(
        self,
        folder: Path,
        run: TrainingRun,
        policy: nn.Module,
        result: dict[str, float],
        *,
        title: str,
        video_seed: int,
        **labels: str,
    ) -> None:
        """Draw the learning curve (labels as of :func:`plot_learning_curve`), film the policy, print what came out."""
        curve = plot_learning_curve(
            folder / "metrics.csv",
            folder / "learning_curve.png",
            title=f"{title} on {self.subject}, seed {self.seed}",
            **labels,
        )
        film = self.film(folder, policy, video_seed) if self.video else None
        episodes = f"{int(result['episodes'])} deterministic episodes"
        rows = {
            "evaluation": f"return {number(result['return_mean'])} ± {number(result['return_std'])} ({episodes})",
            "learning curve": curve.name,
        }
        self.report(folder, run, rows | ({} if film is None else {"video": film.name}))

    def prepared(self, env: Any) -> Any:
        """An environment as networks take it: in single precision and, if so wanted, with actions in [-1, 1]."""
        env = env_in_single_precision(env)
        return env_in_unit_actions(env) if self.unit_actions else env

    def for_acting(self, env: Any) -> Any:
        """The environment with what the policy needs beside its observations."""
        return env

    def film(self, folder: Path, policy: nn.Module, seed: int) -> Path | None:
        """A video of one episode; None, with a warning, where the environment cannot be drawn."""
        try:
            with windowless():
                env = registry.envs.make(self.env, from_pixels=True, pixels_only=False, **env_options(self.env))
                with env:
                    env.set_seed(seed)
                    return record_video(
                        self.for_acting(with_carried_state(self.prepared(env), policy)),
                        policy,
                        folder / "policy.mp4",
                        max_steps=self.video_steps,
                    )
        except Exception as error:  # whatever a renderer raises, the trained policy is worth more than its film
            warnings.warn(f"no film of the policy: {type(error).__name__}: {error}", stacklevel=2)
            return None


def env_options(env: str) -> dict[str, Any]:
    """Actions as numbers, not one-hot: policies sample and score them faster."""
    return {"categorical_action_encoding": True} if env.partition(":")[0].rpartition("/")[2] == "gym" else {}


def _vector_observations(env: Any, name: str, recipe: str) -> list[Any]:
    """The observation entries, all of which must be vectors."""
    keys = list(env.observation_keys)
    for key in keys:
        spec = env.observation_spec[key]
        shape = spec.shape[len(env.batch_size) :]
        if len(shape) != 1 or not spec.dtype.is_floating_point:
            raise RLError(
                f"the {recipe} recipe takes vector observations; {key!r} of {name} is {spec.dtype} {list(shape)}. "
                "Write an own recipe with a network for it"
            )
    return keys


def check_discrete(env: Any, name: str, recipe: str) -> None:
    """Raise RLError unless the environment has one discrete action."""
    spec = env.action_spec_unbatched
    count = getattr(spec, "n", None)
    if not isinstance(count, int) or tuple(spec.shape) not in ((), (count,)):
        raise RLError(
            f"the {recipe} recipe takes one discrete action; that of {name} is {spec!r}. For actions that are numbers "
            "there are sac and td3, for any ppo"
        )


def check_continuous(env: Any, name: str, recipe: str) -> None:
    """Raise RLError unless the environment's action is a vector of bounded numbers."""
    spec = env.action_spec_unbatched
    bounds = getattr(spec, "low", None), getattr(spec, "high", None)
    bounded = all(isinstance(bound, Tensor) and bool(bound.isfinite().all()) for bound in bounds)
    if not bounded or not spec.dtype.is_floating_point or len(spec.shape) != 1:
        raise RLError(
            f"the {recipe} recipe takes a vector of bounded numbers as action; that of {name} is {spec!r}. For "
            "discrete actions there are dqn, c51 and qr_dqn, for any ppo"
        )
