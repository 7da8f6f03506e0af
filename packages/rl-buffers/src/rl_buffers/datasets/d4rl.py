"""D4RLExperienceReplay: the datasets of D4RL, from their hdf5 files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_buffers.datasets.base import OfflineDataset
from rl_buffers.datasets.cache import Converted, Source, converted, default_root
from rl_buffers.datasets.d4rl_columns import D4RLOptions, transitions_of
from rl_buffers.datasets.d4rl_tables import tables
from rl_buffers.datasets.downloading import fetch
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.report import DatasetReport
from rl_buffers.datasets.row_files import RowWriter
from rl_core.buffers import Sampler, Writer
from rl_core.registry.errors_text import close_match
from rl_core.transforms import Transform

__all__ = ["D4RLExperienceReplay"]


class D4RLExperienceReplay(OfflineDataset):
    """Transitions of a D4RL dataset, such as "hopper-medium-v2", or of any hdf5 file in its layout.

    The file is looked for in `root` and in ``~/.d4rl/datasets`` (``$D4RL_DATASET_DIR``), and downloaded if it is in
    neither. It is converted once; later the rows are mapped from the cache in `root`, unless the file was changed.

    ("next", "observation") is "next_observations" where the file has them, else the next row's observation, never one
    of another episode, and never zeros. An episode that ends by "timeouts", or that stops without a flag, is truncated
    and not terminated. See :class:`~rl_buffers.OfflineDataset` for the layout and the arguments of the buffer.

    Args:
        dataset_id: the name, or the path of a file.
        batch_size: default of ``sample``.
        root: where files and the cache are; default: ``~/.cache/rl-buffers/d4rl``.
        download: fetch a file that is not there; "force" fetches it in any case.
        sampler: see :class:`~rl_buffers.OfflineDataset`, as those down to `split_trajs`.
        from_env: get the data from ``gym.make(dataset_id).get_dataset()``, which needs an old gym and mujoco-py.
        use_truncated_as_done: ``False`` leaves "truncated" false, and "done" is "terminated"; the episodes' numbers and
            the next observations stay as they are.
        direct_download: get the file by its address: what is done unless `from_env`. The two exclude each other.
        terminate_on_end: ``True`` marks timed-out episodes terminated too, as some published results did; ``False``
            drops their last transition; ``None`` does neither.
        missing_last: where a last observation is not in the file: "drop" its transition, or "repeat" the one before.
            A terminated one is always kept.
        max_episode_steps: for a file without "timeouts": episodes of so many rows end by a time limit.
        float_dtype: what floating-point columns are cast to; ``None`` keeps theirs.

    Raises:
        DatasetError: there is no such file, or it is damaged, lacks a column or has one of another length.
        PluginNotInstalledError: h5py is absent.
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
        from_env: bool = False,
        use_truncated_as_done: bool = True,
        direct_download: bool | None = None,
        terminate_on_end: bool | None = None,
        missing_last: str = "drop",
        max_episode_steps: int | None = None,
        float_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        if from_env and direct_download:
            raise DatasetError("from_env takes the data from an environment, direct_download from a file: choose one")
        options = D4RLOptions(
            use_truncated_as_done=use_truncated_as_done,
            terminate_on_end=terminate_on_end,
            missing_last=missing_last,
            max_episode_steps=max_episode_steps,
            float_dtype=float_dtype,
        )
        self.dataset_id = os.fspath(dataset_id)
        folder = default_root("d4rl") if root is None else Path(root).expanduser()
        if from_env:
            data = _from_env(self.dataset_id, options)
        else:
            data = _from_file(self.dataset_id, folder, download, options)
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

    def normalized_score(self, returns: Any) -> Any:
        """Returns of episodes on D4RL's scale, where a random policy has 0 and an expert 1 (papers show it times 100).

        Args:
            returns: a number or a tensor.

        Raises:
            DatasetError: no reference scores are known.
        """
        known = tables()
        if self.dataset_id not in known.lowest:
            raise DatasetError(
                f"no reference scores are known of {self.dataset_id!r}"
                f"{close_match(self.dataset_id, known.lowest)}. Scores of all tasks: pip install --no-deps d4rl"
            )
        low, high = known.lowest[self.dataset_id], known.highest[self.dataset_id]
        return (returns - low) / (high - low)


def _from_env(name: str, options: D4RLOptions) -> Converted:
    from rl_buffers.datasets.d4rl_env import dataset_of

    leaves, report, metadata = transitions_of(dataset_of(name), options, name)
    return Converted(leaves, report, metadata)


def _from_file(name: str, root: Path, download: bool | str, options: D4RLOptions) -> Converted:
    path = _locate(name, root, download)
    plain = {**asdict(options), "float_dtype": str(options.float_dtype)}

    def convert(writer: RowWriter) -> tuple[DatasetReport, Mapping[str, Any]]:
        from rl_buffers.datasets.hdf5 import read_columns

        leaves, report, metadata = transitions_of(read_columns(path), options, str(path))
        writer.append(leaves)
        return report, metadata

    return converted(root, Source("d4rl", Path(name).name, plain, path, [path]), convert, again=download == "force")


def _locate(name: str, root: Path, download: bool | str) -> Path:
    """The file of a dataset, downloaded if need be."""
    if Path(name).suffix in (".hdf5", ".h5") or Path(name).is_file():
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise DatasetError(f"there is no file {path}")
        return path
    known = tables().urls
    url = known.get(name)
    names = [f"{name}.hdf5"] if url is None else [url.rpartition("/")[2], f"{name}.hdf5"]
    own = Path(os.environ.get("D4RL_DATASET_DIR") or Path.home() / ".d4rl" / "datasets")
    places = [folder / file for folder in (root, own) for file in names]
    if download != "force":
        found = next((place for place in places if place.is_file()), None)
        if found is not None:
            return found.absolute()
    if url is None:
        raise DatasetError(
            f"no D4RL dataset is known as {name!r}{close_match(name, known)}, and none of "
            f"{', '.join(map(str, places))} is there. The table of all datasets: pip install --no-deps d4rl; a file "
            "can be named by its path"
        )
    if not download:
        raise DatasetError(f"{name} is not at {' or '.join(map(str, places))}: put {url} there, or say download=True")
    return fetch(url, places[0]).absolute()
