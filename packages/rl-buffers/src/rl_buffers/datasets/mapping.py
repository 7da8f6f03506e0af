"""``map_rows``: a function of TensorDicts over chunks of rows, in this process or in several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.layout import Leaves, as_tensordict
from rl_buffers.datasets.row_files import RowWriter, read_rows
from rl_buffers.rows import flatten

__all__ = ["map_rows"]

_Fn = Callable[[TensorDict], TensorDictBase]


def map_rows(
    fn: _Fn, chunks: Iterable[Any], chunksize: int, num_workers: int, dest: Path | None, mp_start_method: str
) -> TensorDict:
    """The results of all chunks, in their order, as one TensorDict.

    Args:
        fn: the function.
        chunks: TensorDicts of rows.
        chunksize: their length, to name rows in errors.
        num_workers: processes; 0: this one.
        dest: a folder that holds the result; ``None``: memory.
        mp_start_method: how processes start.
    """
    if num_workers < 0:
        raise DatasetError(f"num_workers is at least 0, got {num_workers}")
    here = num_workers == 0
    results = _here(fn, chunks, chunksize) if here else _pool(fn, chunks, chunksize, num_workers, mp_start_method)
    if dest is None:
        return _collected(list(_alike(results)))
    row_batch: list[int] = []
    with RowWriter(dest) as writer:
        for leaves, extra in _alike(results):
            writer.append(leaves)
            row_batch = list(extra)
        writer.commit({"row_batch": row_batch})
    leaves, note = read_rows(dest)
    return as_tensordict(leaves, tuple(note["row_batch"]))


_Result = tuple[Leaves, tuple[int, ...]]


def _here(fn: _Fn, chunks: Iterable[Any], chunksize: int) -> Iterator[_Result]:
    for number, chunk in enumerate(chunks):
        first = number * chunksize
        try:
            found = fn(chunk)
        except Exception as error:
            raise _failed(first, chunk, error) from error
        yield _checked(found, first)


def _pool(fn: _Fn, chunks: Iterable[Any], chunksize: int, num_workers: int, start: str) -> Iterator[_Result]:
    """At most two chunks per process are under way, so that a dataset larger than memory can be mapped."""
    with ProcessPoolExecutor(num_workers, multiprocessing.get_context(start), _one_thread) as pool:
        waiting: list[tuple[int, Any, Future[Any]]] = []
        for number, chunk in enumerate(chunks):
            waiting.append((number * chunksize, chunk, pool.submit(fn, chunk)))
            if len(waiting) >= 2 * num_workers:
                yield _awaited(*waiting.pop(0))
        for entry in waiting:
            yield _awaited(*entry)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _awaited(first: int, chunk: Any, future: Future[Any]) -> _Result:
    try:
        found = future.result()
    except Exception as error:
        raise _failed(first, chunk, error) from error
    return _checked(found, first)


def _failed(first: int, chunk: Any, error: Exception) -> DatasetError:
    rows = f"{first} to {first + chunk.shape[0] - 1}"
    return DatasetError(f"the function failed for rows {rows}: {type(error).__name__}: {error}")


def _checked(found: Any, first: int) -> _Result:
    if not isinstance(found, TensorDictBase) or found.ndim < 1:
        what = f"batch size {list(found.shape)}" if isinstance(found, TensorDictBase) else type(found).__name__
        raise DatasetError(f"the function returned {what} for rows from {first}, expected a TensorDict of rows")
    flat = flatten(found)
    if flat.objects:
        names = ", ".join(repr(".".join(path)) for path in flat.objects)
        raise DatasetError(f"the function returned entries that are no tensors: {names}")
    return dict(flat.tensors), tuple(found.shape[1:])


def _alike(results: Iterator[_Result]) -> Iterator[_Result]:
    """The results, all of one structure."""
    first: dict[tuple[str, ...], tuple[torch.dtype, torch.Size]] | None = None
    for leaves, extra in results:
        found = {path: (leaf.dtype, leaf.shape[1:]) for path, leaf in leaves.items()}
        first = found if first is None else first
        if found != first:
            odd = sorted({".".join(path) for path, _ in found.items() ^ first.items()})
            raise DatasetError(f"the function returned other entries, dtypes or shapes for some chunks: {odd}")
        yield leaves, extra


def _collected(results: list[_Result]) -> TensorDict:
    parts = [leaves for leaves, _ in results]
    return as_tensordict({path: torch.cat([part[path] for part in parts]) for path in parts[0]}, results[-1][1])
