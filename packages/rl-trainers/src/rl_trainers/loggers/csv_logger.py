"""A logger that needs nothing but a disk: one CSV of every metric, JSON for the configuration, files for videos."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_core.training.logger import Logger, flatten_metrics
from rl_trainers.metrics_file import MetricsFile
from rl_trainers.video import frames_of, write_video

__all__ = ["CSVLogger", "as_plain_config"]

_FORMATS = ("mp4", "gif", "npy")


def as_plain_config(cfg: Any) -> dict[str, Any]:
    """A configuration (mapping or dataclass) as what JSON can hold; other values become their ``str``."""
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        cfg = dataclasses.asdict(cfg)
    plain: dict[str, Any] = {**cfg}
    return dict(json.loads(json.dumps(plain, default=str)))


class CSVLogger(Logger):
    """Writes ``<log_dir>/<exp_name>/metrics.csv`` (wide: ``step`` and one column per metric), whole after every call.

    An existing file is continued. Videos go to ``videos/``, texts to ``texts/``, the configuration to ``hparams.json``.

    Args:
        exp_name: the run's name.
        log_dir: the folder of runs; ``csv_logs`` where None.
        video_format: ``"mp4"`` (a gif where that cannot be written), ``"gif"`` or ``"npy"`` (uint8 ``[T, H, W, C]``).
        video_fps: pictures per second of videos whose call names none.

    Example:
        >>> import tempfile
        >>> with CSVLogger("run", tempfile.mkdtemp()) as logger:
        ...     logger.log_scalar("loss", 0.5, step=1000)
        >>> print(logger.path.read_text(), end="")
        step,loss
        1000,0.5
    """

    def __init__(
        self, exp_name: str, log_dir: str | Path | None = None, video_format: str = "mp4", video_fps: float = 30
    ) -> None:
        super().__init__(exp_name, "csv_logs" if log_dir is None else log_dir)
        if video_format not in _FORMATS:
            raise ValueError(f"video_format must be one of {', '.join(_FORMATS)}, got {video_format!r}")
        self.video_format = video_format
        self.video_fps = video_fps
        self.folder = self.log_dir / exp_name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "metrics.csv"
        self.experiment: MetricsFile = MetricsFile(self.path)

    def log_scalar(self, name: str, value: Any, step: int) -> None:
        """Write one number into the row of ``step``."""
        self.log_metrics({name: value}, step)

    def log_metrics(self, metrics: Mapping[Any, Any], step: int, *, keys_sep: str = "/") -> None:
        """Write several numbers into the row of ``step``."""
        self.experiment.write(dict(flatten_metrics(metrics, keys_sep)), step)

    def log_hparams(self, cfg: Mapping[str, Any] | Any) -> None:
        """Write ``hparams.json``."""
        text = json.dumps(as_plain_config(cfg), indent=2) + "\n"
        (self.folder / "hparams.json").write_text(text, encoding="utf-8")

    def log_video(self, name: str, video: Any, step: int, *, fps: float | None = None) -> None:
        """Write ``videos/<name>_<step>.<format>``."""
        path = self._file("videos", f"{name}_{step}.{self.video_format}")
        write_video(path, frames_of(video), fps=self.video_fps if fps is None else fps)

    def log_str(self, name: str, value: str, step: int) -> None:
        """Append a line to ``texts/<name>.jsonl``."""
        with self._file("texts", f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "text": value}) + "\n")

    def drop_after(self, step: int) -> None:
        """Forget what was logged beyond ``step`` frames; a resumed run calls it before it logs."""
        self.experiment.drop_after(step)

    def close(self) -> None:
        """Close the file."""
        self.experiment.close()

    def _file(self, folder: str, name: str) -> Path:
        path = self.folder / folder / name.replace("/", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
