"""What all collectors here do alike: iterate to the end of a budget, in the caller's thread or in one of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tensordict import TensorDictBase

from rl_collectors.background import Background
from rl_collectors.budget import FrameBudget
from rl_collectors.delivery import Delivery
from rl_core.collectors.contract import BaseCollector
from rl_core.errors import CollectorError

__all__ = ["RunningCollector"]


class NoLengthError(CollectorError, TypeError):
    """The number of batches is not known; a TypeError, as ``list(collector)`` expects of what has no length."""


class RunningCollector(BaseCollector):
    """A collector with a budget of frames and a way from a collected batch to the reader.

    Attributes:
        budget: frames of a batch and of the run.
        frames: environment steps so far.
        iteration: batches so far.
        closed: whether it is shut down.
    """

    budget: FrameBudget
    delivery: Delivery
    frames: int
    iteration: int
    closed: bool

    def __init__(self) -> None:
        self._ready: deque[TensorDictBase | None] = deque()
        self._background: Background | None = None

    @property
    def replay_buffer(self) -> Any:
        """What batches are handed to in place of the reader."""
        return self.delivery.replay_buffer

    @replay_buffer.setter
    def replay_buffer(self, buffer: Any) -> None:
        self.delivery.replay_buffer = buffer

    @property
    def postproc(self) -> Callable[[TensorDictBase], TensorDictBase] | None:
        """A function of each batch."""
        return self.delivery.postproc

    @postproc.setter
    def postproc(self, function: Callable[[TensorDictBase], TensorDictBase] | None) -> None:
        self.delivery.postproc = function

    @property
    def post_collect_hook(self) -> Callable[[TensorDictBase], Any] | None:
        """Called with each batch."""
        return self.delivery.post_collect_hook

    @post_collect_hook.setter
    def post_collect_hook(self, function: Callable[[TensorDictBase], Any] | None) -> None:
        self.delivery.post_collect_hook = function

    # ---------------------------------------------------------------- what a kind of collector defines
    @abstractmethod
    def _collect(self) -> TensorDictBase | None:
        """One more batch of the budget, before its delivery; None when it is used up."""

    @abstractmethod
    def _unbudgeted(self) -> TensorDictBase:
        """One more batch of full length, whatever the budget says, before its delivery."""

    def _before_background(self) -> None:
        """Get ready for collecting in a thread of its own."""

    # ---------------------------------------------------------------- collecting
    def __iter__(self) -> Iterator[Any]:
        """Batches until ``total_frames``; the collector shuts down when they are used up or an error passes through.

        A loop that is left early can be taken up again by another one. With a replay buffer, None for each batch.
        """
        if self.closed and not self.budget.steps(self.frames):
            return
        self._check_foreground()
        try:
            while self._fill():
                yield self._ready.popleft()
        except GeneratorExit:  # the caller left its loop
            raise
        except BaseException:
            self.shutdown()
            raise
        self.shutdown()

    def rollout(self) -> TensorDictBase:
        """One more batch of full length, whatever the budget says; it is not handed to the buffer.

        With ``trajs_per_batch``, as many whole trajectories.
        """
        self._check_foreground()
        buffer, self.delivery.replay_buffer = self.delivery.replay_buffer, None
        try:
            while not self._ready:
                self._ready.extend(self.delivery.give(self._unbudgeted()))
        finally:
            self.delivery.replay_buffer = buffer
        batch = self._ready.popleft()
        assert batch is not None
        return batch

    def next(self) -> TensorDictBase | None:
        """One more batch, or None when ``total_frames`` is reached (and always with a replay buffer)."""
        self._check_foreground()
        return self._ready.popleft() if self._fill() else None

    def _fill(self) -> bool:
        """Have something ready for the reader; False at the end of the run."""
        while not self._ready:
            batch = self._collect()
            if batch is None:
                self._ready.extend(self.delivery.finish())
                return bool(self._ready)
            self._ready.extend(self.delivery.give(batch))
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise CollectorError("this collector is shut down; construct a new one")

    def _check_foreground(self) -> None:
        self._check_open()
        if self._background is not None:
            self._background.check()
            if self._background.running:
                raise CollectorError(
                    "this collector collects in the background; read from its buffer, or async_shutdown() it"
                )

    # ---------------------------------------------------------------- in the background
    def start(self) -> None:
        """Collect into the replay buffer in a thread of its own, until :meth:`async_shutdown` or the end of the budget.

        A policy in this process acts as a copy from now on: call :meth:`update_policy_weights_` after training steps.
        An error in the thread is raised by the next of :meth:`pause`, :meth:`update_policy_weights_`, :meth:`stats` and
        :meth:`async_shutdown`.

        Raises:
            CollectorError: there is no replay buffer.
        """
        self._check_foreground()
        if self.delivery.replay_buffer is None:
            raise CollectorError("start() collects into a buffer; construct the collector with replay_buffer=...")
        self._before_background()
        self._background = Background(self._background_step, f"{type(self).__name__}.start")
        self._background.start()

    def _background_step(self) -> bool:
        if not self._fill():
            return False
        self._ready.clear()
        return True

    @property
    def is_running(self) -> bool:
        """Whether batches are being collected in the background."""
        return self._background is not None and self._background.running

    def pause(self) -> AbstractContextManager[None]:
        """A block within which nothing is collected in the background: ``with collector.pause(): ...``."""
        if self._background is None:
            raise CollectorError("pause() holds up what start() began; this collector was not started")
        return self._background.paused()

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """End collecting in the background after the batch under way, and shut down.

        Args:
            timeout: seconds to wait for that batch; None: as long as it takes.
            close_env: close the environments that this collector made.

        Raises:
            CollectorError: the thread ended with an error, or does not end in time.
        """
        background, self._background = self._background, None
        try:
            if background is not None:
                background.stop(timeout)
        finally:
            self.shutdown(close_env=close_env)
        if background is not None:
            background.check()

    def _stop_background(self, timeout: float | None = None) -> None:
        if self._background is not None:
            self._background.stop(timeout)

    def _check_background(self) -> None:
        if self._background is not None:
            self._background.check()

    @abstractmethod
    def shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Stop workers and close what this collector made; calling it twice is harmless."""

    # ---------------------------------------------------------------- numbers
    def __len__(self) -> int:
        """Batches of a run."""
        if self.budget.total_frames < 0:
            raise NoLengthError("this collector has no end (total_frames=-1), so it has no length")
        if self.delivery.trajs_per_batch is not None:
            raise NoLengthError("the number of trajectories of a run is not known before it (trajs_per_batch)")
        return -(-self.budget.total_frames // self.budget.frames_per_batch)
