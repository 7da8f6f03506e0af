"""``Evaluator``: what the policy under training is worth, measured at once or while training goes on."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import nn

from rl_collectors.acting import on_device
from rl_collectors.evaluation.dispatcher import Dispatcher, Outcome
from rl_collectors.evaluation.local import LocalRunner
from rl_collectors.evaluation.settings import EvaluationSettings, Job, Runner
from rl_collectors.evaluation.snapshots import copied_policy, snapshot
from rl_collectors.evaluation.statistics import TransformState, read_statistics
from rl_collectors.making import as_device
from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError
from rl_core.exploration import ExplorationType

__all__ = ["Evaluator"]

Result = dict[str, float]

_BACKENDS = ("sync", "thread", "process", "ray")
_BUSY = ("skip", "wait", "queue", "error")


class Evaluator:
    """Runs complete episodes of a deterministic policy with the weights of the moment at which it is asked.

    ``evaluate`` waits for the numbers; ``trigger_eval`` returns at once (unless ``backend="sync"``), and ``poll`` and
    ``wait`` give them out later. Numbers are ``eval/return_mean``, ``return_std``, ``return_min``, ``return_max``,
    ``length_mean``, ``episodes``, ``fps``, ``policy_version`` (how many snapshots of weights were taken), ``step``
    where it was given, and those of `metrics_fn`. The first episodes to end are the short ones, so each environment of
    a batch is told beforehand how many it runs.

    An evaluation leaves training alone: weights are copied when it is triggered, the policy's modes are put back,
    running statistics stand still, and the random generators are as before. A thread shares torch's global generator
    with the training: environments and policies that draw from it belong in a process.

    Recorders among the environment's transforms (``VideoRecorder``) write the film of each evaluation at its step.

    Args:
        env: an environment, or what makes one: a function, an ``EnvRef``, a name such as ``"gym:CartPole-v1"``. Other
            processes need the latter. It belongs to the evaluator alone.
        policy: what is trained; None: random actions.
        policy_factory: makes the policy where it acts; weights come with each call then.
        num_trajectories: complete episodes in an evaluation, over all rows of the environment.
        max_steps: an episode counts as finished after so many steps.
        exploration_type: how a stochastic policy picks its actions; the mode by default.
        log_prefix: stands before the numbers' names.
        logger: numbers are logged by ``log_scalar(name, value, step)`` at the first call of a method here after the
            evaluation has ended; needs steps.
        backend: "sync" evaluates in the call, "thread" beside it, "process" in another process, "ray" in a Ray actor.
        busy: what ``trigger_eval`` does while another evaluation is under way: "skip" this one, "wait" for the other,
            "queue" it, or "error".
        busy_policy: the same, under another name.
        seed: every evaluation starts with this seed, so that its episodes are those of the last one; default: others.
        training_env: its transforms' statistics (``VecNorm``) are handed, at each call, to the transforms of the same
            class and keys here. Frozen transforms, and those that share the statistics anyway, keep theirs.
        metrics_fn: further numbers by name, from a list of episodes ``[T]``.
        dump_video: False leaves recorders to the caller.
        video_every: film only every so many evaluations.
        reward_keys: the reward under "next", or a list of several (of groups of agents).
        reward_reduction: how a reward with several elements (agents) becomes one number.
        device: where the policy acts; default: where it is.
        trust_policy: call the policy with a TensorDict, without a look at its signature.
        create_env_kwargs: arguments for making the environment.
        on_result: called with the numbers when they are logged.
        timeout: the most seconds that an evaluation may take.
        init_fn: called first where the evaluation runs.
        mp_start_method: of the process: "forkserver" (default where there is one), "spawn" or "fork".
        num_gpus: of the Ray actor.
        ray_kwargs: further options of the actor.
        ray_init_config: arguments of ``ray.init``, e.g. ``{"address": "auto"}`` for a cluster; default: Ray runs
            already, or is started on this machine.

    Raises:
        CollectorError: an argument does not fit.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> with Evaluator(CountingEnv(length=3), num_trajectories=2, backend="sync") as evaluator:
        ...     evaluator.evaluate(step=1000)["eval/return_mean"]
        6.0
    """

    def __init__(
        self,
        env: Any,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | None = None,
        num_trajectories: int = 10,
        max_steps: int | None = None,
        exploration_type: ExplorationType | None = ExplorationType.DETERMINISTIC,
        log_prefix: str = "eval",
        logger: Any = None,
        backend: Literal["sync", "thread", "process", "ray"] = "thread",
        busy: Literal["skip", "wait", "queue", "error"] = "skip",
        busy_policy: Literal["skip", "wait", "queue", "error"] | None = None,
        seed: int | None = None,
        training_env: EnvBase | None = None,
        metrics_fn: Callable[[list[TensorDictBase]], Mapping[str, Any]] | None = None,
        dump_video: bool = True,
        video_every: int | None = None,
        reward_keys: Any = "reward",
        reward_reduction: Literal["sum", "mean"] = "sum",
        device: torch.device | str | None = None,
        trust_policy: bool = False,
        create_env_kwargs: Mapping[str, Any] | None = None,
        on_result: Callable[[Result], Any] | None = None,
        timeout: float | None = None,
        init_fn: Callable[[], Any] | None = None,
        mp_start_method: str | None = None,
        num_gpus: float = 0,
        ray_kwargs: Mapping[str, Any] | None = None,
        ray_init_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.closed = True  # until there is something to close
        self.busy = _one_of("busy", busy if busy_policy is None else busy_policy, _BUSY)
        self.backend = _one_of("backend", backend, _BACKENDS)
        if policy is not None and policy_factory is not None:
            raise CollectorError("policy and policy_factory exclude each other; pass one of them")
        _at_least_one(num_trajectories=num_trajectories, max_steps=max_steps, video_every=video_every)
        self.log_prefix, self.logger, self.on_result, self.training_env = log_prefix, logger, on_result, training_env
        self._policy, self._elsewhere = policy, backend in ("process", "ray")
        self._number = self._version = 0
        self._given: list[TransformState] | None = None
        self._ready: deque[Outcome] = deque()
        where = as_device(device)
        self._live = backend == "sync" and isinstance(policy, nn.Module) and on_device(policy, where) is policy
        settings = EvaluationSettings(
            env=env, env_kwargs=dict(create_env_kwargs or {}), policy_factory=policy_factory,
            policy=policy if self._live else copied_policy(policy, self._elsewhere),
            num_trajectories=num_trajectories, max_steps=max_steps, exploration_type=exploration_type,
            reward_keys=_under_next(reward_keys), reward_reduction=reward_reduction, metrics_fn=metrics_fn,
            device=where, trust_policy=trust_policy, seed=seed, draws=torch.initial_seed(), dump_video=dump_video,
            video_every=video_every or 1, timeout=timeout, init_fn=init_fn, live=self._live,
            place="elsewhere" if self._elsewhere else "here" if backend == "sync" else "thread",
        )  # fmt: skip
        self._runner = self._made_runner(settings, mp_start_method, ray_init_config, num_gpus, ray_kwargs or {})
        self._dispatcher = None if backend == "sync" else Dispatcher(self._runner, f"evaluator-{backend}")
        dispatcher, runner = self._dispatcher, self._runner
        self._finalizer = weakref.finalize(self, *((runner.close,) if dispatcher is None else (dispatcher.close, 10.0)))
        self.closed = False

    def _made_runner(
        self,
        settings: EvaluationSettings,
        start_method: str | None,
        ray_init_config: Mapping[str, Any] | None,
        num_gpus: float,
        ray_kwargs: Mapping[str, Any],
    ) -> Runner:
        if not self._elsewhere:
            return LocalRunner(settings)
        if isinstance(settings.env, EnvBase):
            raise CollectorError(
                f"backend={self.backend!r} makes its environment in another process; pass a function that makes it, an "
                f"EnvRef or a name such as 'gym:CartPole-v1' in place of the {type(settings.env).__name__}"
            )
        if self.backend == "process":
            from rl_collectors.evaluation.process import ProcessRunner

            return ProcessRunner(settings, start_method)
        from rl_collectors.evaluation.ray import RayRunner

        return RayRunner(settings, ray_init_config, {"num_gpus": num_gpus, **ray_kwargs})

    # ---------------------------------------------------------------- asking
    def evaluate(self, weights: Any = None, step: int | None = None) -> Result:
        """Evaluate, and wait for it; an evaluation that is under way ends first.

        Args:
            weights: a module, a state dict or a TensorDict of parameters; default: the policy's of now.
            step: frames trained so far.

        Returns:
            The numbers.

        Raises:
            CollectorError: the evaluation failed, with its traceback; with "sync" its own error is raised.
        """
        job = self._job(weights, step)
        if self._dispatcher is None:
            outcome = Outcome(job, self._runner.run(job))
            self._log(outcome)
            return self._numbers(outcome)
        self._dispatcher.submit(job)
        while True:
            self._collect()
            for outcome in self._ready:
                if outcome.job is job:
                    self._ready.remove(outcome)
                    return self._numbers(outcome)
            self._check(step)  # another thread may have shut it down
            self._dispatcher.wait()

    def trigger_eval(self, weights: Any = None, step: int | None = None) -> bool:
        """Ask for an evaluation with the weights of now, and go on.

        Args:
            weights: a module, a state dict or a TensorDict of parameters; default: the policy's of now.
            step: frames trained so far.

        Returns:
            Whether there will be one; False where it was skipped.

        Raises:
            CollectorError: an earlier evaluation failed; one is under way and ``busy="error"``.
        """
        self._check(step)
        self._collect()
        if self._ready and self._ready[0].error is not None:
            self._numbers(self._ready.popleft())
        dispatcher = self._dispatcher
        if dispatcher is not None and dispatcher.busy and self.busy != "queue":
            if self.busy == "skip":
                return False
            if self.busy == "error":
                raise CollectorError("an evaluation is under way; wait() for it, or construct with busy='queue'")
            while dispatcher.busy:
                dispatcher.wait()
                self._collect()
        job = self._job(weights, step)
        if dispatcher is not None:
            dispatcher.submit(job)
            return True
        outcome = Outcome(job, self._runner.run(job))
        self._log(outcome)
        self._ready.append(outcome)
        return True

    def poll(self) -> Result | None:
        """The numbers of the oldest evaluation that has ended and was not given out yet; None where there is none.

        Raises:
            CollectorError: it failed, with its traceback.
        """
        self._collect()
        return self._numbers(self._ready.popleft()) if self._ready else None

    def wait(self, timeout: float | None = None) -> Result | None:
        """The same as :meth:`poll`, once there is something; None where no evaluation is under way.

        Args:
            timeout: the most seconds to wait.

        Raises:
            CollectorError: it failed; the time is over, and the evaluation goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self.poll()
            if found is not None or self._dispatcher is None or not self._dispatcher.busy:
                return self.poll() if found is None else found
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._dispatcher.wait(left):
                raise CollectorError(f"the evaluation under way did not end within {timeout:g} s; it goes on")

    @property
    def pending(self) -> bool:
        """Whether an evaluation is under way, or waits to be."""
        return self._dispatcher is not None and self._dispatcher.busy

    # ---------------------------------------------------------------- what is handed over
    def update_env_state(self, training_env: EnvBase) -> None:
        """Hand the statistics that an environment's transforms have now to all evaluations from here on.

        Args:
            training_env: see the argument of that name of the class, which does this at each call.
        """
        self._given = read_statistics(training_env)

    def _check(self, step: int | None) -> None:
        if self.closed:
            raise CollectorError("this evaluator is shut down; construct a new one")
        if self.logger is not None and step is None:
            raise CollectorError("the logger needs to know how many frames were trained so far: pass step=...")

    def _job(self, weights: Any, step: int | None) -> Job:
        self._check(step)
        source = self._policy if weights is None else weights
        taken = None
        if weights is not None or isinstance(source, nn.Module):
            self._version += 1
            if not (self._live and source is self._policy):
                taken = snapshot(source, self._elsewhere)
        if self.training_env is not None:
            self.update_env_state(self.training_env)
        self._number += 1
        return Job(self._number, step, self._version, taken, self._given)

    # ---------------------------------------------------------------- giving out
    def _collect(self) -> None:
        if self._dispatcher is None:
            return
        for outcome in self._dispatcher.outcomes():
            self._ready.append(outcome)
            self._log(outcome)

    def _named(self, result: Result) -> Result:
        return {f"{self.log_prefix}/{name}": value for name, value in result.items()}

    def _log(self, outcome: Outcome) -> None:
        if outcome.result is None:
            return
        named = self._named(outcome.result)
        if self.logger is not None:
            for name, value in named.items():
                if name != f"{self.log_prefix}/step":
                    self.logger.log_scalar(name, value, outcome.job.step)
        if self.on_result is not None:
            self.on_result(named)

    def _numbers(self, outcome: Outcome) -> Result:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.result is not None
        return self._named(outcome.result)

    # ---------------------------------------------------------------- the end
    def shutdown(self, timeout: float | None = 10.0) -> None:
        """Give up what is under way, end the thread, the process or the actor, and close the environment made here.

        Calling it twice is harmless.

        Args:
            timeout: seconds for it.

        Raises:
            CollectorError: an evaluation failed and nobody was told yet; the thread does not end in time.
        """
        if self.closed:
            return
        self._collect()
        self.closed = True
        self._finalizer.detach()
        if self._dispatcher is None:
            self._runner.close()
        elif not self._dispatcher.close(timeout):
            raise CollectorError(
                f"the evaluation under way did not give up within {timeout:g} s: a step of the environment hangs"
            )
        for outcome in self._ready:
            if outcome.error is not None:
                raise outcome.error

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._ready.clear()  # the error that passes through is the one to be told
        self.shutdown()

    def __repr__(self) -> str:
        return f"Evaluator(backend={self.backend!r}, log_prefix={self.log_prefix!r}, evaluations={self._number})"


def _one_of(name: str, given: Any, known: tuple[str, ...]) -> str:
    if given not in known:
        raise CollectorError(f"{name} is {given!r}; it is one of {', '.join(map(repr, known))}")
    return str(given)


def _at_least_one(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise CollectorError(f"{name} is {number}; it is at least 1")


def _under_next(keys: Any) -> Any:
    """Reward keys without the "next" that they may begin with."""
    if isinstance(keys, list):
        return [_under_next(key) for key in keys]
    if isinstance(keys, tuple) and keys[:1] == ("next",):
        return keys[1] if len(keys) == 2 else keys[1:]
    return keys
