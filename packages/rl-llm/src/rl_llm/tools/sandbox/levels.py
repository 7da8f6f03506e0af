"""The ladder of isolation: what each level promises, what it needs, and how its first process is started."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Literal

from rl_llm.tools.sandbox.inside import NOBODY

__all__ = ["LADDER", "LEVELS", "Level", "base_interpreter", "launch_command", "promises", "system_paths", "why_not"]

Level = Literal["bubblewrap", "namespaces", "landlock", "unsafe_local"]

LADDER: tuple[Level, ...] = ("bubblewrap", "namespaces", "landlock")
"""What "auto" tries, strongest first. It never comes to "unsafe_local"."""
LEVELS: tuple[Level, ...] = (*LADDER, "unsafe_local")

_HERE = os.path.dirname(os.path.abspath(__file__))
_STUB = "import sys; sys.path.insert(0, {here!r}); from inside.launcher import main; main(sys.argv[1:])"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_OWN_TREE = """\
files      a tree of its own: what is listed below, read-only, and /tmp in memory ({disk} MiB); nothing else exists
network    none, not even the machine's own loopback
processes  sees and signals none but its own; all of them end with the run
user       nobody, without capabilities, new privileges or further user namespaces
calls      tracing, mounting, BPF, io_uring, keyrings and sockets other than UNIX and IP are refused"""
_PROMISES: dict[Level, str] = {
    "bubblewrap": _OWN_TREE,
    "namespaces": _OWN_TREE,
    "landlock": """\
files      reads what is listed below, writes to a temporary folder on the disk; nothing else (but file names and sizes)
network    no sockets
processes  runs among the machine's processes, sees and signals none of them; its own end with the run
user       {user}, without new privileges
calls      tracing, mounting, namespaces, BPF, io_uring and keyrings are refused
NOT kept   the total size of what is written is not limited, each file's is""",
    "unsafe_local": """\
NOT KEPT   reads and writes what this user may, reaches the network, signals this user's processes
kept       limits of time, memory, processes and output; an empty environment; a folder of its own, removed later""",
}


def promises(level: Level, disk_bytes: int, read_only: Sequence[str]) -> str:
    """What a level keeps, in a few lines."""
    user = "nobody" if os.geteuid() == 0 else "this user"
    text = _PROMISES[level].format(disk=disk_bytes >> 20, user=user)
    return text if level == "unsafe_local" else f"{text}\nreadable   {' '.join(read_only)}"


def why_not(level: Level) -> str | None:
    """Why a level is out of the question before anything is tried; None where it may work."""
    root = os.geteuid() == 0
    if level == "bubblewrap":
        if shutil.which("bwrap") is None:
            return "there is no program 'bwrap' on the PATH (Debian and Fedora: package 'bubblewrap')"
        if root:
            return (
                "this process is root: bubblewrap would keep its user, whom the limit on processes does not bind; "
                "'namespaces' becomes nobody"
            )
    if level == "unsafe_local" and root:
        return (
            "this process is root: the code could do anything to this machine; run as another user, or use a container"
        )
    return None


def base_interpreter() -> str:
    """The interpreter below any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def system_paths(python: str) -> list[str]:
    """What an interpreter and the usual programs need to see."""
    prefixes = [sys.base_prefix, sys.base_exec_prefix] if python == base_interpreter() else []
    prefixes.append(os.path.dirname(os.path.dirname(python)))
    mine = [os.path.realpath(path) for path in prefixes]
    return list(dict.fromkeys([*(path for path in _SYSTEM if os.path.lexists(path)), *mine]))


def launch_command(level: Level, read_only: Sequence[str], disk_bytes: int) -> list[str]:
    """The command line of a run's first process, without the descriptors that follow it."""
    launcher = [base_interpreter(), "-I", "-S", "-c", _STUB.format(here=_HERE)]
    if level != "bubblewrap":
        return launcher
    return [*_bubblewrap(read_only, disk_bytes), "--", *launcher]


def _bubblewrap(read_only: Sequence[str], disk_bytes: int) -> list[str]:
    command = [shutil.which("bwrap") or "bwrap"]
    command += [f"--unshare-{name}" for name in ("user", "pid", "net", "ipc", "uts", "cgroup-try")]
    # Process 1 is then our supervisor: it cannot be killed from inside, and all ends with it.
    command += ["--disable-userns", "--as-pid-1", "--clearenv", "--hostname", "sandbox"]
    command += ["--uid", str(NOBODY), "--gid", str(NOBODY)]
    command += ["--perms", "0700", "--size", str(disk_bytes), "--tmpfs", "/tmp"]
    for path in sorted(_with_launcher(read_only), key=len):
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind", path, path]
    for name in ("ld.so.cache", "alternatives"):
        command += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    # Its /dev is a file system in memory without a limit of its own: read-only, but for shared memory.
    command += ["--dev", "/dev", "--size", str(disk_bytes), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    return [*command, "--proc", "/proc", "--remount-ro", "/", "--chdir", "/"]


def _with_launcher(read_only: Sequence[str]) -> list[str]:
    python = base_interpreter()
    return list(dict.fromkeys([*read_only, *system_paths(python), os.path.join(_HERE, "inside")]))
