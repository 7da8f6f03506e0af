"""A worker of a ``DistributedCollector``: ``python -m rl_collectors.distributed --address host:port --rank k``."""

from __future__ import annotations

import argparse

from rl_collectors.distributed.launch import run_worker

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Read the command line and work."""
    parser = argparse.ArgumentParser(prog="python -m rl_collectors.distributed", description=__doc__)
    parser.add_argument("--address", required=True, metavar="HOST:PORT", help="of the learner")
    parser.add_argument("--rank", required=True, type=int, help="of this worker, from 1")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds to wait for the learner")
    parser.add_argument("--interface", default="", help="address of the network interface to use here")
    given = parser.parse_args(arguments)
    host, separator, port = given.address.rpartition(":")
    if not separator or not port.isdigit():
        parser.error(f"--address is {given.address!r}, not HOST:PORT")
    run_worker(host, int(port), given.rank, given.timeout, given.interface)


if __name__ == "__main__":
    main()
