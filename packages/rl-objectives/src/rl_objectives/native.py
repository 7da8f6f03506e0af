"""The compiled return scans: found, checked and called here, and nowhere else.

The library is built by ``hatch_build.py`` and bound with ctypes: it needs no particular torch and no particular Python,
and the GIL is free while it runs. Where it is absent, the torch twins of ``functional/`` give the same numbers.
``RL_OBJECTIVES_NATIVE=0`` chooses the twins on purpose, ``RL_OBJECTIVES_NATIVE=1`` makes a missing library an error.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from rl_core.errors import NativeError

__all__ = ["doctor_report", "kernel_for", "library", "native_state", "run", "usable"]

ABI = 2
"""The number that ``rl_objectives_abi()`` of a fitting library returns."""

_SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}
_SWITCH = "RL_OBJECTIVES_NATIVE"


def _file_name() -> str:
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    return f"librl_objectives_native{suffix}"


def _find() -> Path | None:
    """The library of a wheel lies in the package; that of an editable install beside it on the path."""
    places = [Path(__file__).parent / "_native", *(Path(entry) / "rl_objectives.libs" for entry in sys.path)]
    return next((place / _file_name() for place in places if (place / _file_name()).is_file()), None)


class Loaded(NamedTuple):
    """The outcome of looking for the library: it, its state and where it lies or why there is none."""

    library: ctypes.CDLL | None
    state: str
    detail: str


@cache
def _load() -> Loaded:
    if os.environ.get(_SWITCH) == "0":
        return Loaded(None, "off", f"torch twins in use: turned off by {_SWITCH}=0")
    path = _find()
    if path is None:
        cause = f"no {_file_name()} is installed with rl-objectives; it was built without a C++ compiler"
        return Loaded(None, "absent", f"torch twins in use: {cause}")
    try:
        lib = ctypes.CDLL(str(path))
        lib.rl_objectives_abi.restype = ctypes.c_int32
        abi = lib.rl_objectives_abi()
    except (OSError, AttributeError) as error:
        return Loaded(None, "broken", f"torch twins in use: {path} cannot be loaded: {error}")
    if abi != ABI:
        cause = f"{path} has ABI {abi}, this rl-objectives needs {ABI}; install rl-objectives again"
        return Loaded(None, "broken", f"torch twins in use: {cause}")
    for suffix in _SUFFIXES.values():
        _declare(lib, suffix)
    return Loaded(lib, "native", str(path))


def _declare(lib: ctypes.CDLL, suffix: str) -> None:
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    signatures = {
        "rl_linear_recurrence": [pointer] * 2 + [size] * 3 + [pointer],
        "rl_gae": [pointer] * 5 + [size] * 3 + [number] * 2 + [pointer] * 2,
        "rl_td_lambda": [pointer] * 4 + [size] * 3 + [number] * 2 + [pointer],
        "rl_forward_recurrence": [pointer] * 2 + [size] * 3 + [pointer],
        "rl_vtrace": [pointer] * 6 + [size] * 3 + [number] * 3 + [pointer] * 2,
        "rl_n_step": [pointer] * 4 + [size] * 3 + [number] + [pointer],
        "rl_masked_gae": [pointer] * 7 + [size] * 3 + [number] * 2 + [pointer] * 2,
        "rl_masked_gae_per_step": [pointer] * 9 + [size] * 3 + [pointer] * 2,
        "rl_ratio_statistics": [pointer] + [size] * 3 + [pointer],
        "rl_share_outside": [pointer] + [size] * 3 + [number] * 2 + [pointer],
        "rl_explained_variance": [pointer] * 2 + [size] * 3 + [number] + [pointer],
    }
    for name, types in signatures.items():
        function = getattr(lib, f"{name}_{suffix}")
        function.argtypes, function.restype = types, None


def library() -> ctypes.CDLL | None:
    """The loaded library, or None where the torch twins are in use.

    Raises:
        NativeError: ``RL_OBJECTIVES_NATIVE=1`` asks for it and it cannot be used.
    """
    lib, _, detail = _load()
    if lib is None and os.environ.get(_SWITCH) == "1":
        raise NativeError(
            f"{_SWITCH}=1 asks for the compiled kernels, but: {detail}. Install a C++17 compiler (Debian: apt install "
            f"g++) and install rl-objectives again, or unset {_SWITCH} to use the torch twins."
        )
    return lib


def usable(*tensors: Tensor) -> bool:
    """Whether a kernel can stand for the whole computation: :func:`kernel_for`, no gradient asked for, no tracing."""
    if torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return kernel_for(*tensors)


def kernel_for(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: on the CPU, of one float dtype (32 or 64 bits)."""
    first = tensors[0].dtype
    if first not in _SUFFIXES:
        return False
    for tensor in tensors:
        if tensor.dtype != first or not tensor.is_cpu or type(tensor) is not Tensor:
            return False
    return library() is not None


def run(
    name: str,
    inputs: list[Tensor],
    shape: tuple[int, int, int],
    numbers: tuple[float, ...],
    outputs: int,
    result: tuple[int, ...] | None = None,
) -> list[Tensor]:
    """Call one kernel on tensors of one shape, read as [B, T, F].

    Args:
        name: the kernel without its dtype, e.g. ``"rl_gae"``.
        inputs: floats (of one dtype, for which :func:`usable` said yes) and bools; made contiguous here.
        shape: (B, T, F), whose product is each tensor's number of elements.
        numbers: the kernel's scalars.
        outputs: how many tensors it fills.
        result: their shape; None: that of the inputs.

    Returns:
        The filled tensors.
    """
    lib = library()
    if lib is None:
        raise NativeError(f"{name}: {_load().detail}")
    inputs = [tensor.contiguous() for tensor in inputs]
    size = inputs[0].shape if result is None else result
    filled = [torch.empty(size, dtype=inputs[0].dtype) for _ in range(outputs)]
    if inputs[0].numel() == 0:
        return filled if result is None else [tensor.fill_(float("nan")) for tensor in filled]
    count = shape[0] * shape[1] * shape[2]
    for tensor in inputs:
        if tensor.numel() != count:
            raise NativeError(f"{name} reads {count} elements, [B, T, F] = {list(shape)}; got {list(tensor.shape)}")
    function = getattr(lib, f"{name}_{_SUFFIXES[inputs[0].dtype]}")
    function(*[t.data_ptr() for t in inputs], *shape, *numbers, *[t.data_ptr() for t in filled])
    return filled


def native_state() -> str:
    """Which implementation is in use.

    Returns:
        "native" (compiled kernels), or why the torch twins run: "off" (by ``RL_OBJECTIVES_NATIVE=0``), "absent" (no
        library is installed) or "broken" (it cannot be loaded, or has another ABI).

    >>> native_state() in {"native", "off", "absent", "broken"}
    True
    """
    return _load().state


def doctor_report() -> list[tuple[str, str, str]]:
    """What ``rl doctor`` shows of this package: (name, state, detail), one per native library."""
    found = _load()
    return [("rl-objectives return scans", found.state, found.detail)]
