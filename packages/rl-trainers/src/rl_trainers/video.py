"""Videos: from a policy's rollout or from tensors to an mp4 file, or to a gif where no mp4 encoder is at hand."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type

from rl_core.errors import EnvError

__all__ = ["encode_gif", "frames_of", "record_video", "windowless", "write_video"]


def frames_of(video: Any) -> np.ndarray:
    """Pictures ready to encode, from a logger's video.

    Args:
        video: uint8 ``[T, C, H, W]`` or ``[N, T, C, H, W]``, C = 3 or 1; N videos are put side by side.

    Returns:
        uint8 array ``[T, H, W, 3]``.

    Example:
        >>> frames_of(torch.zeros(2, 5, 3, 8, 6, dtype=torch.uint8)).shape
        (5, 8, 12, 3)
    """
    array = np.asarray(video.detach().cpu() if isinstance(video, torch.Tensor) else video)
    if array.dtype != np.uint8 or array.ndim not in (4, 5) or array.shape[-3] not in (1, 3):
        raise ValueError(
            "a video is uint8 [T, C, H, W] or [N, T, C, H, W] with C = 3 or 1, "
            f"got {array.dtype} {list(array.shape)}; move the channels with .permute(0, 3, 1, 2) where they stand last"
        )
    if array.ndim == 5:
        array = np.concatenate(list(array), axis=-1)  # side by side: W grows
    frames = np.moveaxis(array, -3, -1)
    return np.ascontiguousarray(np.broadcast_to(frames, (*frames.shape[:-1], 3)))


def encode_gif(frames: np.ndarray, fps: float) -> bytes:
    """The bytes of an endless gif.

    Args:
        frames: uint8 ``[T, H, W, 3]``.
        fps: pictures per second (viewers slow down beyond 50).
    """
    import imageio.v2 as imageio

    target = io.BytesIO()
    imageio.mimwrite(target, list(frames), format="GIF", duration=1000.0 / fps, loop=0)
    return target.getvalue()


def write_video(path: str | Path, frames: np.ndarray, fps: float = 30) -> Path:
    """Write pictures as the format that the path's ending names.

    Args:
        path: ``.mp4``, ``.gif`` or ``.npy``.
        frames: uint8 ``[T, H, W, 3]``.
        fps: pictures per second.

    Returns:
        The file written: the path, with ``.gif`` where an mp4 was asked for and no encoder works here.
    """
    path = Path(path)
    if path.suffix == ".npy":
        np.save(path, frames)
    elif path.suffix == ".gif":
        path.write_bytes(encode_gif(frames, fps))
    elif path.suffix == ".mp4":
        try:
            _write_mp4(path, frames, fps)
        except (ImportError, OSError, RuntimeError) as error:
            path.unlink(missing_ok=True)
            path = path.with_suffix(".gif")
            warnings.warn(
                f"no mp4 encoder works here ({type(error).__name__}: {error}); wrote {path.name} instead. "
                "For mp4: python -m pip install imageio-ffmpeg",
                stacklevel=2,
            )
            path.write_bytes(encode_gif(frames, fps))
    else:
        raise ValueError(f"a video file ends in .mp4, .gif or .npy, got {path.name!r}")
    return path


def _write_mp4(path: Path, frames: np.ndarray, fps: float) -> None:
    import imageio_ffmpeg

    height, width = frames.shape[1:3]
    frames = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")  # yuv420p needs even sides
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (frames.shape[2], frames.shape[1]),
        fps=fps,
        macro_block_size=1,
        output_params=["-movflags", "+faststart"],
    )
    writer.send(None)
    try:
        for frame in frames:
            writer.send(np.ascontiguousarray(frame))
    finally:
        writer.close()


@contextmanager
def windowless() -> Iterator[None]:
    """Let environments be drawn where there is no display: SDL is told to look for none, MuJoCo to use EGL.

    SDL, which draws gymnasium's classic environments, complains where it finds none. What the user
    has set is left alone.
    """
    wanted = {"SDL_VIDEODRIVER": "dummy"}
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        wanted["MUJOCO_GL"] = "egl"
    added = {key: value for key, value in wanted.items() if key not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for key in added:
            os.environ.pop(key, None)


def record_video(
    env: Any,
    policy: Any,
    path: str | Path,
    *,
    max_steps: int = 1000,
    fps: float = 30,
    pixels_key: str = "pixels",
    exploration_type: InteractionType = InteractionType.DETERMINISTIC,
) -> Path:
    """Run one episode and write what the environment rendered.

    Args:
        env: an environment that writes pictures under ``pixels_key`` (made with ``from_pixels=True``); of a batched one
            the first row is shown.
        policy: any callable ``policy(td) -> td``.
        path: the file, ``.mp4`` or ``.gif``.
        max_steps: the episode is cut here.
        fps: pictures per second.
        pixels_key: where the pictures are: uint8 ``[H, W, 3]`` or ``[3, H, W]``.
        exploration_type: how a stochastic policy picks its actions.

    Returns:
        The file written (see :func:`write_video`).

    Raises:
        EnvError: the environment writes no pictures.
    """
    frames = []
    with torch.no_grad(), set_interaction_type(exploration_type):
        td = env.reset()
        frames.append(_picture(td, pixels_key, env))
        for _ in range(max_steps):
            td, td_next = env.step_and_maybe_reset(policy(td))
            frames.append(_picture(td["next"], pixels_key, env))
            if bool(td["next", "done"].reshape(-1)[0]):
                break
            td = td_next
    return write_video(path, np.stack(frames), fps=fps)


def _picture(td: TensorDictBase, key: str, env: Any) -> np.ndarray:
    pixels = td.get(key, None)
    if pixels is None:
        raise EnvError(
            f"record_video needs pictures under {key!r}; the environment {type(env).__name__} writes "
            f"{', '.join(map(repr, td.keys()))}. Make it with from_pixels=True, for example "
            'registry.envs.make("gym:CartPole-v1", from_pixels=True, pixels_only=False)'
        )
    picture = pixels.reshape(-1, *pixels.shape[-3:])[0].cpu().numpy()
    return np.moveaxis(picture, 0, -1) if picture.shape[-1] not in (1, 3) else picture
