"""The folder of a run: made, checked and written to before any training, and read again by a resumed run."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rl_core.errors import CheckpointError, RLError

__all__ = ["default_name", "open_run_folder", "read_config", "write_config"]

_CONFIG = "config.json"


def default_name(recipe: str, env: str, seed: int) -> str:
    """A name for a run that nobody named: recipe, environment, seed and time.

    Example:
        >>> default_name("ppo", "gym:ALE/Pong-v5", 3)[:18]
        'ppo-ALE-Pong-v5-s3'
    """
    slug = re.sub(r"[^\w.]+", "-", env.rpartition(":")[2])
    return f"{recipe}-{slug}-s{seed}-{datetime.now():%Y%m%d-%H%M%S}"


def open_run_folder(folder: str | Path, *, resume: bool = False) -> Path:
    """Make the folder of a run, and try to write into it.

    Args:
        folder: the run's folder.
        resume: whether an earlier run in it is continued; else the folder must not hold one.

    Raises:
        RLError: it cannot be written, or holds another run.
        CheckpointError: there is nothing to resume.
    """
    folder = Path(folder)
    if resume and not (folder / _CONFIG).is_file():
        raise CheckpointError(f"{folder} holds no run to resume: there is no {_CONFIG} in it")
    if not resume and (folder / _CONFIG).exists():
        raise RLError(f"{folder} already holds a run; go on with it by --resume {folder}, or choose another --name")
    trial = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise RLError(
            f"the run folder {folder} cannot be written ({error.strerror or error}); "
            "choose another place with --run-dir"
        ) from error
    return folder


def write_config(folder: Path, config: Any) -> Path:
    """Write a dataclass as ``config.json``."""
    path = folder / _CONFIG
    path.write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8")
    return path


def read_config(folder: str | Path, kind: type) -> dict[str, Any]:
    """The fields that ``config.json`` gives to a dataclass; fields that it does not have (any more) warn.

    Raises:
        CheckpointError: no readable configuration there.
    """
    path = Path(folder) / _CONFIG
    try:
        stored: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} holds no run to resume: there is no {_CONFIG} in it") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(stored) - set(fields))
    if unknown:
        warnings.warn(f"{path} has unknown fields {', '.join(unknown)}: left out", stacklevel=2)
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items() if name in fields
    }
