"""The private file tree of a run: read-only binds of what an interpreter needs, the rest in memory."""

from __future__ import annotations

import os

from . import kernel as k

__all__ = ["build_tree"]

_BEFORE = "/before"  # where the former root stands while the new one is furnished
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def build_tree(read_only: list[str], writable_bytes: int, uid: int) -> None:
    """Leave the machine's file tree for a new one, within a mount namespace of one's own.

    ``/`` is an empty file system in memory that ends read-only; ``/tmp`` is the only writable place, and holds the
    working directory. The caller is process 1 of a process namespace, so that ``/proc`` shows no other process.

    Args:
        read_only: paths of the machine that stay visible, read-only.
        writable_bytes: size of ``/tmp`` [bytes].
        uid: who owns ``/tmp``, in the user namespace.
    """
    k.mount("none", "/", "", k.MS_REC | k.MS_PRIVATE)
    k.mount("tmpfs", "/tmp", "tmpfs", k.MS_NOSUID | k.MS_NODEV, "mode=0755,size=1m")
    os.mkdir("/tmp" + _BEFORE)
    k.swap_root("/tmp", "/tmp" + _BEFORE)
    os.chdir("/")
    os.mkdir("/tmp")  # before the binds: an interpreter may lie below it
    k.mount("tmpfs", "/tmp", "tmpfs", k.MS_NOSUID | k.MS_NODEV, f"mode=0700,uid={uid},gid={uid},size={writable_bytes}")
    for path in sorted(read_only, key=len):
        _show(path)
    _devices()
    _etc(uid)
    os.mkdir("/proc")
    k.mount("proc", "/proc", "proc", k.MS_NOSUID | k.MS_NODEV | k.MS_NOEXEC, "subset=pid")  # no /proc/sys
    k.unmount(_BEFORE)
    os.rmdir(_BEFORE)
    k.read_only("/", recursive=False)


def _show(path: str) -> None:
    """Bind one path of the machine, or repeat the link that it is (``/lib`` of today's systems)."""
    source = _BEFORE + path
    if os.path.lexists(path):
        return  # below a path that is shown already
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), path)
        return
    if not os.path.exists(source):
        return
    if os.path.isdir(source):
        os.mkdir(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
    k.mount(source, path, "", k.MS_BIND | k.MS_REC)
    k.read_only(path, recursive=True)


def _devices() -> None:
    os.mkdir("/dev")
    for name in _DEVICES:
        target = f"/dev/{name}"
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o666))
        k.mount(_BEFORE + target, target, "", k.MS_BIND)
    for name, aim in _LINKS.items():
        os.symlink(aim, f"/dev/{name}")
    os.symlink("/tmp", "/dev/shm")  # shared memory counts against the same bytes as files


def _etc(uid: int) -> None:
    """The least of ``/etc``: who one is, and where shared libraries lie."""
    os.mkdir("/etc")
    _write("/etc/passwd", f"nobody:x:{uid}:{uid}:nobody:/tmp/work:/bin/sh\n")
    _write("/etc/group", f"nobody:x:{uid}:\n")
    for name in ("ld.so.cache", "alternatives"):
        _show(f"/etc/{name}")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
