"""LeRobotExperienceReplay: robot demonstrations in the parquet layout of LeRobot."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_buffers.datasets.alignment import check_missing_last
from rl_buffers.datasets.base import OfflineDataset
from rl_buffers.datasets.cache import Converted, Source, converted, default_root
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.lerobot_columns import KeyMap, transitions_of
from rl_buffers.datasets.report import DatasetReport
from rl_buffers.datasets.row_files import RowWriter
from rl_buffers.datasets.slicing import slice_sampler
from rl_core.buffers import Sampler, Writer
from rl_core.keys import as_path
from rl_core.transforms import Transform

__all__ = ["LeRobotExperienceReplay"]


class LeRobotExperienceReplay(OfflineDataset):
    """Transitions of a LeRobot dataset, ``data/**/*.parquet`` with ``meta/info.json`` (versions 2 and 3).

    A column is found under its name, dots separating the parts: "observation.state" is ("observation", "state"). The
    observation after an episode's last frame is not in the files, so that its transition is dropped by default, and the
    episode is truncated with the one before. Videos, images and texts are left out, and reported. See
    :class:`~rl_buffers.OfflineDataset` for the layout and the arguments of the buffer.

    Args:
        repo_id: the name on the hub, such as "lerobot/pusht", or the path of a folder.
        batch_size: default of ``sample``.
        root: where datasets (``<root>/<repo_id>``) and the cache are; default: ``~/.cache/rl-buffers/lerobot``.
        download: fetch files that are not there, with huggingface_hub; "force" fetches them in any case.
        sampler: see :class:`~rl_buffers.OfflineDataset`, as those down to `split_trajs`.
        num_slices: draw parts of episodes, so many a batch, instead of giving a sampler.
        slice_len: the same by their length.
        strict_length: leave out episodes that are shorter than a slice.
        replacement: draw slices with replacement.
        key_map: keys of columns, such as ``{"observation.state": "observation"}``; ``None`` leaves a column out.
        decode_video: videos are not decoded: ``True`` is an error where the dataset has some.
        missing_last: "drop" or "repeat" the transition of an episode's last frame; a terminated one is always kept.
        float_dtype: what floating-point columns are cast to; ``None`` keeps theirs.

    Raises:
        DatasetError: the files are absent or damaged, or lack a column.
        PluginNotInstalledError: pyarrow is absent.
    """

    def __init__(
        self,
        repo_id: str | os.PathLike[str],
        batch_size: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        download: bool | str = True,
        sampler: Sampler | None = None,
        writer: Writer | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
        split_trajs: bool = False,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        replacement: bool = True,
        key_map: KeyMap | None = None,
        decode_video: bool = False,
        missing_last: str = "drop",
        float_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        check_missing_last(missing_last)
        sampler = slice_sampler(sampler, num_slices, slice_len, strict_length, replacement)
        self.dataset_id = os.fspath(repo_id)
        cache = default_root("lerobot") if root is None else Path(root).expanduser()
        folder = _folder(self.dataset_id, cache, download)
        info = _info(folder)
        videos = [name for name, feature in info.get("features", {}).items() if feature.get("dtype") == "video"]
        if videos and decode_video:
            raise DatasetError(f"videos are not decoded here, and {self.dataset_id} has {videos}: decode_video=False")
        left_out = dict.fromkeys(videos, "it is a video")
        data = _from_files(self.dataset_id, folder, cache, key_map, missing_last, float_dtype, left_out, download)
        super().__init__(
            data,
            batch_size,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            split_trajs=split_trajs,
        )

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        batch_size: int | None = None,
        *,
        key_map: KeyMap | None = None,
        missing_last: str = "drop",
        float_dtype: torch.dtype | None = torch.float32,
        **kwargs: Any,
    ) -> LeRobotExperienceReplay:
        """A dataset of columns in memory: lists, arrays or tensors ``[R, ...]`` by the names of the layout.

        Args:
            columns: at least "episode_index", "action" and some "observation.*".
            batch_size: default of ``sample``.
            key_map: as above, as the next two.
            missing_last: "drop" or "repeat".
            float_dtype: what floating-point columns are cast to.
            **kwargs: the arguments of :class:`~rl_buffers.OfflineDataset`.

        Example:
            >>> columns = {
            ...     "observation.state": [[0.0], [1.0], [2.0], [5.0], [6.0]],
            ...     "action": [[0.1], [0.2], [0.3], [0.4], [0.5]],
            ...     "episode_index": [0, 0, 0, 1, 1],
            ... }
            >>> dataset = LeRobotExperienceReplay.from_columns(columns, batch_size=2)
            >>> dataset[:]["next", "observation", "state"].flatten().tolist()
            [1.0, 2.0, 6.0]
        """
        options: dict[str, Any] = {"key_map": key_map, "missing_last": missing_last, "float_dtype": float_dtype}
        leaves, report = transitions_of(columns, "columns", **options)
        dataset = cls.__new__(cls)
        dataset.dataset_id = "columns"
        OfflineDataset.__init__(dataset, Converted(leaves, report, {}), batch_size, **kwargs)
        return dataset


def _from_files(
    name: str,
    folder: Path,
    cache: Path,
    key_map: KeyMap | None,
    missing_last: str,
    float_dtype: torch.dtype | None,
    left_out: Mapping[str, str],
    download: bool | str,
) -> Converted:
    files = sorted((folder / "data").rglob("*.parquet"))
    if not files:
        raise DatasetError(f"{folder / 'data'} holds no parquet file")
    keys = {column: None if key is None else list(as_path(key)) for column, key in (key_map or {}).items()}
    options = {"missing_last": missing_last, "float_dtype": str(float_dtype), "key_map": keys}

    def convert(writer: RowWriter) -> tuple[DatasetReport, Mapping[str, Any]]:
        from rl_buffers.datasets.parquet import read_columns

        columns, unread = read_columns(files)
        leaves, report = transitions_of(
            columns,
            name,
            key_map=key_map,
            missing_last=missing_last,
            float_dtype=float_dtype,
            left_out={**left_out, **unread},
        )
        writer.append(leaves)
        info = _info(folder)
        rows = len(columns["episode_index"])
        if info.get("total_frames", rows) != rows:
            note = f"the files hold {rows} of the {info['total_frames']} frames that meta/info.json tells of"
            report = replace(report, notes=(*report.notes, note))
        return report, {key: info[key] for key in ("codebase_version", "robot_type", "fps") if key in info}

    source = Source("lerobot", name, options, folder, [*files, *_info_file(folder)])
    return converted(cache, source, convert, again=download == "force")


def _folder(name: str, root: Path, download: bool | str) -> Path:
    """Where the files of a dataset are, downloaded if need be."""
    own = Path(name).expanduser()
    if (own / "data").is_dir():
        return own.absolute()
    folder = (root / name).absolute()
    if (folder / "data").is_dir() and download != "force":
        return folder
    cure = (
        f"Get https://huggingface.co/datasets/{name} where there is a network (hf download {name} --repo-type dataset) "
        f"and put its folders 'data' and 'meta' into {folder}"
    )
    if not download:
        raise DatasetError(f"there is no LeRobot dataset in {folder}. {cure}, or say download=True.")
    if importlib.util.find_spec("huggingface_hub") is None:
        raise DatasetError(
            f"there is no LeRobot dataset in {folder}, and to fetch it takes: pip install huggingface_hub. {cure}."
        )
    from rl_buffers.datasets.hub import fetch_snapshot

    fetch_snapshot(name, folder, ["data/**", "meta/**"], cure)
    return folder


def _info_file(folder: Path) -> list[Path]:
    path = folder / "meta" / "info.json"
    return [path] if path.is_file() else []


def _info(folder: Path) -> dict[str, Any]:
    for path in _info_file(folder):
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise DatasetError(f"{path} cannot be read: {error}. Fetch it again.") from error
    return {}
