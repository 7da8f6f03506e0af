"""``Link``: messages and tensors between the learner and one worker, over a gloo group of these two.

The group is not torch's default one and is registered nowhere, so a learner's own data-parallel groups are left alone.
A group of two for each worker: workers need not reach each other, and one that dies takes no other down.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]

from rl_core.errors import CollectorError

__all__ = ["Link", "LinkLostError"]

_FRAME = 2048  # a message up to this size is one transfer
_HEAD = 8
_FOR_EVER = timedelta(days=3650)
_CLOSING_TAG = 1


class LinkLostError(CollectorError):
    """The other end is gone, or took nothing for too long."""


class Link:
    """Both ends make one at the same time.

    Args:
        store: where they find each other.
        rank: of the worker, from 1.
        place: 0 for the learner's end, 1 for the worker's.
        host: name or number of this end's network interface; None: torch's choice (``GLOO_SOCKET_IFNAME``).
        seconds: for the other end to appear, and for it to take what is sent.

    Raises:
        LinkLostError: the other end did not appear.
    """

    def __init__(self, store: Store, rank: int, place: int, host: str | None, seconds: float) -> None:
        self.seconds = seconds
        self.sending = threading.Lock()
        self._other = 1 - place
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=host) if host else gloo.create_default_device()]
        options._timeout = timedelta(seconds=seconds)
        self._out, self._in = bytearray(_FRAME), bytearray(_FRAME)
        self._frame_out, self._frame_in = _flat(self._out), _flat(self._in)
        try:
            self._group: Any = gloo(PrefixStore(f"link/{rank}", store), place, 2, options)
        except RuntimeError as error:
            raise LinkLostError(_first_line(error)) from error

    # ---------------------------------------------------------------- any thread
    def send(self, message: bytes, parts: Sequence[Tensor] = ()) -> None:
        """Send a message and what it announces; returns when the system has taken all of it.

        Args:
            message: bytes.
            parts: flat uint8 tensors in CPU memory, whose sizes the receiver learns from the message.

        Raises:
            LinkLostError: the other end is gone, or does not read.
        """
        with self.sending:
            self._send(message, parts)

    def try_send(self, message: bytes, seconds: float) -> bool:
        """Send a message within so many seconds, if it can be had; says whether it could."""
        if not self.sending.acquire(timeout=seconds):
            return False
        before, self.seconds = self.seconds, seconds
        try:
            self._send(message, ())
        except LinkLostError:
            return False
        finally:
            self.seconds = before
            self.sending.release()
        return True

    def _send(self, message: bytes, parts: Sequence[Tensor]) -> None:
        head = message[: _FRAME - _HEAD]
        struct.pack_into("<q", self._out, 0, len(message))
        self._out[_HEAD : _HEAD + len(head)] = head
        self._put(self._frame_out)
        if len(message) > len(head):
            self._put(_flat(bytearray(message[len(head) :])))
        for part in parts:
            self._put(part)

    def _put(self, tensor: Tensor) -> None:
        try:
            self._group.send([tensor], self._other, 0).wait(timedelta(seconds=self.seconds))
        except RuntimeError as error:
            raise LinkLostError(_first_line(error)) from error

    # ---------------------------------------------------------------- one thread
    def receive(self) -> bytes:
        """The next message, however long it takes.

        Raises:
            LinkLostError: the other end is gone.
        """
        self.receive_into(self._frame_in)
        (size,) = struct.unpack_from("<q", self._in)
        message = bytes(self._in[_HEAD : _HEAD + size])
        if size > len(message):
            rest = bytearray(size - len(message))
            self.receive_into(_flat(rest))
            message += rest
        return message

    def receive_into(self, tensor: Tensor) -> None:
        """Fill a flat uint8 tensor with what the last message announced."""
        try:
            self._group.recv([tensor], self._other, 0).wait(_FOR_EVER)
        except RuntimeError as error:
            raise LinkLostError(_first_line(error)) from error

    # ---------------------------------------------------------------- the end
    def close(self) -> None:
        """Cut the connection; a thread that receives at either end gets a ``LinkLostError``."""
        try:  # gloo cuts it when a receiver gives up, and in no other way
            self._group.recv([torch.empty(1, dtype=torch.uint8)], self._other, _CLOSING_TAG).wait(
                timedelta(milliseconds=1)
            )
        except RuntimeError:
            return


def _flat(memory: bytearray) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text.partition("] ")[2] or text  # gloo begins with the place in its sources
