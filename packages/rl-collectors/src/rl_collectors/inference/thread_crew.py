"""Workers in threads of this process, each with an environment that it makes, steps and closes itself."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensordict import TensorDictBase

from rl_collectors.background import StoppedError
from rl_collectors.inference.client import PolicyClient
from rl_collectors.inference.crews import ServedCollector, joined
from rl_collectors.process.control import WORDS, Control
from rl_collectors.process.failure import Failure
from rl_collectors.process.settings import EnvFacts
from rl_collectors.process.watched import Watch, watched
from rl_core.errors import CollectorError

__all__ = ["ThreadCrew"]

Task = Callable[[ServedCollector], Any]


class _Worker:
    """One thread: does tasks in their order, and puts what they give into a queue for all workers."""

    def __init__(self, index: int, control: Control, results: queue.SimpleQueue[tuple[int, Any, Any]]) -> None:
        self.index, self.control, self.results = index, control, results
        self.tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None

    def start(self, build: Callable[[], ServedCollector]) -> None:
        self.thread = threading.Thread(target=self._run, args=(build,), name=f"env-worker-{self.index}", daemon=True)
        self.thread.start()

    def _run(self, build: Callable[[], ServedCollector]) -> None:
        phase = "building its environment"
        collector: ServedCollector | None = None
        try:
            collector = build()
            watch = Watch(self.control, self._attend)
            collector.act_through(lambda policy: watched(policy, watch))
            self.results.put((self.index, collector, None))
            while (task := self.tasks.get()) is not None:
                phase = "collecting"
                self.results.put((self.index, task(collector), None))
            phase = "closing its environment"
        except StoppedError:
            pass
        except BaseException as error:
            self.results.put((self.index, None, (phase, error)))
        finally:
            if collector is not None:
                collector.shutdown()

    def _attend(self) -> None:
        if self.control.stopped:
            raise StoppedError("the workers were shut down while a batch was awaited")


class ThreadCrew:
    """Workers in threads.

    Args:
        makers: of their environments.
        client: the served policy, or None for random actions.
        seeds: of the environments.
        options: for each worker, further arguments of :class:`~rl_collectors.Collector`.
        timeout: seconds without a policy call after which a worker counts as hanging.

    Raises:
        CollectorError: a worker fails or hangs.
    """

    def __init__(
        self,
        makers: Sequence[Any],
        client: PolicyClient | None,
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]],
        timeout: float,
    ) -> None:
        self.timeout = timeout
        self._results: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
        memory = bytearray(8 * WORDS * len(makers))
        self._workers = [_Worker(index, Control(memory, index), self._results) for index in range(len(makers))]
        self._stopped = False
        for worker, maker, seed, own in zip(self._workers, makers, seeds, options, strict=True):
            worker.start(_Builder(maker, client, seed, own))
        try:
            self._facts = [_facts(collector) for collector in self._await(range(len(makers)))]
            if any(each.batch_size != self._facts[0].batch_size for each in self._facts):
                raise CollectorError(
                    "the workers' environments have the batch sizes "
                    f"{[tuple(each.batch_size) for each in self._facts]}; give each worker as many as the others"
                )
        except BaseException:
            self.stop(1.0)
            raise

    @property
    def facts(self) -> EnvFacts:
        """What the environments are."""
        return self._facts[0]

    # ---------------------------------------------------------------- tasks
    def gather(self, steps: int, random: bool, reset: Sequence[int]) -> TensorDictBase:
        """Bare steps ``[N, *B, T]``."""

        def task(collector: ServedCollector, fresh: bool) -> TensorDictBase:
            if fresh:
                collector.reset()
            return collector.gather(steps, random=random)

        found = self._all([_with(task, worker.index in reset) for worker in self._workers])
        return joined(found)

    def seed(self, seeds: Sequence[int]) -> None:
        """Seed the environments, one after the other: some of them seed what threads share."""
        for worker, seed in zip(self._workers, seeds, strict=True):
            worker.tasks.put(_with(_seed, seed))
            self._await([worker.index])

    def state_dict(self) -> dict[str, Any]:
        """Each worker's state."""
        return {"workers": self._all([_state] * len(self._workers))}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> list[int]:
        """Take a state back; returns the workers that started anew."""
        saved = state_dict["workers"]
        if len(saved) != len(self._workers):
            raise CollectorError(f"the state is of {len(saved)} workers, this collector has {len(self._workers)}")
        fresh = self._all([_with(_load, own) for own in saved])
        return [index for index, anew in enumerate(fresh) if anew]

    def _all(self, tasks: Sequence[Task]) -> list[Any]:
        if self._stopped:
            raise CollectorError("the workers are shut down")
        for worker, task in zip(self._workers, tasks, strict=True):
            worker.tasks.put(task)
        return self._await(range(len(tasks)))

    def _await(self, workers: Sequence[int]) -> list[Any]:
        found: dict[int, Any] = {}
        seen = {worker: (-1, time.monotonic()) for worker in workers}
        while len(found) < len(workers):
            try:
                worker, result, wrong = self._results.get(timeout=min(1.0, self.timeout / 4))
            except queue.Empty:
                self._look_for_hangs({worker: seen[worker] for worker in workers if worker not in found}, seen)
                continue
            if wrong is not None:
                raise self._failed(worker, *wrong)
            found[worker] = result
        return [found[worker] for worker in workers]

    # ---------------------------------------------------------------- what goes wrong
    def _failed(self, worker: int, phase: str, error: BaseException) -> CollectorError:
        told = Failure.of(error, worker, phase).error()
        told.__cause__ = error
        return told

    def _look_for_hangs(self, waiting: Mapping[int, tuple[int, float]], seen: dict[int, tuple[int, float]]) -> None:
        now = time.monotonic()
        for worker, (progress, since) in waiting.items():
            current = self._workers[worker].control.progress
            if current != progress:
                seen[worker] = (current, now)
            elif now - since > self.timeout:
                raise CollectorError(
                    f"worker {worker} made no progress for {self.timeout:g} s. Where it is:\n"
                    f"{_whereabouts(self._workers[worker].thread)}\nIf its steps take as long as that, pass "
                    f"timeout={self.timeout * 10:g}"
                )

    # ---------------------------------------------------------------- the end
    def ask_to_stop(self) -> None:
        """Let workers give up before their next policy call."""
        self._stopped = True
        for worker in self._workers:
            worker.control.stop()
            worker.tasks.put(None)

    def stop(self, timeout: float) -> None:
        """End the threads; one that hangs is left behind."""
        self.ask_to_stop()
        deadline = time.monotonic() + timeout
        for worker in self._workers:
            if worker.thread is not None and worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, deadline - time.monotonic()))
        late = [w.index for w in self._workers if w.thread is not None and w.thread.is_alive()]
        if late:
            warnings.warn(f"the threads of workers {late} did not end within {timeout:g} s; they go on", stacklevel=3)


class _Builder:
    """Makes a worker's collector, in its thread."""

    def __init__(self, maker: Any, client: PolicyClient | None, seed: int, options: Mapping[str, Any]) -> None:
        self.maker, self.client, self.seed, self.options = maker, client, seed, options

    def __call__(self) -> ServedCollector:
        collector = ServedCollector(self.maker, self.client, track_traj_ids=False, rounding="up", **self.options)
        collector.env.set_seed(self.seed)
        return collector


def _facts(collector: ServedCollector) -> EnvFacts:
    env = collector.env
    return EnvFacts(env.batch_size, list(env.end_groups), type(env.base_env).__name__)


def _with(task: Callable[[ServedCollector, Any], Any], argument: Any) -> Task:
    return lambda collector: task(collector, argument)


def _seed(collector: ServedCollector, seed: int) -> None:
    collector.env.set_seed(seed)


def _state(collector: ServedCollector) -> dict[str, Any]:
    return collector.state_dict()


def _load(collector: ServedCollector, state_dict: dict[str, Any]) -> bool:
    collector.restarted = False
    collector.load_state_dict(state_dict)
    return collector.restarted


def _whereabouts(thread: threading.Thread | None) -> str:
    frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
    return "(it has ended)" if frame is None else "".join(traceback.format_stack(frame)).rstrip()
