"""The way from a client to a server in another process of the machine."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from rl_collectors.inference.regions import ReadRegion, WriteRegion
from rl_collectors.inference.requests import Reply
from rl_collectors.inference.wire import ENDED, FAILURE, REQUEST, Address, Message, read_message, send_message
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["RemoteLink"]

MAX_IN_FLIGHT = 64
"""Requests of one thread that may be unanswered; more of them would fill the socket with answers."""


class RemoteLink:
    """Each thread of each process gets a connection of its own, with its first request.

    Args:
        address: of the server.
        timeout: seconds to wait where a thread has so many requests under way that it must wait for answers first.
    """

    def __init__(self, address: Address, timeout: float) -> None:
        self.address, self.timeout = address, timeout
        self._own = threading.local()

    def submit(self, tensors: dict[Key, Tensor], rows: int) -> RemoteTicket:
        """Copy tensors into shared memory, and tell the server."""
        own = self._own
        if getattr(own, "process", None) != os.getpid():  # also after a fork
            own.connection, own.process = _Connection(self.address), os.getpid()
        connection: _Connection = own.connection
        return connection.submit(tensors, rows, self.timeout)

    def __reduce__(self) -> Any:
        return RemoteLink, (self.address, self.timeout)


class RemoteTicket:
    """A reply that is due on a connection; whoever waits for it reads the connection."""

    def __init__(self, connection: _Connection, device: torch.device) -> None:
        self.connection, self.device = connection, device
        self.reply: Reply | None = None

    def wait(self, timeout: float | None = None) -> Reply | None:
        """The reply, or None where none came within so many seconds."""
        if self.reply is None:
            self.connection.read_until(lambda: self.reply is not None, timeout)
        return self.reply


class _Connection:
    """A socket, and pairs of regions in which requests and answers lie."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.ended: str | None = None
        self._lock = threading.Lock()
        self._due: dict[int, RemoteTicket] = {}
        self._free: list[int] = []
        self._requests: list[WriteRegion] = []
        self._answers: list[ReadRegion] = []
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as fresh:
                fresh.connect(address.path)
                self._pipe = Connection(os.dup(fresh.fileno()))
            self._pipe.send_bytes(address.token)
        except OSError as error:
            raise CollectorError(f"the inference server has ended: it was shut down, or {self._gone()}") from error

    def _gone(self) -> str:
        return f"its process {self.address.process} died or was killed; its last words are on stderr"

    def submit(self, tensors: dict[Key, Tensor], rows: int, timeout: float) -> RemoteTicket:
        device = next((value.device for value in tensors.values()), torch.device("cpu"))
        ticket = RemoteTicket(self, device)
        if not self._free and len(self._requests) >= MAX_IN_FLIGHT:
            self.read_until(lambda: bool(self._free), timeout)
            if not self._free and self.ended is None:
                raise CollectorError(
                    f"{MAX_IN_FLIGHT} requests are under way, and the inference server answered none within "
                    f"{timeout:g} s: its policy takes longer than that, or hangs"
                )
        with self._lock:
            if self.ended is None:
                self._send(ticket, tensors, rows)
            if self.ended is not None:
                ticket.reply = Reply(ended=self.ended)
        return ticket

    def _send(self, ticket: RemoteTicket, tensors: dict[Key, Tensor], rows: int) -> None:
        if not self._free:
            self._free.append(len(self._requests))
            self._requests.append(WriteRegion())
            self._answers.append(ReadRegion())
        slot = self._free.pop()
        note, fresh = self._requests[slot].write(tensors)
        self._due[slot] = ticket
        try:
            send_message(self._pipe, Message(REQUEST, slot, rows, time.monotonic(), note), fresh)
        except OSError:
            self._hear_last_words()

    def read_until(self, enough: Any, timeout: float | None) -> None:
        """Read answers until there are enough, at most for so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            return
        try:
            while not enough() and self.ended is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._read(left) and left is not None:
                    return
        finally:
            self._lock.release()

    def _read(self, timeout: float | None) -> bool:
        try:
            if not self._pipe.poll(timeout):
                return False
            message = read_message(self._pipe)
            if message.kind == ENDED:
                self._end(message.note.decode())
            elif message.kind == FAILURE:
                self._put(message.slot, Reply(version=message.number, failure=pickle.loads(message.note)))
            else:
                region = self._answers[message.slot]
                region.hear(message.note, self._pipe)
                device = self._due[message.slot].device
                own = {key: value.to(device, copy=True) for key, value in region.views.items()}
                self._put(message.slot, Reply(own, message.number))
        except (EOFError, OSError):
            self._end(self._gone())
        return True

    def _put(self, slot: int, reply: Reply) -> None:
        self._due.pop(slot).reply = reply
        self._free.append(slot)

    def _hear_last_words(self) -> None:
        """The server takes no more: it may have said why."""
        while self.ended is None:
            if not self._read(0.0):
                self._end(self._gone())

    def _end(self, why: str) -> None:
        self.ended = why
        for ticket in self._due.values():
            ticket.reply = Reply(ended=why)
        self._due.clear()
        self._pipe.close()
