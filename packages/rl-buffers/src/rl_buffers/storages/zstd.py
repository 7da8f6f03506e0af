"""The zstd codec, by the library zstandard."""

from __future__ import annotations

from collections.abc import Callable

import zstandard

__all__ = ["compressor", "decompress"]


def compressor(level: int) -> Callable[[bytes], bytes]:
    """A function that compresses; it makes a compressor per call, since one may not be used by two threads."""

    def compress(data: bytes) -> bytes:
        return bytes(zstandard.ZstdCompressor(level=level).compress(data))

    return compress


def decompress(data: bytes) -> bytes:
    """What was compressed."""
    return bytes(zstandard.ZstdDecompressor().decompress(data))
