"""Where a run's numbers and videos go: the contract of every logger.

The x-axis is never guessed: ``step`` is an explicit argument of each call and counts *frames* (environment steps over
all environments), so that no second writer and no restart can shift a curve.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Logger", "flatten_metrics"]


def flatten_metrics(metrics: Mapping[Any, Any], keys_sep: str = "/") -> Iterator[tuple[str, float]]:
    """The scalars of nested metrics as ``(name, value)``, nested and tuple keys joined by ``keys_sep``.

    Args:
        metrics: names to numbers or one-element tensors, or to further mappings (a TensorDict too).
        keys_sep: what joins the parts of a name.

    Raises:
        TypeError: a value is no number.

    Example:
        >>> list(flatten_metrics({"loss": {"actor": 1}, ("a", "b"): 2.5}))
        [('loss/actor', 1.0), ('a/b', 2.5)]
    """
    for key, value in metrics.items():
        name = keys_sep.join(map(str, key)) if isinstance(key, tuple) else str(key)
        if isinstance(value, Mapping):
            for inner, number in flatten_metrics(value, keys_sep):
                yield f"{name}{keys_sep}{inner}", number
            continue
        try:
            yield name, float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"metric {name!r} must be a number or a tensor with one element, got {type(value).__name__}"
                f"{list(value.shape) if hasattr(value, 'shape') else ''}; reduce it first, for example with .mean()"
            ) from error


class Logger(ABC):
    """Base of all loggers; subclasses write :meth:`log_scalar`, :meth:`log_hparams` and :meth:`log_video`.

    Args:
        exp_name: the run's name, used as the name of its folder.
        log_dir: the folder of runs.

    Attributes:
        experiment: the backend's own object, for what this contract does not cover.
    """

    experiment: Any = None

    def __init__(self, exp_name: str, log_dir: str | Path) -> None:
        self.exp_name = exp_name
        self.log_dir = Path(log_dir)

    @abstractmethod
    def log_scalar(self, name: str, value: Any, step: int) -> None:
        """Write one number (a float or a one-element tensor) at ``step`` frames."""

    @abstractmethod
    def log_hparams(self, cfg: Mapping[str, Any] | Any) -> None:
        """Write the run's configuration: a mapping or a dataclass."""

    @abstractmethod
    def log_video(self, name: str, video: Any, step: int, *, fps: float | None = None) -> None:
        """Write a video.

        Args:
            name: its name.
            video: uint8 ``[T, C, H, W]`` or ``[N, T, C, H, W]`` (N videos side by side), C = 3 or 1.
            step: frames trained so far.
            fps: pictures per second; the logger's default where None.
        """

    def log_metrics(self, metrics: Mapping[Any, Any], step: int, *, keys_sep: str = "/") -> None:
        """Write several numbers of one step; nested mappings are flattened with ``keys_sep``."""
        for name, value in flatten_metrics(metrics, keys_sep):
            self.log_scalar(name, value, step)

    def log_histogram(self, name: str, data: Any, step: int, **kwargs: Any) -> None:
        """Write the distribution of ``data``, a tensor or array of any shape; without a histogram, its quantiles."""
        import numpy as np

        values = np.asarray(data.detach().cpu() if hasattr(data, "detach") else data, dtype=np.float64).reshape(-1)
        if values.size == 0:
            return
        quantiles = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0])
        names = ("min", "q25", "median", "q75", "max")
        self.log_metrics({f"{name}/{part}": float(q) for part, q in zip(names, quantiles, strict=True)}, step)

    def log_str(self, name: str, value: str, step: int) -> None:
        """Write a text; backends without texts may drop it."""

    def flush(self) -> None:
        """Bring everything onto the disk."""

    def close(self) -> None:
        """Flush and let go of files and connections; further calls do nothing."""

    def __enter__(self) -> Logger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(exp_name={self.exp_name!r}, log_dir={str(self.log_dir)!r})"
