"""What every recipe has around its algorithm: its options, the run's folder with loggers and checkpoint, the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from typing_extensions import Self

from rl_trainers.checkpoint.checkpoint import Checkpoint
from rl_trainers.checkpoint.rng import GlobalRNGState
from rl_trainers.loggers.csv_logger import CSVLogger
from rl_trainers.loggers.factory import get_logger
from rl_trainers.loop import TrainingRun
from rl_trainers.progress import Progress, summary_table
from rl_trainers.run_folder import default_name, open_run_folder, read_config, write_config

__all__ = ["Recipe"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The base of recipes: a subclass adds the fields of its algorithm and writes :meth:`train`.

    ``train`` is one flat script: it builds the parts, calls :meth:`open_run`, and loops. ``rl train NAME`` makes the
    configuration with :meth:`from_argv` and calls :meth:`run`.
    """

    recipe: ClassVar[str]
    """The name on the command line."""
    about: ClassVar[str] = "env"
    """The field that says what is trained on; presets and the run's name follow it."""
    deciding: ClassVar[tuple[str, ...]] = ()
    """Further fields that :meth:`preset` depends on."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Changes to the defaults, by the value of that field."""

    frames: int = 500_000
    """Environment steps to train for, over all environments."""
    seed: int = 0
    """Root of all randomness: networks, environments, minibatches."""
    checkpoint_every: int = 0
    """Frames between two checkpoints; 0 writes five in the run."""
    run_dir: str = "runs"
    """Folder of runs."""
    name: str = ""
    """Name of this run's folder; made of environment, seed and time if empty."""
    resume: str = ""
    """Folder of a stopped run to go on with. Its configuration holds, except for options given beside this one."""
    tensorboard: bool = False
    """Whether to write TensorBoard files into the run's folder as well."""
    threads: int = 1
    """Threads of torch; small networks are fastest with one."""
    progress: bool = True
    """Whether to show the progress."""

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """The algorithm: train, evaluate, leave everything in the folder; what must be closed goes on the stack."""
        raise NotImplementedError(f"{type(self).__name__} must define train(self, folder, stack)")

    # ---------------------------------------------------------------- making a configuration
    @classmethod
    def preset(cls, subject: str, **changes: Any) -> Self:
        """The configuration that suits an environment (or a task), with changes."""
        return cls(**{cls.about: subject, **cls.presets.get(subject, {}), **changes})

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> Self:
        """The configuration of a command line: the environment's, or the stopped run's, with the options given."""
        import tyro

        resume, subject = _option(argv, "--resume"), _option(argv, f"--{cls.about}")
        stored = {**read_config(resume, cls), "resume": resume} if resume else None
        decided = {name: given for name in cls.deciding if (given := _option(argv, f"--{name}"))}
        default = (
            cls(**stored) if stored is not None else cls.preset(subject or str(getattr(cls, cls.about)), **decided)
        )
        return tyro.cli(cls, args=list(argv), default=default, prog=f"rl train {cls.recipe}")

    # ---------------------------------------------------------------- a run
    @property
    def subject(self) -> str:
        """What is trained on."""
        return str(getattr(self, self.about))

    def run(self) -> dict[str, float]:
        """Train, evaluate and leave everything in the run's folder.

        Returns:
            The last evaluation.
        """
        name = self.name or default_name(self.recipe, self.subject, self.seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with ExitStack() as stack:
                return self.train(Path(self.resume or Path(self.run_dir) / name), stack)
        finally:
            torch.set_num_threads(threads)

    def open_run(self, folder: Path, stack: ExitStack, **components: Any) -> TrainingRun:
        """Open the folder with configuration, metrics and checkpoint; a resumed run takes its checkpoint back.

        Args:
            folder: the run's.
            stack: closes the loggers.
            **components: what the checkpoint holds beside the counters and the random generators.

        Returns:
            The run, to be entered.
        """
        open_run_folder(folder, resume=bool(self.resume))
        write_config(folder, replace(self, resume="", run_dir=str(folder.parent), name=folder.name))
        csv = CSVLogger(folder.name, folder.parent)
        board = get_logger("tensorboard" if self.tensorboard else "", folder.parent, folder.name)
        loggers = [csv] if board is None else [csv, board]
        for logger in loggers:
            stack.callback(logger.close)
        checkpoint = Checkpoint(**components, rng=GlobalRNGState())
        run = TrainingRun(
            config=self,
            total_frames=self.frames,
            loggers=loggers,
            checkpoint=checkpoint,
            checkpoint_path=folder / "checkpoint",
            checkpoint_every=self.checkpoint_every or max(1, self.frames // 5),
            resume_command=f"rl train {self.recipe} --resume {folder}",
            progress=self._progress if self.progress else None,
        )
        if self.resume:
            checkpoint.load(folder / "checkpoint")
            csv.drop_after(run.frames)
        return run

    def _progress(self, frames_done: int) -> Progress:
        return Progress(self.frames, f"{self.recipe} {self.subject}", start_frames=frames_done)

    def report(self, folder: Path, run: TrainingRun, rows: Mapping[str, str | Path]) -> None:
        """Print a table of what came out and where it lies.

        Args:
            folder: the run's.
            run: for its counters.
            rows: the recipe's own lines; a line "evaluation" comes first.
        """
        own = dict(rows)
        evaluation = own.pop("evaluation", None)
        table: dict[str, str | Path] = {} if evaluation is None else {"evaluation": evaluation}
        table |= {
            "training": f"{run.frames:,} frames, {run.updates:,} updates in {run.seconds:.0f} s",
            "run folder": folder,
            "configuration": "config.json",
            "metrics": "metrics.csv",
            "checkpoint": "checkpoint/",
            **own,
        }
        Console().print(summary_table(f"{self.recipe} {self.subject}", table))


def _option(argv: Sequence[str], name: str) -> str:
    """The value of an option that decides about the defaults of all others."""
    for i, argument in enumerate(argv):
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
        if argument == name and i + 1 < len(argv):
            return argv[i + 1]
    return ""
