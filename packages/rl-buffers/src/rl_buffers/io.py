"""State trees on disk: one folder with JSON and one file of raw tensors, replaced in one step, read without pickle.

``state.json`` holds ``{"format": 1, "kind": ..., "bytes": ..., "tree": ...}``. In the tree, a tensor is
``{"$tensor": {"dtype", "shape", "offset", "sum"}}``, an offset into ``tensors.bin`` that is a multiple of 64 and a
checksum; a dict whose
keys are not all plain strings is ``{"$items": [[key, value], ...]}`` and a tuple ``{"$tuple": [...]}``.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_core.errors import CheckpointError

__all__ = ["FORMAT", "load_tree", "save_tree"]

FORMAT = 1
"""The number written into each file; a reader refuses a higher one."""

_ALIGNMENT = 64
_PIECE, _BATCH = 1 << 19, 1 << 23  # bytes that stay in the processor's cache, and that the disk is given at a time
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
    """Put `folder` in the place of `target` in one step, and leave the old one at `folder`, where there is one."""
    if not target.exists():
        folder.rename(target)
    elif not _exchange(folder, target):
        # Without an exchange the old one steps aside, since a rename can replace an empty folder only.
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        target.rename(aside / "state")
        try:
            folder.rename(target)
        except OSError:
            (aside / "state").rename(target)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    _sync(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places at once, which Linux can do; False where it cannot be done."""
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(other), swap) == 0)


def _sync(folder: Path) -> None:
    """Have a rename on the disk; some file systems have no need of it and refuse."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    raw = value.detach().to("cpu").resolve_conj().resolve_neg().contiguous()  # rows are written from where they lie
    header = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "offset": offset}
    if not raw.numel():
        return header
    data, total = raw.reshape(-1).view(torch.uint8).numpy(), 0
    for first in range(0, data.size, _PIECE):
        piece = data[first : first + _PIECE]
        total += _sum_of(piece)  # it brings the piece near, from where it is then written
        file.write(piece.data)
        if (first + piece.size) % _BATCH == 0:
            _hurry(file, offset + first + piece.size - _BATCH)
    return {**header, "sum": total % 2**63}


def _hurry(file: BinaryIO, first: int) -> None:
    """Let the disk begin with a batch that was written, while the next one is prepared; Linux can do that."""
    if sys.platform != "linux":
        return
    try:
        sync_file_range = ctypes.CDLL(None).sync_file_range
    except AttributeError:
        return
    file.flush()
    start_writing = 2  # SYNC_FILE_RANGE_WRITE; where it is refused, the sync at the end does all
    sync_file_range(file.fileno(), ctypes.c_int64(first), ctypes.c_int64(_BATCH), start_writing)


def _checksum(flat: Tensor) -> int:
    """The sum of a byte tensor's 64-bit words, the last one padded with zeros: it reads as fast as memory does."""
    return _sum_of(flat.numpy()) % 2**63


def _sum_of(data: NDArray[np.uint8]) -> int:
    """Not reduced; of pieces whose sizes are multiples of 8, it adds up to that of the whole modulo 2 ** 63."""
    whole = data.size - data.size % 8
    aligned = data.ctypes.data % 8 == 0
    words = np.frombuffer(data[:whole], dtype="<u8") if aligned else data[:whole].copy().view("<u8")
    return int(np.add.reduce(words, dtype=np.uint64)) + int.from_bytes(data[whole:].tobytes(), "little")


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
    if not all(name in state for name in ("format", "kind", "bytes", "tree")) or type(state["format"]) is not int:
        raise CheckpointError(f"{folder / _STATE} is no saved state: an entry of it is missing")
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
    try:
        return _decode(state["tree"], data)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{folder} is damaged: {error}. Restore it from a copy, or use another save.") from error


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
    dtype, count = getattr(torch, header["dtype"]), math.prod(header["shape"])
    if count == 0:
        return torch.empty(header["shape"], dtype=dtype)
    flat = data[header["offset"] : header["offset"] + count * dtype.itemsize]
    if "sum" in header and _checksum(flat) != header["sum"]:
        raise ValueError(f"the {count * dtype.itemsize} bytes at {header['offset']} are not those that were written")
    return flat.view(dtype).reshape(header["shape"])
