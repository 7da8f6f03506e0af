"""A logger for TensorBoard; its library is imported when a logger is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_core.errors import PluginNotInstalledError
from rl_core.training.logger import Logger
from rl_trainers.loggers.csv_logger import as_plain_config
from rl_trainers.video import encode_gif, frames_of

__all__ = ["TensorboardLogger"]


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise PluginNotInstalledError(
            "TensorboardLogger needs the tensorboard package, which is not installed. "
            "Install it with: python -m pip install 'rl-trainers[tensorboard]'"
        ) from error
    return SummaryWriter(log_dir=str(folder))


class TensorboardLogger(Logger):
    """Writes event files into ``<log_dir>/<exp_name>``; look at them with ``tensorboard --logdir <log_dir>``.

    Args:
        exp_name: the run's name.
        log_dir: the folder of runs.
        video_fps: pictures per second of videos whose call names none.

    Attributes:
        experiment: the ``SummaryWriter``.
    """

    def __init__(self, exp_name: str, log_dir: str | Path = "tb_logs", video_fps: float = 30) -> None:
        super().__init__(exp_name, log_dir)
        self.video_fps = video_fps
        self.experiment = _summary_writer(self.log_dir / exp_name)

    def log_scalar(self, name: str, value: Any, step: int) -> None:
        """Write one number."""
        self.experiment.add_scalar(name, float(value), global_step=step)

    def log_hparams(self, cfg: Mapping[str, Any] | Any) -> None:
        """Write the configuration as a text (TensorBoard's own hparams would open a second run)."""
        table = json.dumps(as_plain_config(cfg), indent=2).replace("\n", "\n    ")
        self.experiment.add_text("hparams", f"    {table}", global_step=0)

    def log_video(self, name: str, video: Any, step: int, *, fps: float | None = None) -> None:
        """Write a video as an animated picture (TensorBoard's own videos need a package of their own)."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        frames = frames_of(video)
        picture = Summary.Image(
            height=frames.shape[1],
            width=frames.shape[2],
            colorspace=3,
            encoded_image_string=encode_gif(frames, self.video_fps if fps is None else fps),
        )
        summary = Summary(value=[Summary.Value(tag=name, image=picture)])
        self.experiment.file_writer.add_summary(summary, global_step=step)

    def log_histogram(self, name: str, data: Any, step: int, **kwargs: Any) -> None:
        """Write a histogram; ``kwargs`` go to ``SummaryWriter.add_histogram``."""
        self.experiment.add_histogram(name, data, global_step=step, **kwargs)

    def log_str(self, name: str, value: str, step: int) -> None:
        """Write a text."""
        self.experiment.add_text(name, value, global_step=step)

    def flush(self) -> None:
        """Write what is waiting."""
        self.experiment.flush()

    def close(self) -> None:
        """Write what is waiting and close the event file."""
        self.experiment.close()
