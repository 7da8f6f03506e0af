"""``VideoRecorder``: keeps the frames that pass by, and writes them as a video when asked to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, Composite, Logger, RowProgram, TensorSpec, Transform, reset_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key
from rl_envs.transforms.end_groups import time_dim
from rl_envs.transforms.entry_transform import map_leaves
from rl_envs.transforms.frame_pictures import grid_of, picture_of
from rl_envs.transforms.numpy_rows import entry_rows

__all__ = ["VideoRecorder"]


class VideoRecorder(Transform):
    """Records frames of an environment or of stored steps; the data stay as they are.

    :meth:`dump` writes what was recorded since the last one: to a logger (``log_video``), or as
    ``FOLDER/TAG_SUFFIX_STEP.mp4``. Frames are bytes or floats in 0 .. 1, channels first or last.

    Args:
        logger: a Logger, or the path of a folder for files.
        tag: the video's name.
        in_keys: frames; default ``["pixels"]`` (one key).
        skip: record every ``skip``-th frame; default: 2, in a batch 1.
        center_crop: keep the middle square of that many pixels.
        make_grid: show the frames of a batch as one picture (the default); False gives one video each, which a file
            shows side by side.
        out_keys: where else to write the frames; default: nowhere else.
        fps: frames per second; default: the logger's, 30 for files.
        max_frames: the most frames to keep between two dumps; later ones are left out.
        dump_on_done: dump whenever all rows of the batch end.
        video_format: of files, "mp4" or "gif".

    Example:
        >>> recorder = VideoRecorder(None, "run", skip=1)
        >>> data = {"pixels": torch.zeros(5, 8, 6, 3, dtype=torch.uint8)}
        >>> from tensordict import TensorDict
        >>> _ = recorder(TensorDict(data, batch_size=[5]))
        >>> recorder.video.shape
        torch.Size([5, 3, 8, 6])
    """

    def __init__(
        self,
        logger: Logger | str | Path | None,
        tag: str,
        in_keys: Key | Iterable[Key] | None = None,
        skip: int | None = None,
        center_crop: int | None = None,
        make_grid: bool | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        fps: float | None = None,
        max_frames: int | None = None,
        dump_on_done: bool = False,
        *,
        video_format: str = "mp4",
    ) -> None:
        super().__init__(["pixels"] if in_keys is None else in_keys, out_keys)
        if len(self.in_keys) != 1:
            raise ValueError(f"VideoRecorder records one entry, got {self.in_keys}; use one recorder for each")
        if skip is not None and skip < 1:
            raise ValueError(f"skip=n records every n-th frame, n at least 1; got {skip}")
        if video_format not in ("mp4", "gif"):
            raise ValueError(f"video_format must be 'mp4' or 'gif', got {video_format!r}")
        self.logger, self.tag, self.skip, self.center_crop = logger, tag, skip, center_crop
        self.make_grid, self.fps, self.max_frames = make_grid is not False, fps, max_frames
        self.dump_on_done, self.video_format = dump_on_done, video_format
        self._pictures: list[np.ndarray] = []
        self._seen = 0
        self.dumps = 0

    # ---------------------------------------------------------------- recording
    def record(self, frame: Any, batched: bool) -> None:
        """Take note of one frame ``[..., C, H, W]`` or ``[..., H, W, C]``, or of a batch of them."""
        seen, self._seen = self._seen, self._seen + 1
        every = self.skip or (1 if batched else 2)
        if seen % every or (self.max_frames is not None and len(self._pictures) >= self.max_frames):
            return
        picture = picture_of(frame, self.center_crop)
        if batched:
            picture = picture.reshape(-1, *picture.shape[-3:])
            picture = grid_of(picture) if self.make_grid else picture
        self._pictures.append(picture.copy())

    @property
    def video(self) -> Tensor:
        """What was recorded since the last dump: uint8 ``[T, 3, H, W]``, or ``[N, T, 3, H, W]`` without a grid."""
        if not self._pictures:
            return torch.zeros(0, 3, 0, 0, dtype=torch.uint8)
        stacked = torch.from_numpy(np.stack(self._pictures))
        return stacked if stacked.ndim == 4 else stacked.movedim(0, 1)

    def dump(self, suffix: str | None = None, step: int | None = None) -> Path | None:
        """Write the video and forget its frames; nothing where there are none.

        Args:
            suffix: joined to the tag.
            step: frames trained so far, for the logger's axis; default: the number of this dump.

        Returns:
            the file, where one was written here.
        """
        if not self._pictures:
            return None
        if self.logger is None:
            raise EnvError(
                "this VideoRecorder has no logger and no folder to write to; set recorder.logger, or read .video"
            )
        name = self.tag if suffix is None else f"{self.tag}_{suffix}"
        place = self.dumps if step is None else step
        video, path = self.video, None
        if isinstance(self.logger, (str, Path)):
            path = self._write(Path(self.logger) / f"{name}_{place}.{self.video_format}", video)
        else:
            self.logger.log_video(name, video, place, fps=self.fps)
        self._pictures, self._seen = [], 0
        self.dumps += 1
        return path

    def _write(self, path: Path, video: Tensor) -> Path:
        from rl_envs.transforms.video_file import write_frames

        frames = video if video.ndim == 4 else torch.cat(list(video), -1)
        return write_frames(path, frames.permute(0, 2, 3, 1).numpy(), 30 if self.fps is None else self.fps)

    def to_animation(self) -> Any:
        """A ``matplotlib.animation.FuncAnimation`` of what was recorded, for a notebook."""
        from rl_envs.transforms.animation import animate

        if not self._pictures:
            raise EnvError("nothing was recorded yet: reset and step the environment that has this VideoRecorder")
        video = self.video
        frames = video if video.ndim == 4 else torch.cat(list(video), -1)
        return animate(frames.permute(0, 2, 3, 1).numpy(), 30 if self.fps is None else self.fps)

    # ---------------------------------------------------------------- TensorDicts
    def _pass(self, tensordict: TensorDictBase, *, record: bool = True) -> TensorDictBase:
        frame = tensordict.get(self.in_keys[0], None)
        if frame is None:
            raise KeyMissingError(self._missing(self.in_keys[0], tensordict))
        if record:
            self.record(frame, tensordict.batch_dims > 0)
        if self.out_keys != self.in_keys:
            tensordict.set(self.out_keys[0], frame)
        return tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        rows = reset_rows(tensordict)
        return self._pass(tensordict_reset, record=rows is None or bool(rows.all()))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        self._pass(next_tensordict)
        if self.dump_on_done and bool(next_tensordict.get("done").all()):
            self.dump()
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Record stored steps ``[*B, T]``, their frames at the root."""
        frames = tensordict.get(self.in_keys[0], None)
        if frames is None:
            raise KeyMissingError(self._missing(self.in_keys[0], tensordict))
        for frame in frames.unbind(time_dim(tensordict)):
            self.record(frame, tensordict.batch_dims > 1)
        if self.out_keys != self.in_keys:
            tensordict.set(self.out_keys[0], frames)
        return tensordict

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The frames again, under another key where one was given."""

        def same(leaf: TensorSpec) -> TensorSpec:
            return leaf.clone()

        return map_leaves(observation_spec, self.in_keys, self.out_keys, same)

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True, unless videos are dumped at ends."""
        return not self.dump_on_done

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Reads a row."""
        source, batched = entry_rows(self, before, self.in_keys[0]), len(before.batch_size) > 0
        target = None if self.out_keys == self.in_keys else after[self.out_keys[0]]

        def step(t: int) -> None:
            self.record(source[t + 1], batched)
            if target is not None:
                target[t + 1] = source[t + 1]

        def reset(t: int, mask: np.ndarray | None) -> None:
            if mask is None or mask.all():
                self.record(source[t], batched)
            if target is not None and mask is None:
                target[t] = source[t]
            elif target is not None:
                target[t][mask] = source[t][mask]

        return RowProgram(step, reset)
