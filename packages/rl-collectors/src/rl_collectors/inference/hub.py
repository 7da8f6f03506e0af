"""Requests from other processes: a thread of the server that listens to all of their connections."""

from __future__ import annotations

import hmac
import os
import pickle
import secrets
import selectors
import shutil
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from rl_collectors.inference.queueing import RequestQueue
from rl_collectors.inference.regions import ReadRegion, WriteRegion
from rl_collectors.inference.requests import Reply, Request, Signature
from rl_collectors.inference.wire import (
    ANSWER,
    ENDED,
    FAILURE,
    Address,
    Message,
    bounded,
    hang_up,
    read_message,
    send_message,
)
from rl_core.errors import CollectorError

__all__ = ["SocketHub"]

_PATIENCE = 5.0


class _Peer:
    """One connection of a client."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.known = False  # whether it has shown the token
        self._requests: dict[int, ReadRegion] = {}
        self._answers: dict[int, WriteRegion] = {}
        self._lock = threading.Lock()
        self._gone = False

    def request(self, message: Message) -> _RemoteRequest:
        region = self._requests.setdefault(message.slot, ReadRegion())
        region.hear(message.note, self.pipe)
        return _RemoteRequest(self, message, region)

    def answer(self, slot: int, reply: Reply) -> None:
        """From any thread; a client that is gone, or does not read, is let go of."""
        with self._lock:
            if self._gone:
                return
            try:
                if reply.ended is not None:
                    send_message(self.pipe, Message(ENDED, note=reply.ended.encode()))
                elif reply.failure is not None:
                    note = pickle.dumps(reply.failure)
                    send_message(self.pipe, Message(FAILURE, slot, reply.version, note=note))
                else:
                    note, fresh = self._answers.setdefault(slot, WriteRegion()).write(reply.outputs)
                    send_message(self.pipe, Message(ANSWER, slot, reply.version, note=note), fresh)
            except OSError:
                self._gone = True
                hang_up(self.pipe)

    def close(self) -> None:
        with self._lock:
            self._gone = True
            hang_up(self.pipe)  # processes forked from this one may hold it, too
            self.pipe.close()


class _RemoteRequest(Request):
    __slots__ = ("peer", "slot")

    def __init__(self, peer: _Peer, message: Message, region: ReadRegion) -> None:
        signature: Signature = region.signature
        super().__init__(peer, region.views, message.number, signature, message.since)
        self.peer, self.slot = peer, message.slot

    def answer(self, reply: Reply) -> None:
        self.peer.answer(self.slot, reply)


class SocketHub:
    """Takes connections of clients that know the token, and puts their requests into the queue.

    Args:
        queue: of the server.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self._queue = queue
        self._folder: str | None = None
        name = f"rl-inference-{os.getpid()}-{secrets.token_hex(8)}"
        path = f"\0{name}"
        if sys.platform != "linux":  # names outside of the file system are Linux's; a folder is the user's alone, too
            self._folder = tempfile.mkdtemp(prefix="rl-")
            path = os.path.join(self._folder, "socket")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        self._socket.listen(128)
        self.address = Address(path, secrets.token_bytes(32), os.getpid())
        self._wake, self._woken = socket.socketpair()
        self._peers: set[_Peer] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="InferenceServer.hub", daemon=True)
        self._thread.start()

    def stop(self, why: str) -> None:
        """Tell all clients, and close."""
        if self._stopped:
            return
        self._stopped = True
        self._wake.send(b".")
        self._thread.join(_PATIENCE)
        for peer in self._peers:
            peer.answer(-1, Reply(ended=why))
            peer.close()
        self._peers.clear()
        with suppress(OSError):  # refuses clients also where a process forked from this one holds the socket
            self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, self._wake, self._woken, self._selector):
            each.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # ---------------------------------------------------------------- the thread
    def _run(self) -> None:
        try:
            self._listen()
        finally:
            if not self._stopped:
                self._queue.end("the thread that listens to other processes broke; its last words are on stderr")

    def _listen(self) -> None:
        while not self._stopped:
            for key, _ in self._selector.select():
                if key.fileobj is self._woken:
                    return
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data)

    def _accept(self) -> None:
        fresh, _ = self._socket.accept()
        peer = _Peer(Connection(fresh.detach()))
        bounded(peer.pipe, _PATIENCE)
        self._peers.add(peer)
        self._selector.register(peer.pipe.fileno(), selectors.EVENT_READ, peer)

    def _hear(self, peer: _Peer) -> None:
        try:
            if not peer.known:
                peer.known = hmac.compare_digest(peer.pipe.recv_bytes(64), self.address.token)
                if not peer.known:
                    raise CollectorError("this is no client of ours")
                return
            request = peer.request(read_message(peer.pipe))
        except (EOFError, OSError, CollectorError):  # the client is gone; what it asked for is answered to nobody
            self._selector.unregister(peer.pipe.fileno())
            self._peers.discard(peer)
            peer.close()
            return
        self._queue.put(request)
