"""The messages between a client in another process and its server: a few bytes each, tensors lie in shared memory."""

from __future__ import annotations

import os
import socket
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection

from rl_collectors.process.memory import SharedMemory

__all__ = ["ANSWER", "ENDED", "FAILURE", "REQUEST", "Address", "Message", "read_message", "send_message"]

REQUEST, ANSWER, FAILURE, ENDED = range(4)

_HEAD = struct.Struct("<Bxxxiqd")


@dataclass(frozen=True)
class Address:
    """Where a server listens.

    Attributes:
        path: of its socket; with a leading zero byte it is a name outside of the file system.
        token: what a client must know.
        process: the server's process.
    """

    path: str
    token: bytes
    process: int


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: REQUEST, ANSWER, FAILURE or ENDED.
        slot: the pair of regions it is about; -1: none.
        number: rows of a request, version of an answer.
        since: when the request was made.
        note: what the reader of a region must hear first, or the text of what went wrong.
    """

    kind: int
    slot: int = -1
    number: int = 0
    since: float = 0.0
    note: bytes = b""


def send_message(pipe: Connection, message: Message, memory: SharedMemory | None = None) -> None:
    """Send a message, and the handle of new memory after it."""
    pipe.send_bytes(_HEAD.pack(message.kind, message.slot, message.number, message.since) + message.note)
    if memory is not None:
        memory.send(pipe, 0)  # over a socket of Unix the receiver's process number does not matter
        memory.close_handle()


def read_message(pipe: Connection) -> Message:
    """The next message; its memory's handle is still to be taken."""
    raw = pipe.recv_bytes()
    kind, slot, number, since = _HEAD.unpack_from(raw)
    return Message(kind, slot, number, since, raw[_HEAD.size :])


def bounded(pipe: Connection, seconds: float) -> None:
    """Let reads and writes that the other end leaves half done raise after a while."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as held:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            held.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", *divmod(int(seconds * 1e6), 10**6)))


def hang_up(pipe: Connection) -> None:
    """End a connection for both sides; it stays open here until it is closed."""
    try:
        with socket.socket(fileno=os.dup(pipe.fileno())) as held:
            held.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended
