"""Video files: mp4 and gif from frames, by imageio."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rl_core.registry import missing_extra

try:
    import imageio.v2 as imageio
    import imageio_ffmpeg
except ModuleNotFoundError as error:
    if error.name not in ("imageio", "imageio_ffmpeg"):
        raise
    raise missing_extra(str(error.name), "rl-envs", "video") from error

__all__ = ["write_frames"]


def write_frames(path: Path, frames: np.ndarray, fps: float) -> Path:
    """Write frames as the format that the path's ending names.

    Args:
        path: ``.mp4`` or ``.gif``; folders are made.
        frames: uint8 ``[T, H, W, 3]``.
        fps: frames per second.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gif":
        imageio.mimwrite(path, list(frames), format="GIF", duration=1000.0 / fps, loop=0)
        return path
    if path.suffix != ".mp4":
        raise ValueError(f"a video file ends in .mp4 or .gif, got {path.name!r}")
    height, width = frames.shape[1:3]
    even = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # yuv420p needs even sides
    writer = imageio_ffmpeg.write_frames(str(path), (even.shape[2], even.shape[1]), fps=fps, macro_block_size=1)
    writer.send(None)
    try:
        for frame in even:
            writer.send(np.ascontiguousarray(frame))
    finally:
        writer.close()
    return path
