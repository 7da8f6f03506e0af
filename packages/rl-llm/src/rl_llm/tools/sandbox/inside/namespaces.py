"""Namespaces of one's own: users, files, processes, network, messages and the host's name."""

from __future__ import annotations

import os

from . import NOBODY
from . import kernel as k
from .rooms import build_tree

__all__ = ["enter", "furnish"]


def enter() -> int:
    """Move this process into new namespaces and map its users.

    Where the machine's root runs this, users 0 and ``NOBODY`` are mapped to themselves: the guest is then
    really nobody, and the limit on processes, which root is exempt from, holds for it. Anyone else has
    only the own user, who appears as ``NOBODY``.

    Returns:
        The user of this process inside: 0 or ``NOBODY``.
    """
    flags = k.CLONE_NEWUSER | k.CLONE_NEWNS | k.CLONE_NEWPID | k.CLONE_NEWNET | k.CLONE_NEWIPC | k.CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    if user == 0 and _is_mapped(NOBODY):
        _unshare_as_root(flags)
        inside = 0
    elif user == 0 and _root_outside_is_root():
        raise OSError("this process is the machine's root, but its user namespace has no 'nobody' to become")
    else:
        k.unshare(flags)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{NOBODY} {user} 1")
        _write("/proc/self/gid_map", f"{NOBODY} {group} 1")
        inside = NOBODY
    # No further user namespaces: they would hand capabilities, and with them much of the kernel, to the guest.
    _write("/proc/sys/user/max_user_namespaces", "0")
    return inside


def furnish(read_only: list[str], writable_bytes: int, uid: int) -> None:
    """What process 1 does first: die with the launcher, hide, and build the file tree."""
    k.die_with_parent()
    k.hide_from_tracing()
    k.set_hostname("sandbox")
    build_tree(read_only, writable_bytes, uid)


def _unshare_as_root(flags: int) -> None:
    """Only a process outside may map more than one user: a child forked before does it."""
    me = os.getpid()
    ready_r, ready_w = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(ready_w)
        code = 1
        try:
            if os.read(ready_r, 1):
                for name in ("gid_map", "uid_map"):
                    _write(f"/proc/{me}/{name}", f"0 0 1\n{NOBODY} {NOBODY} 1\n")
                code = 0
        finally:
            os._exit(code)
    os.close(ready_r)
    try:
        k.unshare(flags)
        os.write(ready_w, b"1")
    finally:
        os.close(ready_w)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError("root could not map users into the new user namespace")


def _id_map() -> list[tuple[int, int, int]]:
    with open("/proc/self/uid_map") as file:
        return [(int(inside), int(outside), int(count)) for inside, outside, count in map(str.split, file)]


def _is_mapped(user: int) -> bool:
    return any(inside <= user < inside + count for inside, _, count in _id_map())


def _root_outside_is_root() -> bool:
    return any(inside == 0 and outside == 0 for inside, outside, _ in _id_map())


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
