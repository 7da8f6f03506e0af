"""A filter of system calls (seccomp): what a guest has no use for, and what would reach around the namespaces.

A deny list, not a proof: it takes tracing, mounting, new namespaces, kernel modules, keyrings, BPF, performance
counters, io_uring, and limits or scheduling of other processes away, and leaves chosen families of sockets. (Sockets
between a virtual machine and its host, for one, belong to no network namespace.)
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

from . import kernel

__all__ = ["refuse_calls"]

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW* flag of clone()

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}
_NEVER = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
}
_ON_ITSELF_ONLY = {  # their first argument names a process; 0 is the caller
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
_CLONE, _CLONE3, _SOCKET = (56, 220), 435, (41, 198)
_X32_CALLS = 0x40000000  # a second numbering of x86_64's calls


def refuse_calls(socket_families: tuple[int, ...] = (1, 2, 10)) -> None:
    """Install the filter for this process and all that it starts; new privileges must have been given up before.

    Args:
        socket_families: address families that ``socket()`` may open (1 UNIX, 2 IPv4, 10 IPv6).

    Raises:
        OSError: the kernel refuses, or this library does not know the machine's numbers.
    """
    machine = os.uname().machine
    if machine not in _AUDIT or sys.byteorder != "little":
        raise OSError(f"the numbers of system calls on {machine} are not known to this library")
    program = _program(machine, socket_families)
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    kernel.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.cast(header, ctypes.c_void_p), what="PR_SET_SECCOMP")


def _program(machine: str, families: tuple[int, ...]) -> bytes:
    column = _COLUMN[machine]
    lines = [_op(_LOAD, _ARCHITECTURE), _op(_EQUAL, _AUDIT[machine], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    if machine == "x86_64":
        lines += [_op(_AT_LEAST, _X32_CALLS, 0, 1), _refuse(errno.ENOSYS)]
    for numbers in _NEVER.values():
        lines += [_op(_EQUAL, numbers[column], 0, 1), _refuse(errno.EPERM)]
    # clone3 hides its flags in memory: the C library then falls back to clone.
    lines += [_op(_EQUAL, _CLONE3, 0, 1), _refuse(errno.ENOSYS)]
    lines += _if_call(_CLONE[column], [_op(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _refuse(errno.EPERM)])
    for numbers in _ON_ITSELF_ONLY.values():
        lines += _if_call(numbers[column], [_op(_EQUAL, 0, 1, 0), _refuse(errno.EPERM)])
    known = [_op(_EQUAL, family, len(families) - i, 0) for i, family in enumerate(families)]
    lines += _if_call(_SOCKET[column], [*known, _refuse(errno.EAFNOSUPPORT)])
    return b"".join([*lines, _op(_RETURN, _ALLOW)])


def _if_call(number: int, on_first_argument: list[bytes]) -> list[bytes]:
    """For one call: look at its first argument; what the given lines do not refuse is allowed."""
    body = [_op(_LOAD, _ARGUMENTS), *on_first_argument, _op(_RETURN, _ALLOW)]
    return [_op(_EQUAL, number, 0, len(body)), *body]


def _refuse(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
