"""A disposable process that calls functions: a call that takes too long is ended by ending the process."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from rl_core.errors import RLError, SpecError

__all__ = ["Answer", "FunctionReference", "Worker", "WorkerError", "serve"]

_START_S = 120.0  # the imports of the function's module
_COMMAND = "import sys; sys.path[:] = {path!r}; from rl_llm.tools.worker import serve; serve()"


class WorkerError(RLError, RuntimeError):
    """A worker process that cannot be started or cannot import its function."""


@dataclass(frozen=True)
class FunctionReference:
    """Where another process finds a function."""

    module: str
    name: str
    file: str | None

    @classmethod
    def to(cls, function: Callable[..., Any]) -> FunctionReference:
        """The reference to a function of a module.

        Raises:
            SpecError: a lambda, a method of an object or a function within a function.
        """
        module = getattr(function, "__module__", None)
        name = getattr(function, "__qualname__", None)
        if module is None or name is None or "<" in name or _found(sys.modules.get(module), name) is not function:
            raise SpecError(
                f"a worker process cannot find {function!r}: it calls functions that stand at the top of a module. "
                "Move it there, or pass trusted=True to call it in this process, without a timeout"
            )
        return cls(module, name, getattr(sys.modules[module], "__file__", None))

    def resolve(self) -> Callable[..., Any]:
        """Import the function."""
        module = None
        if self.module != "__main__":
            try:
                module = importlib.import_module(self.module)
            except ModuleNotFoundError as error:
                if self.file is None or not f"{self.module}.".startswith(f"{error.name}."):
                    raise
        if module is None:
            if self.file is None:
                raise WorkerError(f"{self.name} stands in an interactive session; move it to a module")
            # A script, or a module that was loaded by its path. As usual, what a script guards by its name is not run.
            spec = importlib.util.spec_from_file_location("__rl_tool__", self.file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["__rl_tool__"] = module
            spec.loader.exec_module(module)
        function = _found(module, self.name)
        if not callable(function):
            raise WorkerError(f"module {self.module} has no function {self.name}")
        return function


@dataclass(frozen=True)
class Answer:
    """What a call gave: a text, or an error."""

    ok: bool
    text: str
    timed_out: bool = False


class Worker:
    """One process, started at the first call and again after each one that had to be ended. Calls are serial.

    Args:
        function: what it calls.
        most_calls: after so many calls a new process takes over; None for never.
    """

    def __init__(self, function: FunctionReference, most_calls: int | None = None) -> None:
        self._function = function
        self._most_calls = most_calls
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., Worker] | None = None
        self._calls = 0

    def call(self, arguments: dict[str, Any], timeout_s: float, most_chars: int) -> Answer:
        """Call the function.

        Args:
            arguments: keyword arguments, made of JSON's types.
            timeout_s: seconds for the function itself, after its module is imported.
            most_chars: a longer result is cut by the worker.

        Raises:
            WorkerError: the worker cannot start.
        """
        with self._lock:
            if self._process is None or self._calls == self._most_calls or self._has_ended():
                self._replace()
            self._calls += 1
            process = self._process
            assert process is not None and process.stdin is not None
            deadline = time.monotonic() + timeout_s
            with contextlib.suppress(BrokenPipeError):  # it has ended; there will be no answer
                _send(process.stdin, {"arguments": arguments, "most_chars": most_chars})
            answer = self._receive(deadline)
            if isinstance(answer, dict):
                return Answer(ok=answer["ok"], text=answer["text"])
            self._end()
            if answer == "timeout":
                return Answer(ok=False, text=f"no result after {timeout_s:g} s", timed_out=True)
            return Answer(ok=False, text="the tool's process ended without a result")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _replace(self) -> None:
        self._end()
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(path=[os.path.abspath(folder) for folder in sys.path])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin is not None
        self._process, self._calls = process, 0
        self._finalizer = weakref.finalize(self, _kill, process)
        _send(process.stdin, asdict(self._function))
        ready = self._receive(time.monotonic() + _START_S)
        if not isinstance(ready, dict) or not ready["ok"]:
            self._end()
            reason = ready["text"] if isinstance(ready, dict) else f"no sign of life ({ready})"
            raise WorkerError(f"the worker of {self._function.module}.{self._function.name} did not start: {reason}")

    def _receive(self, deadline: float) -> dict[str, Any] | str:
        """A message, "timeout", or "ended"."""
        assert self._process is not None and self._process.stdout is not None
        fd = self._process.stdout.fileno()
        data = b""
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return "timeout"
                part = os.read(fd, 1 << 16)
                if not part:
                    return "ended"
                data += part
        message: dict[str, Any] = json.loads(data[4:])
        return message

    def _has_ended(self) -> bool:
        """Whether it died between two calls: then its output is at its end. Not reaped here, see ``_kill``."""
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout.fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))

    def _end(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._process, self._finalizer = None, None


def serve() -> None:
    """The worker's side: import the function, then call it for each request on standard input."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what a tool prints is no answer
    first = _read(requests)
    assert first is not None
    try:
        function = FunctionReference(**first).resolve()
    except BaseException as error:
        _send(answers, {"ok": False, "text": f"{type(error).__name__}: {error}"})
        return
    _send(answers, {"ok": True, "text": ""})
    while (request := _read(requests)) is not None:
        _send(answers, _called(function, request["arguments"], request["most_chars"]))


def result_text(value: Any) -> str:
    """A tool's result as the model reads it: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _called(function: Callable[..., Any], arguments: dict[str, Any], most_chars: int) -> dict[str, Any]:
    try:
        text = result_text(function(**arguments))
    except (Exception, SystemExit) as error:
        return {"ok": False, "text": f"{type(error).__name__}: {error}"[:most_chars]}
    return {"ok": True, "text": text[: most_chars + 1]}  # one more, to show that it was cut


def _found(module: object, name: str) -> object:
    value = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _send(stream: Any, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode("ascii")
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    message: dict[str, Any] = json.loads(stream.read(int.from_bytes(head, "big")))
    return message


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker with everything in its group; it is not reaped before, so that the group is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()
    process.wait()
