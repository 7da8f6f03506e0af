"""The line between this process and a worker: one-byte marks for what happens at every step, pickles for the rest.

A mark costs one system call on each side, and the reader blocks in the kernel until it comes. Every request has one
answer, so neither side ever writes while the other one does.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import weakref
from typing import Any

__all__ = [
    "CALL",
    "CLOSE",
    "FAILED",
    "MEMORY",
    "OBJECT",
    "OK",
    "RESET",
    "STEP",
    "Channel",
    "LineClosedError",
    "forget_all",
    "open_pair",
]

STEP, RESET, CALL, CLOSE, MEMORY = b"s", b"r", b"c", b"q", b"m"
OK, OBJECT, FAILED = b"k", b"o", b"e"
_WITH_OBJECT = (CALL, OBJECT, FAILED)

# The ends of this process: a forked worker closes its copies, or nobody would see the end of a line.
_ours: weakref.WeakSet[Channel] = weakref.WeakSet()


class LineClosedError(EOFError):
    """The other side is gone."""


class Channel:
    """One end of a line.

    Args:
        sock: a connected stream socket; owned by the channel.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.fd = sock.fileno()

    def patience(self, seconds: float) -> None:
        """How long a read blocks before it raises BlockingIOError."""
        whole = int(seconds)
        timeval = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)

    def mark(self, mark: bytes) -> None:
        """Send one byte."""
        try:
            os.write(self.fd, mark)
        except OSError as error:
            raise LineClosedError(str(error)) from error

    def send(self, mark: bytes, value: Any) -> None:
        """Send a mark and an object."""
        content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        try:
            self.socket.sendall(mark + struct.pack("<Q", len(content)) + content)
        except OSError as error:
            raise LineClosedError(str(error)) from error

    def read_mark(self) -> bytes:
        """The next byte.

        Raises:
            BlockingIOError: none came in time.
            LineClosedError: the other side is gone.
        """
        try:
            mark = os.read(self.fd, 1)
        except BlockingIOError:
            raise
        except OSError as error:
            raise LineClosedError(str(error)) from error
        if not mark:
            raise LineClosedError("end of the line")
        return mark

    def read_object(self) -> Any:
        """The object behind a mark that has one."""
        (length,) = struct.unpack("<Q", self._exactly(8))
        return pickle.loads(self._exactly(length))

    def receive(self) -> tuple[bytes, Any]:
        """The next mark, with its object where it has one."""
        mark = self.read_mark()
        return mark, self.read_object() if mark in _WITH_OBJECT else None

    def _exactly(self, count: int) -> bytearray:
        content = bytearray(count)
        view, got = memoryview(content), 0
        while got < count:
            try:
                taken = self.socket.recv_into(view[got:])
            except BlockingIOError:
                continue  # the other side is in the middle of a message: it will go on, or its end will be seen
            except OSError as error:
                raise LineClosedError(str(error)) from error
            if not taken:
                raise LineClosedError("end of the line")
            got += taken
        return content

    def send_file(self, fd: int) -> None:
        """Send an open file."""
        try:
            socket.send_fds(self.socket, [MEMORY], [fd])
        except OSError as error:
            raise LineClosedError(str(error)) from error

    def receive_file(self) -> int:
        """The open file that :meth:`send_file` sent."""
        mark, fds, _, _ = socket.recv_fds(self.socket, 1, 1)
        if mark != MEMORY or not fds:
            raise LineClosedError("a file was announced and did not come")
        return fds[0]

    def close(self) -> None:
        """Hang up; harmless when repeated."""
        self.socket.close()
        self.fd = -1  # the number may soon be another file's


def open_pair() -> tuple[Channel, socket.socket]:
    """A line: the end of this process, and the other one's socket."""
    mine, theirs = socket.socketpair()
    channel = Channel(mine)
    _ours.add(channel)
    return channel, theirs


def forget_all() -> None:
    """Close every end of the process that this one was forked from."""
    for channel in list(_ours):
        channel.close()
