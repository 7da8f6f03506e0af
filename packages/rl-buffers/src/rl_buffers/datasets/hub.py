"""Downloads from the Hugging Face hub, by its own client."""

from __future__ import annotations

from pathlib import Path

from rl_buffers.datasets.errors import DatasetError

try:
    import huggingface_hub
except ModuleNotFoundError as error:
    if error.name != "huggingface_hub":
        raise
    huggingface_hub = None

__all__ = ["fetch_snapshot"]


def fetch_snapshot(repo_id: str, target: Path, patterns: list[str]) -> None:
    """Download the files of a dataset repository that match, into `target`.

    Raises:
        DatasetError: the client is absent, or cannot get them; the text says how to get them elsewhere.
    """
    url = f"https://huggingface.co/datasets/{repo_id}"
    cure = f"Get {url} where there is a network (hf download {repo_id} --repo-type dataset) and put it at {target}"
    if huggingface_hub is None:
        raise DatasetError(f"{repo_id} is not at {target}, and to fetch it takes: pip install huggingface_hub. {cure}")
    try:
        huggingface_hub.snapshot_download(
            repo_id, repo_type="dataset", local_dir=str(target), allow_patterns=patterns
        )
    except Exception as error:  # the client raises errors of several libraries
        raise DatasetError(f"{url} cannot be downloaded: {type(error).__name__}: {error}. {cure}") from error
