"""The learning curve of a run as a picture, from its metrics file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from rl_trainers.metrics_file import read_metrics

__all__ = ["plot_learning_curve"]

_TRAIN, _EVAL = "#4878d0", "#d65f5f"


def plot_learning_curve(
    metrics: str | Path,
    path: str | Path,
    *,
    title: str = "Learning curve",
    train_key: str = "train/return",
    eval_key: str = "eval/return_mean",
    eval_std_key: str = "eval/return_std",
    eval_label: str = "deterministic evaluation (mean ± std)",
    train_label: str = "training (mean of an update's episodes)",
    x_label: str = "frames (environment steps)",
    y_label: str = "episode return (sum of rewards)",
) -> Path:
    """Draw the return over the frames: every update as a dot, a smoothed line, and the evaluations with their spread.

    Args:
        metrics: the run's ``metrics.csv``.
        path: the picture, ``.png``, ``.svg`` or ``.pdf``.
        title: the picture's title.
        train_key: the column of training returns.
        eval_key: the column of evaluation means.
        eval_std_key: the column of evaluation standard deviations.
        eval_label: what the legend calls the evaluations.
        train_label: what the legend calls the updates.
        x_label: what the frames are.
        y_label: what the returns are.

    Returns:
        The picture's path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = read_metrics(metrics)
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_training(axes, *_points(columns, train_key), label=train_label)
    _draw_evaluations(axes, *_points(columns, eval_key, eval_std_key), label=eval_label)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_formatter(lambda value, _: _thousands(value))
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="best")
    path = Path(path)
    figure.savefig(path)
    return path


def _draw_training(axes: Any, frames: np.ndarray, returns: np.ndarray, *, label: str) -> None:
    if not len(frames):
        return
    axes.plot(frames, returns, ".", color=_TRAIN, alpha=0.35, markersize=5, label=label)
    if len(frames) >= 5:
        axes.plot(frames, _smooth(returns), color=_TRAIN, linewidth=2, label="training, smoothed")


def _draw_evaluations(axes: Any, frames: np.ndarray, means: np.ndarray, stds: np.ndarray, *, label: str) -> None:
    if len(frames):
        axes.errorbar(
            frames, means, yerr=stds, fmt="o-", color=_EVAL, markersize=5, linewidth=1, capsize=3, label=label
        )


def _points(columns: dict[str, list[float]], *keys: str) -> tuple[np.ndarray, ...]:
    """Frames and the columns, only where the first column was logged; evaluations without a spread get none."""
    frames = np.asarray(columns["step"])
    values = [np.asarray(columns.get(key, [math.nan] * len(frames))) for key in keys]
    logged = np.isfinite(values[0])
    return frames[logged], values[0][logged], *(np.nan_to_num(value[logged]) for value in values[1:])


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred mean whose window is a tenth of the run and shrinks at both ends, so that the ends are not bent."""
    half = max(1, len(values) // 20)
    totals = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    reach = np.minimum(half, np.minimum(index, len(values) - 1 - index))
    smoothed: np.ndarray = (totals[index + reach + 1] - totals[index - reach]) / (2 * reach + 1)
    return smoothed


def _thousands(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
