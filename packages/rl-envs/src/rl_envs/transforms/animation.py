"""Animations of frames for a notebook, by matplotlib."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_core.registry import missing_extra

try:
    from matplotlib.animation import FuncAnimation
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    if error.name != "matplotlib":
        raise
    raise missing_extra("matplotlib", "rl-envs", "video") from error

__all__ = ["animate"]


def animate(frames: np.ndarray, fps: float) -> Any:
    """A ``FuncAnimation`` of uint8 frames ``[T, H, W, 3]``; ``.to_jshtml()`` shows it in a notebook."""
    figure = Figure(figsize=(frames.shape[2] / 100, frames.shape[1] / 100), dpi=100)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.axis("off")
    picture = axes.imshow(frames[0])

    def show(index: int) -> tuple[Any]:
        picture.set_data(frames[index])
        return (picture,)

    return FuncAnimation(figure, show, frames=len(frames), interval=1000.0 / fps, blit=True)
