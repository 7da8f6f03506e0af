"""The outside of a training loop: budget, counters, logs, hooks, checkpoints, Ctrl-C; the inside stays in the recipe.

::

    run = TrainingRun(total_frames=cfg.frames, loggers=[logger], checkpoint=checkpoint, checkpoint_path=path)
    with run:
        for batch in run.batches(collector):
            ...                     # the algorithm, in the open
            run.record(losses)      # averaged over the update
            if run.due(10_000):
                run.log_evaluation(evaluate(env, policy))

Between two batches everything is consistent: there a row is logged, a checkpoint written, a request to stop obeyed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tensordict import TensorDictBase

from rl_core import hooks
from rl_core.training.logger import Logger
from rl_trainers.checkpoint.checkpoint import Checkpoint
from rl_trainers.interrupt import StopRequest
from rl_trainers.metrics import MeanMetrics, episode_metrics, frames_in
from rl_trainers.progress import Progress

__all__ = ["TrainingRun"]


class TrainingRun:
    """Drives one run; hook plugins get it as ``run``.

    Args:
        config: the run's configuration, for hooks.
        total_frames: the budget in frames, those of earlier processes included.
        loggers: get a row after each update.
        checkpoint: the components to save; the run adds itself as ``"run"``.
        checkpoint_path: the checkpoint's folder.
        checkpoint_every: frames between two checkpoints; 0 saves only at the end and when stopped.
        resume_command: what to type to go on, shown when the run is stopped.
        progress: makes the display, given the frames done so far; none where None.

    Attributes:
        frames: environment steps so far.
        updates: updates so far.
        seconds: training time so far, in seconds, that of earlier processes included.
    """

    def __init__(
        self,
        *,
        config: Any = None,
        total_frames: int,
        loggers: Sequence[Logger] = (),
        checkpoint: Checkpoint | None = None,
        checkpoint_path: str | Path | None = None,
        checkpoint_every: int = 0,
        resume_command: str = "",
        progress: Callable[[int], Progress] | None = None,
    ) -> None:
        if (checkpoint is None) != (checkpoint_path is None):
            raise ValueError("checkpoint and checkpoint_path belong together: give both or none")
        self.config = config
        self.total_frames = total_frames
        self.loggers = tuple(loggers)
        self.frames, self.updates, self.seconds = 0, 0, 0.0
        self.checkpoint, self.checkpoint_path = checkpoint, None if checkpoint_path is None else Path(checkpoint_path)
        self.checkpoint_every = checkpoint_every
        self._resume_command, self._make_progress = resume_command, progress
        self._progress: Progress | None = None
        self._stop = StopRequest()
        self._means = MeanMetrics()
        self._row: dict[str, float] = {}
        self._frames_before = 0  # frames when the batch under way began
        self._saved_at: int | None = None
        self._inside_update = False
        if checkpoint is not None:
            checkpoint.register("run", self)

    # ---------------------------------------------------------------- the loop
    def __enter__(self) -> TrainingRun:
        self._saved_at = self.frames if self.updates else None
        if self._make_progress is not None:
            self._progress = self._make_progress(self.frames)
        self._stop.__enter__()
        hooks.call("on_run_start", run=self)
        return self

    def batches(self, collector: Iterable[TensorDictBase]) -> Iterator[TensorDictBase]:
        """The collector's batches until the budget is spent; the update is finished when the next one is asked for.

        Raises:
            KeyboardInterrupt: someone asked to stop, and the update that was under way is finished and saved.
        """
        iterator = iter(collector)
        while self.frames < self.total_frames:
            started = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                return
            count = self._begin_update(frames_in(batch))
            hooks.call("on_batch", run=self, batch=batch)
            episodes = {f"train/{name}": value for name, value in episode_metrics(batch).items()}
            yield batch
            self._end_update(count, started, episodes)

    def rounds(self, size: int) -> Iterator[int]:
        """Rounds of so many frames each until the budget is spent, for training on data that are there already.

        What a frame is, is up to the recipe (an optimiser step, say); the last round may be shorter.

        Raises:
            KeyboardInterrupt: as for :meth:`batches`.
        """
        while self.frames < self.total_frames:
            started = time.perf_counter()
            count = self._begin_update(min(size, self.total_frames - self.frames))
            yield count
            self._end_update(count, started, {})

    def _begin_update(self, count: int) -> int:
        self._inside_update = True
        self._frames_before = self.frames
        self.frames += count
        self.updates += 1
        return count

    def _end_update(self, count: int, started: float, metrics: Mapping[str, float]) -> None:
        seconds = time.perf_counter() - started
        self.seconds += seconds
        self._finish_update({**metrics, "time/frames_per_second": count / seconds, "time/seconds": self.seconds})
        self._inside_update = False
        if self._stop.made:
            raise KeyboardInterrupt
        if self.checkpoint_every and self.due(self.checkpoint_every):
            self.save()

    def record(self, metrics: Mapping[str, Any]) -> None:
        """Note metrics of one optimiser step; their means over the update are logged."""
        self._means.add(metrics)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the row of the update under way."""
        self._row.update({name: float(value) for name, value in metrics.items()})

    def log_evaluation(self, metrics: Mapping[str, float]) -> None:
        """Log the metrics of :func:`rl_trainers.evaluate` under ``eval/`` at the frames so far, and tell the hooks."""
        named = {f"eval/{name}": float(value) for name, value in metrics.items()}
        for logger in self.loggers:
            logger.log_metrics(named, self.frames)
        if self._progress is not None:
            self._progress.update(self.frames, _shown(named))
        hooks.call("on_evaluation", run=self, metrics=named)

    def due(self, every: int) -> bool:
        """Whether the batch under way crossed a multiple of ``every`` frames (the end of the budget counts)."""
        return self.frames // every > self._frames_before // every or self.frames >= self.total_frames

    def _finish_update(self, metrics: Mapping[str, float]) -> None:
        means = self._means.pop()
        row = {**metrics, **{f"optim/{name}": value for name, value in means.items()}, **self._row}
        self._row = {}
        for logger in self.loggers:
            logger.log_metrics(row, self.frames)
        hooks.call("on_update", run=self, metrics=row)
        if self._progress is not None:
            self._progress.update(self.frames, _shown(row))

    # ---------------------------------------------------------------- checkpoints
    def save(self) -> Path | None:
        """Write the checkpoint now."""
        if self.checkpoint is None or self.checkpoint_path is None:
            return None
        metadata = {"frames": self.frames, "updates": self.updates, "inside_update": self._inside_update}
        path = self.checkpoint.save(self.checkpoint_path, metadata=metadata)
        self._saved_at = self.frames
        hooks.call("on_checkpoint", run=self, path=path)
        return path

    def state_dict(self) -> dict[str, Any]:
        """The counters."""
        return {"frames": self.frames, "updates": self.updates, "seconds": self.seconds}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self.frames, self.updates = int(state_dict["frames"]), int(state_dict["updates"])
        self.seconds = float(state_dict["seconds"])

    # ---------------------------------------------------------------- the end
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            interrupted = isinstance(error, KeyboardInterrupt)
            if (error is None or interrupted) and self._worth_saving():
                self.save()
        finally:
            self._stop.__exit__(kind, error, trace)
            if self._progress is not None:
                self._progress.close()
            for logger in self.loggers:
                logger.flush()
        if interrupted:
            self._say_how_to_go_on()
        hooks.call("on_run_end", run=self, error=error)

    def _worth_saving(self) -> bool:
        """Half an update is saved only where nothing better was: a resumed run should start from a whole one."""
        return self._saved_at is None if self._inside_update else self._saved_at != self.frames

    def _say_how_to_go_on(self) -> None:
        if self._progress is None or self.checkpoint_path is None:
            return
        done = f"{self.frames:,} of {self.total_frames:,} frames"
        lines = [f"Stopped at {done}; the checkpoint is {self.checkpoint_path}"]
        if self._saved_at != self.frames:
            lines[0] += f" (of frame {self._saved_at:,}: the update under way was cut off)"
        if self._resume_command:
            lines.append(f"Go on with: {self._resume_command}")
        for line in lines:
            self._progress.console.print(line, soft_wrap=True, highlight=False, markup=False)


def _shown(row: Mapping[str, float]) -> dict[str, float]:
    """What the progress display shows of a row: episodes, the last evaluation and the losses."""
    labels = {
        "train/return": "return",
        "train/episode_length": "length",
        "train/reward": "reward",
        "train/completion_length": "length",
        "eval/return_mean": "eval",
    }
    shown = {label: row[name] for name, label in labels.items() if name in row}
    for name, value in row.items():
        if name.startswith("optim/loss_"):
            shown[name.removeprefix("optim/").replace("_", " ")] = value
    return shown
