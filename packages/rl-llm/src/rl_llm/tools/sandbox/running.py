"""One process tree in the sandbox, from the library's side: its pipes, its clock and its end."""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rl_llm.tools.sandbox.result import SandboxError, Status

__all__ = ["Ending", "Running", "memory_file"]

_SETUP_S = 60.0  # for a machine under heavy load; the program's own clock starts later
_GRACE_S = 0.5  # for what is still in the pipes once the program has ended
_KILL_S = 5.0
_CHUNK = 65536


@dataclass
class Ending:
    """What the supervisor reported; ``wait_status`` is None where it could not."""

    wait_status: int | None = None
    cpu_s: float = 0.0
    oom: bool = False


@dataclass
class Running:
    """A launched guest. A context manager: leaving it kills whatever is left, and reaps it.

    Args:
        command: the launcher's command line; three descriptors (configuration, report, lifeline) are appended.
        config: the launcher's configuration; its descriptors (``stdin_fd``, ``channel_fd``) are passed on.
        output_bytes: how much of each stream is kept.
        ending: the supervisor's report, once it came.
        verdict: why this side ended the run, if it did.
        started_at: when the program began, by ``time.monotonic``.
        ended_at: when it ended.
        captured: the streams' bytes so far.
    """

    command: Sequence[str]
    config: dict[str, Any]
    output_bytes: int
    ending: Ending | None = None
    verdict: Status | None = None
    started_at: float | None = None
    ended_at: float | None = None
    captured: dict[str, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})

    def __post_init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._report = b""
        passed = [fd for fd in (self.config["stdin_fd"], self.config["channel_fd"]) if fd >= 0]
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            config_fd = memory_file(marshal.dumps(self.config))
            theirs.callback(os.close, config_fd)
            status_r, status_w = os.pipe()
            theirs.callback(os.close, status_w)
            ours.callback(os.close, status_r)
            lifeline_r, lifeline_w = os.pipe()
            theirs.callback(os.close, lifeline_r)
            ours.callback(os.close, lifeline_w)
            fds = (config_fd, status_w, lifeline_r)
            self._process = subprocess.Popen(
                [*self.command, *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=(*fds, *passed),
                start_new_session=True,
            )
            ours.pop_all()
        self._lifeline: int | None = lifeline_w
        assert self._process.stdout is not None and self._process.stderr is not None
        self._pidfd = os.pidfd_open(self._process.pid)
        self._status = os.fdopen(status_r, "rb", buffering=0)
        for stream, name in ((self._process.stdout, "stdout"), (self._process.stderr, "stderr")):
            self._watch(stream.fileno(), name)
        self._watch(status_r, "status")
        self._selector.register(self._pidfd, selectors.EVENT_READ, "exit")

    def _watch(self, fd: int, name: str) -> None:
        os.set_blocking(fd, False)
        self._selector.register(fd, selectors.EVENT_READ, name)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def watch_channel(self, fd: int) -> None:
        """Let ``step`` return the name "channel" when a session's channel has something to read."""
        self._selector.register(fd, selectors.EVENT_READ, "channel")

    def unwatch_channel(self, fd: int) -> None:
        """The channel has nothing more to say."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def start(self) -> None:
        """Wait until the program runs.

        Raises:
            SandboxError: the sandbox could not be set up; the reason is the kernel's.
        """
        deadline = time.monotonic() + _SETUP_S
        while self.started_at is None and self.ending is None and not self.verdict:
            if not self.step(deadline):
                raise SandboxError(
                    f"the sandbox was not ready after {_SETUP_S:.0f} s; its errors: {self.text('stderr')!r}"
                )

    def wait(self, wall_s: float) -> None:
        """Read output until the program has ended, or its time or its output has."""
        assert self.started_at is not None
        deadline = self.started_at + wall_s
        while self.ending is None and not self.verdict:
            if not self.step(deadline):
                self.verdict = "timeout"
        self.finish()

    def finish(self) -> None:
        """End what still runs, take what is in the pipes, reap."""
        grace = _GRACE_S if self.ending is not None and not self.verdict else _KILL_S
        if self.verdict:
            self._let_go()
        deadline = time.monotonic() + grace
        while self._selector.get_map() and self.step(deadline):
            pass
        self.close()
        if self.ending is None:
            self.ending = Ending()

    def step(self, deadline: float) -> set[str]:
        """Serve what is ready; an empty set means that the deadline has passed."""
        left = deadline - time.monotonic()
        if left <= 0:
            return set()
        seen = set()
        for key, _ in self._selector.select(left):
            seen.add(key.data)
            if key.data == "exit":
                self._selector.unregister(key.fd)
                self._read_report(key_fd=self._status.fileno())
                if self.ending is None:
                    self.ending = Ending()
            elif key.data == "status":
                if not self._read_report(key.fd):
                    self._selector.unregister(key.fd)
            elif key.data != "channel":
                self._read_output(key.fd, key.data)
        return seen or ({"tick"} if deadline > time.monotonic() else set())

    def drain(self) -> None:
        """Take what the streams hold now."""
        for key in list(self._selector.get_map().values()):
            if key.data in self.captured:
                while self._read_output(key.fd, key.data) and not self.verdict:
                    pass

    def _read_output(self, fd: int, name: str) -> bool:
        kept = self.captured[name]
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(fd)
            return False
        room = self.output_bytes - len(kept)
        kept += data[:room]
        if len(data) > room and not self.verdict:
            self.verdict = "output_truncated"
        return True

    def _read_report(self, key_fd: int) -> bool:
        try:
            data = os.read(key_fd, _CHUNK)
        except BlockingIOError:
            return True
        self._report += data
        *lines, self._report = self._report.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "started":
                self.started_at = time.monotonic()
            elif word == "ended" and self.ending is None:
                status, cpu_s, oom = rest.split()
                self.ended_at = time.monotonic()
                self.ending = Ending(int(status), float(cpu_s), oom == "1")
            elif word == "failed":
                raise SandboxError(rest)
        return bool(data)

    def text(self, name: str) -> str:
        """What a stream has given so far."""
        return self.captured[name].decode("utf-8", "replace")

    def _let_go(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def close(self) -> None:
        """Kill and reap whatever is left, and close every descriptor."""
        if self._status.closed:
            return
        self._let_go()
        try:
            self._await_exit()
            # The leader is not reaped yet, so that its group's number cannot be another's by now.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        finally:
            self._selector.close()
            os.close(self._pidfd)
            self._status.close()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()

    def _await_exit(self) -> None:
        """The supervisor ends by itself, and takes the tree along, once its lifeline is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._pidfd, selectors.EVENT_READ)
            selector.select(_KILL_S)


def memory_file(content: bytes) -> int:
    """A descriptor from which ``content`` can be read, and nothing be written to."""
    fd = os.memfd_create("rl-sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd
