"""MinariExperienceReplay: the datasets of Minari, local ones and those of its server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase

from rl_buffers.datasets.alignment import check_missing_last
from rl_buffers.datasets.base import OfflineDataset
from rl_buffers.datasets.cache import Converted, Source, converted, default_root
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.minari_episodes import EpisodeReader
from rl_buffers.datasets.minari_library import get_dataset_path, minari
from rl_buffers.datasets.report import DatasetReport
from rl_buffers.datasets.row_files import RowWriter
from rl_core.buffers import Sampler, Writer
from rl_core.registry.errors_text import close_match
from rl_core.transforms import Transform

__all__ = ["MinariExperienceReplay"]


class MinariExperienceReplay(OfflineDataset):
    """Transitions of a Minari dataset, such as "mujoco/hopper/medium-v0".

    Minari's own files are used where they are (``$MINARI_DATASETS_PATH``, ``~/.minari/datasets``), and downloaded by
    Minari if they are not there. They are converted once; later the rows are mapped from the cache in `root`, unless
    the files were changed.

    The parts of a dict of observations stand at the root, as with the environment of gymnasium, and the parts of a
    tuple are named "0", "1", ...; actions of a ``Discrete`` space are numbers from 0, int64 ``[T]`` (with an
    environment: ``categorical_action_encoding=True``). Texts and infos are left out, and reported. See
    :class:`~rl_buffers.OfflineDataset` for the layout and the arguments of the buffer.

    Args:
        dataset_id: the name.
        batch_size: default of ``sample``.
        root: where the cache is; default: ``~/.cache/rl-buffers/minari``.
        download: let Minari fetch what is not there; "force" fetches it in any case.
        sampler: see :class:`~rl_buffers.OfflineDataset`, as those down to `split_trajs`.
        load_from_local_minari: never use the network.
        missing_last: where an episode's last observation was not stored: "drop" its transition, or "repeat" the one
            before. A terminated one is always kept.
        float_dtype: what floating-point numbers are cast to; ``None`` keeps theirs.

    Raises:
        DatasetError: there is no such dataset, or it is damaged.
        PluginNotInstalledError: minari is absent.
    """

    def __init__(
        self,
        dataset_id: str,
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
        load_from_local_minari: bool = False,
        missing_last: str = "drop",
        float_dtype: torch.dtype | None = torch.float32,
    ) -> None:
        check_missing_last(missing_last)
        self.dataset_id = dataset_id
        folder = _local(dataset_id, False if load_from_local_minari else download)
        cache = default_root("minari") if root is None else Path(root).expanduser()
        options = {"missing_last": missing_last, "float_dtype": str(float_dtype)}
        source = Source("minari", dataset_id, options, folder, _files(folder))

        def convert(writer: RowWriter) -> tuple[DatasetReport, Mapping[str, Any]]:
            return _convert(dataset_id, folder, writer, missing_last, float_dtype)

        data: Converted = converted(cache, source, convert, again=download == "force")
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


def _convert(
    name: str, folder: Path, writer: RowWriter, missing_last: str, float_dtype: torch.dtype | None
) -> tuple[DatasetReport, Mapping[str, Any]]:
    try:
        dataset = minari.MinariDataset(folder)
        reader = EpisodeReader(dataset.observation_space, dataset.action_space, missing_last, float_dtype)
        reader.write(dataset.iterate_episodes(), writer)
    except DatasetError as error:
        raise DatasetError(f"{name}: {error}") from error
    except ImportError as error:
        raise DatasetError(f"{name} cannot be read: {error}") from error
    except (OSError, ValueError, LookupError, AssertionError, RuntimeError) as error:  # what its readers raise
        raise DatasetError(
            f"{name} cannot be read, its files in {folder} are damaged or incomplete: {type(error).__name__}: {error}. "
            "Remove them and fetch them again (download='force')."
        ) from error
    spec = dataset.spec
    metadata = {
        "dataset_id": spec.dataset_id,
        "env_id": None if spec.env_spec is None else spec.env_spec.id,
        "minari_version": str(spec.minari_version),
    }
    return DatasetReport.of(name, reader.tally, reader.left_out), metadata


def _local(name: str, download: bool | str) -> Path:
    """The folder with Minari's files of a dataset."""
    folder = Path(get_dataset_path(name)) / "data"
    if folder.is_dir() and download != "force":
        return folder
    if not download:
        have = list(minari.list_local_datasets())
        raise DatasetError(
            f"there is no Minari dataset {name!r} at {folder}{close_match(name, have)}; local ones: "
            f"{', '.join(have) or 'none'}. Fetch it with: minari download {name}"
        )
    try:
        minari.download_dataset(name, force_download=download == "force")
    except Exception as error:  # whatever the client of its server raises
        raise DatasetError(
            f"Minari cannot download {name!r}: {type(error).__name__}: {error}. Fetch it where there is a network "
            f"(minari download {name}) and put it at {folder.parent}"
        ) from error
    return folder


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise DatasetError(f"{folder} holds no file: remove it and fetch the dataset again")
    return files
