"""The executor: code in, a result out, under the strongest isolation that the machine has."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from rl_llm.tools.sandbox.inside import NOBODY
from rl_llm.tools.sandbox.levels import (
    LADDER,
    LEVELS,
    Level,
    base_interpreter,
    launch_command,
    promises,
    system_paths,
    why_not,
)
from rl_llm.tools.sandbox.limits import Limits
from rl_llm.tools.sandbox.result import Result, SandboxError
from rl_llm.tools.sandbox.running import Running, memory_file
from rl_llm.tools.sandbox.session import Session
from rl_llm.tools.sandbox.verdict import judge

__all__ = ["Sandbox"]

_INSIDE = Path(__file__).with_name("inside")
_OPTIONS = ("-I", "-S", "-B", "-X", "utf8", "-c")
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}


class Sandbox:
    """Runs Python code that nobody has read, each time in processes and a folder of its own.

    The program sees the standard library, an empty environment and a private folder. It gets its input
    from ``stdin`` and ``files`` and gives its output by printing. Linux only.

    Args:
        level: "bubblewrap", "namespaces", "landlock"; "auto" for the first of them that works here;
            "unsafe_local" for limits without isolation, which must be named, warns, and refuses root.
        limits: default limits of a run.
        folders: further folders that the program may read and import from (for example a ``site-packages``).
        environment: further environment variables of the program.
        python: another interpreter; its prefix becomes readable.

    Raises:
        SandboxError: nothing safe works here, or the named level does not; the message has each level's reason.

    Where the machine grants a level, this prints 42::

        print(Sandbox().run("print(6 * 7)").stdout)
    """

    def __init__(
        self,
        level: Level | Literal["auto"] = "auto",
        *,
        limits: Limits | None = None,
        folders: Sequence[str | os.PathLike[str]] = (),
        environment: Mapping[str, str] | None = None,
        python: str | None = None,
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise SandboxError(
                f"the sandbox needs Linux, this is {sys.platform}; run there, for example in a container"
            )
        if level not in (*LEVELS, "auto"):
            raise SandboxError(f"level is one of {', '.join(LEVELS)} or 'auto'; got {level!r}")
        self.limits = limits or Limits()
        self._folders = [_existing(folder) for folder in folders]
        self._environment = {**_ENVIRONMENT, **(environment or {})}
        self._python = base_interpreter() if python is None else os.path.realpath(_existing(python))
        self._read_only = list(dict.fromkeys([*system_paths(self._python), *self._folders]))
        self._refused: dict[Level, str] = {}
        self.level: Level = self._first_working(LADDER if level == "auto" else (level,))
        if self.level == "unsafe_local":
            warnings.warn(
                "Sandbox(level='unsafe_local') limits time and memory but isolates nothing: "
                "the code can read your files and use the network",
                stacklevel=2,
            )

    def run(
        self,
        code: str,
        *,
        stdin: str | bytes = "",
        files: Mapping[str, bytes | str] | None = None,
        limits: Limits | None = None,
    ) -> Result:
        """Run a program to its end, or to the first limit.

        Args:
            code: the text of ``main.py``.
            stdin: its standard input.
            files: further files, by paths relative to the working directory.
            limits: instead of the sandbox's own.

        Returns:
            How it ended and what it printed.

        Raises:
            SandboxError: the sandbox could not be set up, or an argument cannot be a file.
        """
        limits = limits or self.limits
        contents = {**_checked_files(files or {}), "main.py": _encoded(code)}
        with self._launched("once.py", contents, limits, limits.cpu_s, stdin=_encoded(stdin)) as running:
            running.start()
            running.wait(limits.wall_s)
        return self._result(running, limits.cpu_s)

    def map(self, codes: Sequence[str], *, workers: int | None = None, limits: Limits | None = None) -> list[Result]:
        """``run`` for many programs, ``workers`` (by default one per core) at a time; the results keep the order."""
        with ThreadPoolExecutor(workers or os.cpu_count() or 1, "sandbox") as pool:
            return list(pool.map(lambda code: self.run(code, limits=limits), codes))

    def session(
        self,
        *,
        files: Mapping[str, bytes | str] | None = None,
        limits: Limits | None = None,
        total_cpu_s: int = 600,
    ) -> Session:
        """An interpreter that keeps its variables from one piece of code to the next; a context manager.

        Args:
            files: files that it starts with.
            limits: ``wall_s`` and ``output_bytes`` hold for each call, the rest for the whole session.
            total_cpu_s: CPU seconds of each process over the whole session, instead of ``limits.cpu_s``.
        """
        limits = limits or self.limits
        contents = _checked_files(files or {})

        def launch(channel: int) -> AbstractContextManager[Running]:
            return self._launched("turns.py", contents, limits, total_cpu_s, channel)

        return Session(launch, limits, self.level, total_cpu_s)

    def explain(self) -> str:
        """Which level is in use and why, and what it keeps; for reports."""
        lines = [f"sandbox level: {self.level}"]
        lines += [f"  not {level}: {reason}" for level, reason in self._refused.items()]
        kept = promises(self.level, self.limits.disk_bytes, self._read_only)
        return "\n".join([*lines, *(f"  {line}" for line in kept.splitlines())])

    def _first_working(self, levels: Sequence[Level]) -> Level:
        for level in levels:
            reason = why_not(level) or self._fails(level)
            if reason is None:
                return level
            self._refused[level] = reason
        reasons = "\n".join(f"  {level}: {reason}" for level, reason in self._refused.items())
        raise SandboxError(
            f"no isolation works here:\n{reasons}\n"
            "Let the container or the kernel grant user namespaces, or name level='unsafe_local' for trusted code."
        )

    def _fails(self, level: Level) -> str | None:
        """Try a level with a program of one line."""
        self.level = level
        try:
            result = self.run("print('ready')")
        except SandboxError as error:
            return str(error)
        if result.stdout == "ready\n":
            return None
        return f"a program of one line ended as {result.status!r}; its errors: {result.stderr[-500:]!r}"

    @contextmanager
    def _launched(
        self,
        guest: str,
        files: dict[str, bytes],
        limits: Limits,
        cpu_s: int,
        channel_fd: int = -1,
        stdin: bytes = b"",
    ) -> Iterator[Running]:
        with ExitStack() as stack:
            work_dir = "/tmp/work" if self.level in ("bubblewrap", "namespaces") else stack.enter_context(_folder())
            stdin_fd = memory_file(stdin)
            stack.callback(os.close, stdin_fd)
            channel = [] if channel_fd < 0 else [str(channel_fd)]
            source = (_INSIDE / guest).read_text(encoding="utf-8")
            config: dict[str, Any] = {
                "level": self.level,
                "argv": [self._python, *_OPTIONS, source, *channel, *self._folders],
                "environment": {"HOME": work_dir, "TMPDIR": work_dir, **self._environment},
                "files": files,
                "work_dir": work_dir,
                "limits": {
                    "cpu_s": cpu_s,
                    "memory_bytes": limits.memory_bytes,
                    "file_bytes": limits.file_bytes,
                    "open_files": limits.open_files,
                    "processes": limits.processes,
                },
                "tree_bytes": limits.memory_bytes,
                "stdin_fd": stdin_fd,
                "channel_fd": channel_fd,
                "read_only": self._read_only,
                "writable_bytes": limits.disk_bytes,
            }
            command = launch_command(self.level, self._read_only, limits.disk_bytes)
            yield stack.enter_context(Running(command, config, limits.output_bytes))

    def _result(self, running: Running, cpu_s: int) -> Result:
        status, exit_code = judge(running.verdict, running.ending, cpu_s)
        ended = running.ended_at or time.monotonic()
        return Result(
            status=status,
            stdout=running.text("stdout"),
            stderr=running.text("stderr"),
            exit_code=exit_code,
            wall_s=ended - (running.started_at or ended),
            cpu_s=running.ending.cpu_s if running.ending else 0.0,
            level=self.level,
        )


def _existing(path: str | os.PathLike[str]) -> str:
    absolute = os.path.abspath(path)
    if not os.path.exists(absolute):
        raise SandboxError(f"there is no {absolute} to show to the sandbox")
    return absolute


def _encoded(text: str | bytes) -> bytes:
    # A model's text may hold lone surrogates; Python reports them as an error of the program's encoding.
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _checked_files(files: Mapping[str, bytes | str]) -> dict[str, bytes]:
    for name in files:
        parts = name.split("/")
        if not name or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise SandboxError(f"files are named by plain relative paths such as 'data/in.txt'; got {name!r}")
    return {name: _encoded(content) for name, content in files.items()}


@contextmanager
def _folder() -> Iterator[str]:
    """A private folder on the disk, removed whatever its owner did to it."""
    path = tempfile.mkdtemp(prefix="rl-sandbox-")
    try:
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        yield path
    finally:
        for parent, names, _ in os.walk(path):
            for name in names:
                inner = os.path.join(parent, name)
                if not os.path.islink(inner):
                    os.chmod(inner, 0o700)
        shutil.rmtree(path)
