"""Requests from threads of the server's own process: tensors are handed over as they are."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rl_collectors.inference.queueing import RequestQueue
from rl_collectors.inference.requests import Reply, Request, Ticket
from rl_core.errors import CollectorError
from rl_core.keys import Key

__all__ = ["LocalLink"]


class _LocalRequest(Request):
    __slots__ = ("ticket",)

    def __init__(self, sender: tuple[int, int], tensors: Mapping[Key, Tensor], rows: int) -> None:
        super().__init__(sender, tensors, rows)
        self.ticket = Ticket()

    def answer(self, reply: Reply) -> None:
        self.ticket.put(reply)


class LocalLink:
    """The way to a server in this process.

    Args:
        queue: of the server.
        server: kept alive as long as there is a client.
    """

    def __init__(self, queue: RequestQueue, server: Any) -> None:
        self._queue, self._server, self._process = queue, server, os.getpid()

    def submit(self, tensors: dict[Key, Tensor], rows: int) -> Ticket:
        """Hand tensors over."""
        if os.getpid() != self._process:
            raise CollectorError(
                "this client was made for the threads of another process, from which this one was forked; take "
                "server.client(remote=True) for other processes"
            )
        request = _LocalRequest((id(self), threading.get_ident()), tensors, rows)
        self._queue.put(request)
        return request.ticket

    def __reduce__(self) -> Any:
        raise CollectorError(
            "this client serves the threads of its process and cannot be sent to another one; take "
            "server.client(remote=True)"
        )
