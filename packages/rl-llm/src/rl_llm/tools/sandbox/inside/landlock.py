"""Landlock: a process gives up paths, TCP ports and signals to strangers, where namespaces are forbidden."""

from __future__ import annotations

import ctypes
import os
import struct

from . import kernel

__all__ = ["LEAST_VERSION", "confine_paths", "version"]

LEAST_VERSION = 6  # Linux 6.12: the first that keeps signals inside
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_ALL_PATH_RIGHTS = (1 << 16) - 1
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
_ALL_TCP_RIGHTS, _ABSTRACT_SOCKETS_AND_SIGNALS = 3, 3
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def version() -> int:
    """Landlock's version, 0 where the kernel has none or does not enable it."""
    try:
        return kernel.syscall(_CREATE, None, 0, _ASK_VERSION, what="landlock")
    except OSError:
        return 0


def confine_paths(read_only: list[str], writable: list[str]) -> None:
    """Leave this process (and all that it starts) the given paths and no TCP.

    Args:
        read_only: paths that may be read and executed, with all below them.
        writable: folders in which everything is allowed.

    Raises:
        OSError: the kernel's Landlock is too old.
    """
    found = version()
    if found < LEAST_VERSION:
        raise OSError(f"Landlock version {LEAST_VERSION} is needed (Linux 6.12 or newer), the kernel has {found}")
    attributes = struct.pack("QQQ", _ALL_PATH_RIGHTS, _ALL_TCP_RIGHTS, _ABSTRACT_SOCKETS_AND_SIGNALS)
    rules = kernel.syscall(_CREATE, attributes, len(attributes), 0, what="landlock_create_ruleset")
    for path in read_only:
        _allow(rules, path, _EXECUTE | _READ_FILE | _READ_DIR)
    for path in _DEVICES:
        _allow(rules, path, _READ_FILE | _WRITE_FILE)
    for path in writable:
        _allow(rules, path, _ALL_PATH_RIGHTS)
    kernel.syscall(_RESTRICT, rules, 0, what="landlock_restrict_self")
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    fd = os.open(path, os.O_PATH)
    try:
        if not os.path.isdir(path):
            rights &= _FILE_RIGHTS
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, fd))
        pointer = ctypes.cast(rule, ctypes.c_void_p)
        kernel.syscall(_ADD_RULE, rules, _PATH_BENEATH, pointer, 0, what=f"landlock_add_rule {path}")
    finally:
        os.close(fd)
