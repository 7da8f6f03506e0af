"""What a client asks of a served policy, and what it gets back."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rl_collectors.process.failure import Failure
from rl_core.errors import CollectorError
from rl_core.keys import Key
from rl_core.policy_state import CarriedState

__all__ = ["PolicyFacts", "Reply", "Request", "Signature", "Ticket", "signature_of"]

Signature = tuple[tuple[Key, torch.dtype, tuple[int, ...], torch.device], ...]
"""Requests of one signature can be joined: key, dtype, shape of a row and device of each tensor."""


def signature_of(tensors: Mapping[Key, Tensor]) -> Signature:
    """The signature of tensors ``[rows, ...]``."""
    return tuple((key, value.dtype, tuple(value.shape[1:]), value.device) for key, value in tensors.items())


@dataclass(frozen=True)
class PolicyFacts:
    """What a client must know about the policy.

    Attributes:
        in_keys: what it reads; None: all that a request holds.
        out_keys: what it writes; None: whatever it likes.
        carried: the state that it carries from step to step, which travels in the requests.
    """

    in_keys: list[Key] | None = None
    out_keys: list[Key] | None = None
    carried: CarriedState = field(default_factory=CarriedState)


@dataclass(frozen=True)
class Reply:
    """What comes back.

    Attributes:
        outputs: key -> ``[rows, ...]``; empty where it went wrong.
        version: of the weights that acted.
        failure: what went wrong in the policy.
        ended: why there will be no answer: the server has ended.
    """

    outputs: Mapping[Key, Tensor] = field(default_factory=dict)
    version: int = 0
    failure: Failure | None = None
    ended: str | None = None

    def check(self) -> None:
        """Raise what went wrong, if anything did.

        Raises:
            CollectorError: with the policy's exception as its cause, where that could be sent.
        """
        if self.ended is not None:
            raise CollectorError(f"the inference server has ended: {self.ended}")
        if self.failure is not None:
            told = CollectorError(
                f"the policy failed in the inference server while {self.failure.phase}: {self.failure.summary}\n\nIts "
                f"traceback there:\n{self.failure.trace}"
            )
            raise told from (None if self.failure.pickled is None else pickle.loads(self.failure.pickled))


class Ticket:
    """Where a thread waits for the reply to one request; a single lock, which sleeps in the system."""

    __slots__ = ("_lock", "reply")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.reply: Reply | None = None

    def put(self, reply: Reply) -> None:
        """Give the reply; only the first one counts."""
        if self.reply is None:
            self.reply = reply
            self._lock.release()

    def wait(self, timeout: float | None = None) -> Reply | None:
        """The reply, or None where none came within so many seconds."""
        if self.reply is None and self._lock.acquire(timeout=-1 if timeout is None else max(timeout, 0.0)):
            self._lock.release()  # for whoever waits, too
        return self.reply


class Request:
    """Rows to act on.

    Args:
        sender: whose; its requests are answered in their order.
        tensors: key -> ``[rows, ...]``.
        rows: how many.
        signature: of the tensors, where it is known.
        since: the time (of ``time.monotonic``) at which the client asked; default: now.
    """

    __slots__ = ("rows", "sender", "signature", "since", "tensors")

    def __init__(
        self,
        sender: Hashable,
        tensors: Mapping[Key, Tensor],
        rows: int,
        signature: Signature | None = None,
        since: float | None = None,
    ) -> None:
        self.sender, self.tensors, self.rows = sender, tensors, rows
        self.signature = signature_of(tensors) if signature is None else signature
        self.since = time.monotonic() if since is None else since

    def answer(self, reply: Reply) -> None:
        """Hand the reply over; each transport has its way."""
        raise NotImplementedError(f"{type(self).__name__} must define answer(self, reply)")
