"""Finds and loads the compiled kernels, once and at their first use, or says why they are not there.

A wheel carries the library at ``rl_buffers/_native/``, an editable install at ``rl_buffers.libs/`` beside the installed
metadata. ``RL_BUFFERS_NATIVE`` decides: ``0`` never loads it (the torch twins are used), ``1`` makes its absence an
error; unset, the twins step in and ``rl doctor`` says so.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, cast

from rl_core.errors import NativeError

__all__ = ["ABI", "doctor_report", "kernel", "library", "native_state"]

ABI = 3
"""The number that ``rl_buffers_abi()`` must return (native/abi.h)."""

_DISTRIBUTION = "rl-buffers"
_PACKAGE = "rl_buffers"
_VARIABLE = "RL_BUFFERS_NATIVE"
_CURE = "Install a C++17 compiler (Debian: apt install g++), then: pip install --force-reinstall --no-deps rl-buffers"


class Loaded(NamedTuple):
    """What an attempt to load gave; `state` is "native", "off", "absent" or "broken", `detail` a path or a reason."""

    library: ctypes.CDLL | None
    state: str
    detail: str


def _file_name() -> str:
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    return f"lib{_PACKAGE}_native{suffix}"


def _candidates() -> list[Path]:
    places = [Path(__file__).parent / "_native" / _file_name()]
    try:
        distribution = metadata.distribution(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return places
    return [*places, Path(str(distribution.locate_file(f"{_PACKAGE}.libs/{_file_name()}")))]


def open_library(path: Path) -> ctypes.CDLL:
    """Load one library file and check its interface number.

    Raises:
        NativeError: the file is no such library, or is of another version than this Python code.
    """
    try:
        opened = ctypes.CDLL(str(path))
        opened.rl_buffers_abi.restype = ctypes.c_int64
        number = opened.rl_buffers_abi()
    except (OSError, AttributeError) as error:
        raise NativeError(f"{path} is not a library of rl-buffers kernels: {error}. {_CURE}") from error
    if number != ABI:
        raise NativeError(f"{path} has interface number {number}, this rl-buffers needs {ABI}. {_CURE}")
    return opened


@functools.cache
def load() -> Loaded:
    """Load the library as ``RL_BUFFERS_NATIVE`` says; the answer is kept (``load.cache_clear()`` forgets it).

    Raises:
        NativeError: ``RL_BUFFERS_NATIVE=1`` and there is no usable library.
    """
    wanted = os.environ.get(_VARIABLE, "")
    if wanted == "0":
        return Loaded(None, "off", f"{_VARIABLE}=0")
    places = _candidates()
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        detail = f"no {_file_name()} at {' or '.join(str(place) for place in places)}. {_CURE}"
        if wanted == "1":
            raise NativeError(f"{_VARIABLE}=1, but there is {detail}")
        return Loaded(None, "absent", detail)
    try:
        return Loaded(open_library(path), "native", str(path))
    except NativeError as error:
        if wanted == "1":
            raise
        warnings.warn(f"rl-buffers goes on without its C++ kernels: {error}", RuntimeWarning, stacklevel=2)
        return Loaded(None, "broken", str(error))


def library() -> ctypes.CDLL | None:
    """The loaded kernels, or ``None`` where the torch twins are to be used."""
    return load().library


def kernel(name: str, *arguments: Any) -> Callable[..., int] | None:
    """One function of the library, ready to be called, or ``None`` where the torch twins are to be used.

    Args:
        name: its name in C.
        *arguments: the ctypes of its arguments; all functions return int64.
    """
    loaded = library()
    if loaded is None:
        return None
    function = getattr(loaded, name)
    function.restype, function.argtypes = ctypes.c_int64, list(arguments)
    return cast("Callable[..., int]", function)


def native_state() -> str:
    """Which implementation runs: "native", or "off", "absent" or "broken" where it is the torch twins.

    >>> native_state() in {"native", "off", "absent", "broken"}
    True
    """
    try:
        return load().state
    except NativeError:
        return "absent"


def doctor_report() -> list[tuple[str, str, str]]:
    """What ``rl doctor`` shows of this package: (name, state, detail), one per native library."""
    try:
        loaded = load()
    except NativeError as error:
        return [("rl-buffers kernels", "absent", str(error))]
    return [("rl-buffers kernels", loaded.state, loaded.detail)]
