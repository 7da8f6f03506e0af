"""How the learner and its workers find each other: a ``TCPStore`` that the learner opens."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from rl_core.errors import CollectorError

__all__ = ["LOOPBACK", "Whereabouts", "interface", "introduce", "join_store", "open_store", "reachable_name"]

LOOPBACK = "127.0.0.1"
_OPERATION = timedelta(seconds=30)


@dataclass(frozen=True)
class Whereabouts:
    """Where a worker runs."""

    host: str
    pid: int


def open_store(address: str, port: int | None, workers: int) -> tuple[TCPStore, int]:
    """The learner's end, and its port.

    Args:
        address: of the learner; with the loopback address no other machine can connect.
        port: None for a free one.
        workers: how many there will be.

    Raises:
        CollectorError: the port is taken.
    """
    try:
        listener = socket.create_server((LOOPBACK if address == LOOPBACK else "", port or 0))
    except OSError as error:
        raise CollectorError(f"tcp_port={port} cannot be opened ({error}); pass another one, or None") from error
    found: int = listener.getsockname()[1]
    store = TCPStore(address, found, None, True, _OPERATION, wait_for_workers=False, master_listen_fd=listener.detach())
    for rank in range(1, workers + 1):
        store.set(f"beat/{rank}", "0:0")
    store.set("workers", str(workers))
    return store, found


def join_store(address: str, port: int, seconds: float) -> TCPStore:
    """A worker's end; waits for the learner.

    Raises:
        CollectorError: there is none at that address.
    """
    try:
        store = TCPStore(address, port, None, False, timedelta(seconds=seconds), wait_for_workers=False)
        store.set_timeout(_OPERATION)
    except RuntimeError as error:
        raise CollectorError(
            f"no learner answers at {address}:{port} within {seconds:g} s; start it first, with this address and port"
        ) from error
    return store


def introduce(store: Store, rank: int) -> None:
    """Say that the worker of this rank is here.

    Raises:
        CollectorError: there is no such rank, or another worker has it.
    """
    workers = int(store.get("workers"))
    if not 1 <= rank <= workers:
        raise CollectorError(f"rank is {rank}; the learner wants {workers} workers, of ranks 1 to {workers}")
    if store.add(f"claims/{rank}", 1) > 1:
        raise CollectorError(f"another worker has rank {rank} already; give each of the {workers} its own, from 1")
    store.set(f"hello/{rank}", json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))


def interface(address: str, port: int) -> str | None:
    """The address of this machine's interface that leads to another machine; None: torch shall choose."""
    if "GLOO_SOCKET_IFNAME" in os.environ and address != LOOPBACK:
        return None
    found = _outgoing(address, port)
    return found if found is not None else address


def reachable_name() -> str:
    """The address under which other machines reach this one, as far as that can be known."""
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError:
        found = LOOPBACK
    if ipaddress.ip_address(found).is_loopback:  # Debian's /etc/hosts says so of the machine's own name
        return _outgoing("10.255.255.255", 1) or LOOPBACK
    return found


def _outgoing(address: str, port: int) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))  # sends nothing
        except OSError:
            return None
        name: str = probe.getsockname()[0]
    return name
