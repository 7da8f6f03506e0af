"""The first process of a run: from the machine to the guest, level by level.

The library writes one marshalled dict into a memory file and passes its descriptor::

    level        "namespaces", "bubblewrap", "landlock" or "unsafe_local"
    argv         list of str: what to execute        environment   dict of str: all that it sees
    files        dict of str to bytes, below work_dir work_dir      where it starts
    limits       dict of int, see rlimits             tree_bytes    memory of all processes together
    stdin_fd     descriptor of its input              channel_fd    a session's channel, or -1
    read_only    list of paths that stay visible      writable_bytes size of /tmp
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable
from typing import Any, NoReturn

from . import NOBODY
from .call_filter import refuse_calls
from .guest import become_guest
from .kernel import become_subreaper, hide_from_tracing
from .landlock import confine_paths
from .namespaces import enter, furnish
from .supervise import descendants, everyone_else, kill_descendants, report, supervise, tasks_of

__all__ = ["main"]


def main(arguments: list[str]) -> NoReturn:
    """Run what the descriptors name: configuration, report, lifeline."""
    config_fd, status_fd, lifeline_fd = (int(word) for word in arguments)
    try:
        with os.fdopen(config_fd, "rb") as file:
            config = marshal.loads(file.read())
        for fd in (status_fd, lifeline_fd):
            os.set_inheritable(fd, False)
        os.umask(0o022)
        _LEVELS[config["level"]](config, status_fd, lifeline_fd)
    except BaseException as error:
        report(status_fd, f"failed {type(error).__name__}: {error}")
        os._exit(70)
    os._exit(0)


def _namespaces(config: dict[str, Any], status_fd: int, lifeline_fd: int) -> None:
    owner = enter()
    first = os.fork()
    if first:
        for fd in (0, 1, 2, status_fd, lifeline_fd):
            os.close(fd)
        os.waitpid(first, 0)
        return
    drop_user = owner == 0
    furnish(config["read_only"], config["writable_bytes"], NOBODY)

    def guest() -> None:
        become_guest(config, status_fd, drop_user, refuse_calls)

    supervise(guest, status_fd, lifeline_fd, config["tree_bytes"], everyone_else)


def _bubblewrap(config: dict[str, Any], status_fd: int, lifeline_fd: int) -> None:
    hide_from_tracing()

    def guest() -> None:
        become_guest(config, status_fd, False, refuse_calls)

    supervise(guest, status_fd, lifeline_fd, config["tree_bytes"], everyone_else)


def _landlock(config: dict[str, Any], status_fd: int, lifeline_fd: int) -> None:
    def confine() -> None:
        confine_paths(config["read_only"], [config["work_dir"]])
        refuse_calls(socket_families=())

    hide_from_tracing()
    _supervise_without_namespaces(config, status_fd, lifeline_fd, os.geteuid() == 0, confine)


def _unsafe_local(config: dict[str, Any], status_fd: int, lifeline_fd: int) -> None:
    _supervise_without_namespaces(config, status_fd, lifeline_fd, False, lambda: None)


def _supervise_without_namespaces(
    config: dict[str, Any], status_fd: int, lifeline_fd: int, drop_user: bool, confine: Callable[[], None]
) -> None:
    # The kernel counts all of a user's processes here: those that run already are not the guest's.
    config["limits"]["processes"] += tasks_of(NOBODY if drop_user else os.geteuid())
    become_subreaper()

    def guest() -> None:
        become_guest(config, status_fd, drop_user, confine)

    try:
        supervise(guest, status_fd, lifeline_fd, config["tree_bytes"], descendants)
    finally:
        kill_descendants()


_LEVELS = {
    "namespaces": _namespaces,
    "bubblewrap": _bubblewrap,
    "landlock": _landlock,
    "unsafe_local": _unsafe_local,
}
