"""rl_trainers.plots: pictures of runs, complete or barely begun."""

import sys

import numpy as np
import pytest

from rl_trainers import plot_learning_curve
from rl_trainers.metrics_file import MetricsFile
from rl_trainers.plots import _smooth


def draw(tmp_path, updates, evaluations=()):
    file = MetricsFile(tmp_path / "metrics.csv")
    for update in range(updates):
        file.write({"train/return": float(update)}, step=1000 * (update + 1))
        if update in evaluations:
            file.write({"eval/return_mean": 2.0 * update, "eval/return_std": 1.0}, step=1000 * (update + 1))
    return plot_learning_curve(tmp_path / "metrics.csv", tmp_path / "curve.png", title="ppo on toy")


@pytest.mark.parametrize("updates", [0, 1, 3, 50])
def test_a_curve_of_any_length_is_drawn(tmp_path, updates):
    path = draw(tmp_path, updates, evaluations=(1, 2, 40))
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_curve_shows_the_data(tmp_path):
    from matplotlib.image import imread

    empty = imread(draw(tmp_path, 0))
    full = imread(draw(tmp_path, 50, evaluations=(10, 40)))
    assert empty.shape == full.shape == (675, 1200, 4)
    assert (np.abs(full - empty).sum(-1) > 0.1).mean() > 0.005


def test_drawing_leaves_pyplot_alone(tmp_path):
    had = "matplotlib.pyplot" in sys.modules
    draw(tmp_path, 5)
    assert ("matplotlib.pyplot" in sys.modules) == had


def test_smoothing_a_straight_line_changes_nothing():
    line = np.arange(60.0)
    np.testing.assert_allclose(_smooth(line), line)
