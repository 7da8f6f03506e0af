"""AtariDQNExperienceReplay: the replay memories of DQN agents on Atari games.

R. Agarwal, D. Schuurmans, M. Norouzi (2020), An Optimistic Perspective on Offline Reinforcement Learning,
arXiv:1907.04543.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tensordict import TensorDictBase

from rl_buffers.datasets import atari_checkpoints
from rl_buffers.datasets.alignment import check_missing_last
from rl_buffers.datasets.atari_checkpoints import COLUMNS, checkpoints_in, file_of, optional_files
from rl_buffers.datasets.base import OfflineDataset
from rl_buffers.datasets.cache import Converted, Source, converted, default_root
from rl_buffers.datasets.downloading import fetch
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.frame_stacks import FrameStackStorage
from rl_buffers.datasets.layout import as_tensordict
from rl_buffers.datasets.report import DatasetReport
from rl_buffers.datasets.row_files import RowWriter
from rl_buffers.datasets.slicing import slice_sampler
from rl_core.buffers import Sampler, Writer
from rl_core.transforms import Transform

__all__ = ["AtariDQNExperienceReplay"]

_URL = "https://storage.googleapis.com/atari-replay-datasets/dqn"
_NOTE = "the files have terminals only: an episode that a time limit ended counts as terminated"


class AtariDQNExperienceReplay(OfflineDataset):
    """Transitions of checkpoints of one run, "Pong/1" for example: 1 million frames in each.

    Every frame is kept once, in files that are mapped; "observation" and ("next", "observation"), uint8
    ``[B, frame_stack, H, W]``, are built when rows are read, with zeros before an episode's first frame. A checkpoint
    never goes on in the next one: the episode at its end is cut. See :class:`~rl_buffers.OfflineDataset` for the
    layout and the arguments of the buffer.

    Args:
        dataset_id: "<game>/<run>", or the path of a folder with the files.
        batch_size: default of ``sample``.
        root: where files (``<root>/<dataset_id>``) and the cache are; default: ``~/.cache/rl-buffers/atari_dqn``.
        download: fetch files of `checkpoints` that are not there, about 300 MB each checkpoint.
        sampler: see :class:`~rl_buffers.OfflineDataset`, as those down to `transform`.
        split_trajs: must be false, since padded episodes would hold each frame many times: use `slice_len`.
        checkpoints: which; default: all that are there.
        frame_stack: frames of an observation.
        num_slices: draw parts of episodes, so many a batch, instead of giving a sampler.
        slice_len: the same by their length.
        strict_len: leave out episodes that are shorter than a slice.
        replacement: draw slices with replacement.
        missing_last: "drop" or "repeat" the last transition of a checkpoint; terminal ones are always kept.
        num_procs: accepted, without effect: files are read one after the other.
        mp_start_method: accepted, without effect.

    Raises:
        DatasetError: files are absent, damaged, or have other numbers of rows than the rest.
    """

    def __init__(
        self,
        dataset_id: str | os.PathLike[str],
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
        checkpoints: Sequence[int] | None = None,
        frame_stack: int = 4,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_len: bool = True,
        replacement: bool = True,
        missing_last: str = "drop",
        num_procs: int = 0,
        mp_start_method: str = "fork",
    ) -> None:
        if split_trajs:
            raise DatasetError("split_trajs would keep each frame many times: draw slices with slice_len=... instead")
        check_missing_last(missing_last)
        sampler = slice_sampler(sampler, num_slices, slice_len, strict_len, replacement)
        self.dataset_id = os.fspath(dataset_id)
        cache = default_root("atari_dqn") if root is None else Path(root).expanduser()
        folder, numbers = _locate(self.dataset_id, cache, download, checkpoints)
        data = _converted(self.dataset_id, folder, numbers, cache, missing_last, again=download == "force")
        rows = {path[1:]: leaf for path, leaf in data.leaves.items() if path[0] == "rows"}
        storage = FrameStackStorage(
            as_tensordict(rows),
            frames=data.leaves["frames", "pixels"],
            place=data.leaves["frames", "place"],
            next_place=data.leaves["frames", "next"],
            first=data.leaves["frames", "first"],
            stack=frame_stack,
        )
        super().__init__(
            data,
            batch_size,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            storage=storage,
        )


def _converted(
    name: str, folder: Path, numbers: Sequence[int], cache: Path, missing_last: str, again: bool
) -> Converted:
    files = [file_of(folder, column, number) for number in numbers for column in COLUMNS]
    files += [path for number in numbers for path in optional_files(folder, number)]
    absent = [path.name for path in files if not path.is_file()]
    if absent:
        have = ", ".join(sorted(path.name for path in folder.glob("*.gz"))) or "no such file"
        raise DatasetError(f"{folder} lacks {', '.join(absent)}; it has {have}")

    def convert(writer: RowWriter) -> tuple[DatasetReport, Mapping[str, Any]]:
        tally = atari_checkpoints.convert(folder, numbers, missing_last, writer)
        return DatasetReport.of(name, tally, notes=(_NOTE,)), {"checkpoints": list(numbers)}

    options = {"missing_last": missing_last, "checkpoints": list(numbers)}
    return converted(cache, Source("atari_dqn", name, options, folder, files), convert, again)


def _locate(
    name: str, root: Path, download: bool | str, checkpoints: Sequence[int] | None
) -> tuple[Path, Sequence[int]]:
    """The folder with the files, and the numbers of the checkpoints that are asked for."""
    own = Path(name).expanduser()
    folder = (own if own.is_dir() else root / name).absolute()
    folder = folder / "replay_logs" if (folder / "replay_logs").is_dir() else folder
    url = f"{_URL}/{name}/replay_logs"
    numbers = checkpoints_in(folder) if checkpoints is None else list(checkpoints)
    if not numbers:
        raise DatasetError(
            f"{folder} holds no checkpoint ($store$_observation_ckpt.0.gz and others of {url}): put some there, or "
            "name those to be fetched: checkpoints=[0]"
        )
    if own.is_dir() or not download:
        return folder, numbers
    for path in (file_of(folder, column, number) for number in numbers for column in COLUMNS):
        if download == "force" or not path.is_file():
            fetch(f"{url}/{quote(path.name)}", path)
    return folder, numbers
