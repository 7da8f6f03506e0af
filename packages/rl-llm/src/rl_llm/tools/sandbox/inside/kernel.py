"""The few calls to the Linux kernel that the standard library lacks, through ctypes; a failed one raises OSError."""

from __future__ import annotations

import ctypes
import os

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_REC",
    "SIGKILL",
    "become_subreaper",
    "die_with_parent",
    "drop_capability_bounds",
    "hide_from_tracing",
    "mount",
    "no_new_privileges",
    "prctl",
    "read_only",
    "set_hostname",
    "swap_root",
    "syscall",
    "unmount",
    "unshare",
]

# Numbers of <sched.h>, <sys/mount.h> and <sys/prctl.h>. The signal module would cost 7 ms of imports for one constant.
SIGKILL = 9
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_RDONLY, _ATTR_NOSUID = 1, 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SYS_MOUNT_SETATTR = 442  # one number on every architecture
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *args: int | bytes | ctypes.c_void_p | None, what: str) -> int:
    """A raw system call."""
    values = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    return _checked(_libc.syscall(ctypes.c_long(number), *values), what)


def prctl(option: int, *args: int | ctypes.c_void_p, what: str) -> int:
    """``prctl`` with its unused arguments zero, as newer options demand."""
    values = [ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in args]
    values += [ctypes.c_ulong(0)] * (4 - len(values))
    return _checked(_libc.prctl(ctypes.c_int(option), *values), what)


def unshare(flags: int) -> None:
    """Move this process (for the process namespace: its next children) into namespaces of its own."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount ``source`` on ``target``."""
    status = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(status, f"mount {kind or 'bind'} of {source} on {target}")


def unmount(target: str) -> None:
    """Take a mount and all below it out of sight at once."""
    _checked(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def read_only(target: str, *, recursive: bool) -> None:
    """Make a mount (and all mounts below it) read-only and without set-user-id programs; Linux 5.12 or newer."""
    attributes = _MountAttributes(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    pointer = ctypes.cast(ctypes.pointer(attributes), ctypes.c_void_p)
    flags = _AT_RECURSIVE if recursive else 0
    what = f"mount_setattr {target} (Linux 5.12 or newer)"
    syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), flags, pointer, ctypes.sizeof(attributes), what=what)


def swap_root(new_root: str, put_old: str) -> None:
    """``pivot_root``: the mount ``new_root`` becomes "/", the former root appears at ``put_old``."""
    machine = os.uname().machine
    if machine not in _SYS_PIVOT_ROOT:
        raise OSError(f"pivot_root: its system call number on {machine} is not known to this library")
    syscall(_SYS_PIVOT_ROOT[machine], new_root.encode(), put_old.encode(), what="pivot_root")


def set_hostname(name: str) -> None:
    """Name the machine, within a namespace of its own."""
    _checked(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    prctl(_PR_SET_PDEATHSIG, SIGKILL, what="PR_SET_PDEATHSIG")


def hide_from_tracing() -> None:
    """Let no process of the same user trace this one or read its memory and descriptors through /proc."""
    prctl(_PR_SET_DUMPABLE, 0, what="PR_SET_DUMPABLE")


def become_subreaper() -> None:
    """Adopt orphaned descendants, so that none is lost."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, what="PR_SET_CHILD_SUBREAPER")


def no_new_privileges() -> None:
    """Give up for good what an executed file could add (set-user-id, file capabilities)."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1, what="PR_SET_NO_NEW_PRIVS")


def drop_capability_bounds() -> None:
    """Empty the bounding set, where this process may."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability, what="PR_CAPBSET_DROP")
        except OSError:
            return  # beyond the last capability (EINVAL), or not permitted (EPERM): then there is none to drop
