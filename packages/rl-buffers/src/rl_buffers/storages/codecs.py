"""How CompressedListStorage makes bytes smaller: zlib, which is always there, or zstd, which is an extra."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import NamedTuple

from rl_core.errors import ReplayBufferError

__all__ = ["Codec", "codec"]


class Codec(NamedTuple):
    """A pair of functions of bytes that undo each other, and their name in saved states."""

    name: str
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes], bytes]


def codec(name: str, level: int | None) -> Codec:
    """A codec by its name, "zlib" or "zstd".

    Args:
        name: which one.
        level: how hard it tries; default: 1 for zlib, 3 for zstd, quick in both cases.

    Raises:
        ReplayBufferError: the name is unknown, or the library is not installed.

    >>> fast = codec("zlib", None)
    >>> fast.decompress(fast.compress(b"aaaa"))
    b'aaaa'
    """
    if name == "zlib":
        strength = 1 if level is None else level
        return Codec(name, lambda data: zlib.compress(data, strength), zlib.decompress)
    if name != "zstd":
        raise ReplayBufferError(f"the codec {name!r} is not known: use 'zlib', 'zstd', or give the two functions")
    try:
        module = importlib.import_module("rl_buffers.storages.zstd")
    except ImportError as error:
        raise ReplayBufferError(
            "the codec 'zstd' needs the library zstandard: pip install 'rl-buffers[zstd]', or use 'zlib'"
        ) from error
    return Codec(name, module.compressor(3 if level is None else level), module.decompress)
