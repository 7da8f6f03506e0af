"""``run_worker``: a worker of a ``DistributedCollector``, started by hand or by a scheduler on its machine."""

from __future__ import annotations

from rl_collectors.distributed.link import Link
from rl_collectors.distributed.node import Node
from rl_collectors.distributed.rendezvous import interface, introduce, join_store

__all__ = ["run_worker"]


def run_worker(address: str, port: int, rank: int, timeout: float = 3600.0, interface_address: str = "") -> None:
    """Work for a learner until it says that it is enough, or is gone.

    What is collected, and how, comes from the learner, as pickled code: connect to learners that you trust.

    Args:
        address: where the learner is.
        port: its ``tcp_port``.
        rank: of this worker, from 1.
        timeout: seconds to wait for the learner.
        interface_address: of the network interface to use here; default: the one that leads to the learner, or the one
            that ``GLOO_SOCKET_IFNAME`` names.

    Raises:
        CollectorError: there is no learner, or it has no place for this rank.
        Exception: what went wrong here, which the learner was told.
    """
    store = join_store(address, port, timeout)
    introduce(store, rank)
    link = Link(store, rank, 1, interface_address or interface(address, port), 120.0)
    Node(rank, store, link).run()
