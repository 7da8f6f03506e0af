"""State trees on disk: one folder with JSON and one file of raw tensors, replaced in one step, read without pickle.

``state.json`` holds ``{"format": 1, "kind": ..., "bytes": ..., "tree": ...}``. In the tree, a tensor is
``{"$tensor": {"dtype", "shape", "offset"}}``, an offset into ``tensors.bin`` that is a multiple of 64; a dict whose
keys are not all plain strings is ``{"$items": [[key, value], ...]}`` and a tuple ``{"$tuple": [...]}``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from rl_core.errors import CheckpointError

__all__ = ["FORMAT", "load_tree", "save_tree"]

FORMAT = 1
"""The number written into each file; a reader refuses a higher one."""

_ALIGNMENT = 64
_STATE, _TENSORS = "state.json", "tensors.bin"


def save_tree(path: str | os.PathLike[str], tree: Any, kind: str) -> None:
    """Write a tree of dicts, lists, tuples, tensors, numbers, strings, bools and ``None`` into folder `path`.

    The folder is written beside `path` and then takes its place, so a crash leaves the old one or the new one.

    Args:
        path: a new folder, or one that an earlier save made.
        tree: the state.
        kind: what the state is of; checked when it is read.

    Raises:
        CheckpointError: the tree holds another kind of object (named by its place), the place is taken by something
            that is not a saved state, or the disk refuses.
    """
    target = Path(path).absolute()
    if target.exists() and not (target / _STATE).is_file() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} exists and is no saved state: choose another path, or remove it first")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            _write(folder, tree, kind)
            _replace(folder, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise CheckpointError(
            f"{target} cannot be written: {error}. The previous state there, if any, is untouched."
        ) from error


def _write(folder: Path, tree: Any, kind: str) -> None:
    with open(folder / _TENSORS, "wb") as file:
        encoded = _encode(tree, file, kind)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    with open(folder / _STATE, "w", encoding="utf-8") as file_:
        json.dump({"format": FORMAT, "kind": kind, "bytes": size, "tree": encoded}, file_)
        file_.flush()
        os.fsync(file_.fileno())
    folder.chmod(0o777 & ~_umask())  # mkdtemp makes folders that only their owner can read


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _replace(folder: Path, target: Path) -> None:
    """Put `folder` in the place of `target`, which steps aside: one rename can replace an empty folder only."""
    if not target.exists():
        folder.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(aside / "state")
    try:
        folder.rename(target)
    except OSError:
        (aside / "state").rename(target)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _encode(value: Any, file: BinaryIO, place: str) -> Any:
    if isinstance(value, Tensor):
        return {"$tensor": _append(value, file)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, file, f"{place}/{key}") for key, item in value.items()}
        pairs = [[_encode(key, file, place), _encode(item, file, f"{place}/{key}")] for key, item in value.items()]
        return {"$items": pairs}
    if type(value) is tuple:
        return {"$tuple": [_encode(item, file, f"{place}/{i}") for i, item in enumerate(value)]}
    if type(value) is list:
        return [_encode(item, file, f"{place}/{i}") for i, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise CheckpointError(
        f"{place} is a {type(value).__name__}: files hold tensors, numbers, strings, bools, None, and dicts, lists and "
        "tuples of these (no pickle). Convert it before it is stored."
    )


def _append(value: Tensor, file: BinaryIO) -> dict[str, Any]:
    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
    offset = file.tell()
    raw = value.detach().to("cpu").contiguous()
    if raw.numel():
        raw.reshape(-1).view(torch.uint8).numpy().tofile(file)
    return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "offset": offset}


def load_tree(path: str | os.PathLike[str], kind: str) -> Any:
    """Read what :func:`save_tree` wrote.

    Args:
        path: the folder.
        kind: what the state must be of.

    Returns:
        The tree; its tensors are mapped privately from the file, so copy what is to outlive it.

    Raises:
        CheckpointError: there is no such folder, it is damaged, of a newer format, or of another kind.
    """
    folder = Path(path)
    try:
        with open(folder / _STATE, encoding="utf-8") as file:
            state = json.load(file)
        size = (folder / _TENSORS).stat().st_size
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} holds no readable state: {error}") from error
    if not isinstance(state, dict) or "format" not in state:
        raise CheckpointError(f"{folder / _STATE} is no saved state: it has no format number")
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{folder} has format {state['format']}, this version reads up to {FORMAT}: upgrade rl-buffers"
        )
    if state["kind"] != kind:
        raise CheckpointError(f"{folder} holds the state of a {state['kind']}, not of a {kind}")
    if state["bytes"] != size:
        raise CheckpointError(
            f"{folder / _TENSORS} has {size} bytes, {state['bytes']} were written: the copy is incomplete"
        )
    data = (
        torch.from_file(str(folder / _TENSORS), shared=False, size=size, dtype=torch.uint8)
        if size
        else torch.empty(0, dtype=torch.uint8)
    )
    return _decode(state["tree"], data)


def _decode(node: Any, data: Tensor) -> Any:
    if isinstance(node, list):
        return [_decode(item, data) for item in node]
    if not isinstance(node, dict):
        return node
    if "$tensor" in node:
        return _tensor(node["$tensor"], data)
    if "$tuple" in node:
        return tuple(_decode(item, data) for item in node["$tuple"])
    if "$items" in node:
        return {_decode(key, data): _decode(item, data) for key, item in node["$items"]}
    return {key: _decode(item, data) for key, item in node.items()}


def _tensor(header: Mapping[str, Any], data: Tensor) -> Tensor:
    dtype = getattr(torch, header["dtype"])
    count = 1
    for size in header["shape"]:
        count *= size
    if count == 0:
        return torch.empty(header["shape"], dtype=dtype)
    n_bytes = count * torch.empty(0, dtype=dtype).element_size()
    return data[header["offset"] : header["offset"] + n_bytes].view(dtype).reshape(header["shape"])
