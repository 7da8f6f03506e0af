"""Turning a forked process into the guest: files, descriptors, limits, user, confinement, then the program."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from . import NOBODY, kernel, rlimits
from .supervise import report

__all__ = ["become_guest"]


def become_guest(config: dict[str, Any], status_fd: int, drop_user: bool, confine: Callable[[], None]) -> None:
    """Give up everything that the guest shall not have, and execute it.

    Args:
        config: what the library asked for, see ``launcher``.
        status_fd: gets ``started`` at the last moment.
        drop_user: whether to become ``NOBODY``.
        confine: the level's last step before the program: filters of paths and system calls.
    """
    os.setsid()
    os.umask(0o077)
    _place_descriptors(config["stdin_fd"], config["channel_fd"])
    if drop_user:
        os.setgroups([])
        kernel.drop_capability_bounds()
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    os.makedirs(config["work_dir"], exist_ok=True)
    os.chdir(config["work_dir"])
    _write_files(config["files"])
    rlimits.apply(config["limits"])
    kernel.no_new_privileges()
    confine()
    report(status_fd, "started")
    os.execve(config["argv"][0], config["argv"], config["environment"])


def _place_descriptors(stdin_fd: int, channel_fd: int) -> None:
    """Standard input, output, error and a session's channel stay; all other descriptors end with this program."""
    os.dup2(stdin_fd, 0)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2:
            try:
                os.set_inheritable(fd, fd == channel_fd)
            except OSError:
                continue  # the listing's own descriptor, closed by now


def _write_files(files: dict[str, bytes]) -> None:
    for name, content in files.items():
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(content)
