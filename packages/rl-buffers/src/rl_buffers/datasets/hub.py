"""Downloads from the Hugging Face hub, by its own client."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import huggingface_hub

from rl_buffers.datasets.errors import DatasetError

__all__ = ["fetch_snapshot"]


def fetch_snapshot(repo_id: str, target: Path, patterns: list[str], cure: str) -> None:
    """Download the files of a dataset repository that match to `target`, which appears when they are complete.

    Args:
        repo_id: the repository.
        target: the folder; one that is there is replaced.
        patterns: which files.
        cure: what to do where it fails, for the error.

    Raises:
        DatasetError: the network, the server or the disk refuses.
    """
    partial: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        fetched = partial / "new"
        huggingface_hub.snapshot_download(repo_id, repo_type="dataset", local_dir=str(fetched), allow_patterns=patterns)
        if target.exists():
            target.rename(partial / "old")
        fetched.rename(target)
    except Exception as error:  # the client raises errors of several libraries
        raise DatasetError(f"{repo_id} cannot be downloaded: {type(error).__name__}: {error}. {cure}") from error
    finally:
        if partial is not None:
            shutil.rmtree(partial, ignore_errors=True)
