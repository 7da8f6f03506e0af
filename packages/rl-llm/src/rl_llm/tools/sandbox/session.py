"""An interpreter in the sandbox that keeps its variables between calls."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from types import TracebackType
from typing import Any

from rl_llm.tools.sandbox.limits import Limits
from rl_llm.tools.sandbox.result import Result, SandboxError, Status
from rl_llm.tools.sandbox.running import Running
from rl_llm.tools.sandbox.verdict import judge

__all__ = ["Session"]

_LONGEST_ANSWER = 4096
_OUTCOMES: dict[object, Status] = {"ok": "ok", "error": "error", "oom": "oom"}


class Session:
    """Made by ``Sandbox.session``. One call at a time; a call that passes a limit ends the session.

    Answers come over a descriptor of their own and repeat a random nonce, so printed text is never taken for one.
    Code that goes out of its way to write there can forge its own call's ``ok``, ``error`` and ``cpu_s``, nothing else.

    Args:
        launch: starts the guest on a channel, given as a descriptor.
        limits: of each call.
        level: the sandbox's level.
        cpu_limit_s: CPU seconds over the session's whole life.
    """

    def __init__(
        self, launch: Callable[[int], AbstractContextManager[Running]], limits: Limits, level: str, cpu_limit_s: int
    ) -> None:
        self._launch = launch
        self._limits = limits
        self._level = level
        self._cpu_limit_s = cpu_limit_s
        self._lock = threading.Lock()
        self._ended = "it was closed"
        self._finalizer: weakref.finalize[..., Session] | None = None
        self._start()

    @property
    def alive(self) -> bool:
        """Whether it takes another call."""
        return self._finalizer is not None and self._finalizer.alive

    def run(self, code: str, *, wall_s: float | None = None) -> Result:
        """Run code with the variables of earlier calls.

        Args:
            code: statements; what they print is the result.
            wall_s: seconds for this call, instead of the limits' own.

        Returns:
            How the call ended. After ``timeout``, ``killed`` and ``output_truncated`` the session is over, after
            ``oom`` it may be: see ``alive``.

        Raises:
            SandboxError: the session is over.
        """
        with self._lock:
            if not self.alive:
                raise SandboxError(f"this session is over: {self._ended}; restart() begins anew, without its variables")
            return self._call(code, self._limits.wall_s if wall_s is None else wall_s)

    def restart(self) -> None:
        """End the interpreter and start a new one, with the same files and without the variables."""
        with self._lock:
            self._end("it was closed")
            self._start()

    def close(self) -> None:
        """End the interpreter."""
        with self._lock:
            self._end("it was closed")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        with ExitStack() as stack:
            ours, theirs = socket.socketpair()
            stack.enter_context(ours)
            with theirs:
                running = stack.enter_context(self._launch(theirs.fileno()))
            running.start()
            running.watch_channel(ours.fileno())
            self._running, self._channel, self._buffer, self._calls = running, ours, b"", 0
            self._finalizer = weakref.finalize(self, stack.pop_all().close)

    def _end(self, why: str) -> None:
        if self._finalizer is not None and self._finalizer.alive:
            self._ended = why
            self._finalizer()

    def _call(self, code: str, wall_s: float) -> Result:
        running = self._running
        start = time.monotonic()
        deadline = start + wall_s
        for kept in running.captured.values():
            kept.clear()
        nonce = secrets.token_hex(16)
        self._calls += 1
        request = {"nonce": nonce, "code": code, "name": f"<call {self._calls}>"}
        answer = self._exchange(_frame(request), nonce, deadline)
        if answer is not None:
            running.drain()
        if answer is None or running.verdict is not None:
            return self._over(start)
        return Result(
            status=_OUTCOMES[answer["outcome"]],
            stdout=running.text("stdout"),
            stderr=running.text("stderr"),
            exit_code=answer["exit_code"],
            wall_s=time.monotonic() - start,
            cpu_s=answer["cpu_s"],
            level=self._level,
        )

    def _exchange(self, request: bytes, nonce: str, deadline: float) -> dict[str, Any] | None:
        """Send a request and wait for its answer; None where there will be none."""
        self._channel.settimeout(max(0.001, deadline - time.monotonic()))
        with suppress(OSError):  # a guest that has ended, or does not read: the loop below finds out which
            self._channel.sendall(request)
        while self._running.verdict is None and self._running.ending is None:
            seen = self._running.step(deadline)
            if "channel" in seen:
                answer = self._received(nonce)
                if answer is not None:
                    return answer
            if not seen:
                self._running.verdict = "timeout"
        return None

    def _received(self, nonce: str) -> dict[str, Any] | None:
        """The answer to this call, if it has arrived; anything else on the channel is dropped."""
        self._channel.setblocking(False)
        try:
            data = self._channel.recv(_LONGEST_ANSWER)
        except BlockingIOError:
            return None
        except ConnectionError:
            data = b""
        self._buffer += data
        if not data:
            self._running.unwatch_channel(self._channel.fileno())
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > _LONGEST_ANSWER:
                self._running.verdict = "killed"
                return None
            if len(self._buffer) < 4 + size:
                return None
            body, self._buffer = self._buffer[4 : 4 + size], self._buffer[4 + size :]
            answer = _answer(body, nonce)
            if answer is not None:
                return answer
        return None

    def _over(self, start: float) -> Result:
        running = self._running
        running.unwatch_channel(self._channel.fileno())
        running.finish()
        status, exit_code = judge(running.verdict, running.ending, self._cpu_limit_s)
        if status in ("ok", "error"):  # the interpreter itself is gone: os._exit
            status = "killed"
        self._end(f"a call ended as {status!r}")
        return Result(
            status=status,
            stdout=running.text("stdout"),
            stderr=running.text("stderr"),
            exit_code=exit_code,
            wall_s=time.monotonic() - start,
            cpu_s=running.ending.cpu_s if running.ending else 0.0,
            level=self._level,
        )


def _frame(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode("utf-8")
    return len(body).to_bytes(4, "big") + body


def _answer(body: bytes, nonce: str) -> dict[str, Any] | None:
    """A well-formed answer to the call with this nonce."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or answer.get("nonce") != nonce:
        return None
    cpu_s, exit_code, outcome = answer.get("cpu_s"), answer.get("exit_code"), answer.get("outcome")
    if not isinstance(cpu_s, float) or not isinstance(exit_code, int):
        return None
    return answer if isinstance(outcome, str) and outcome in _OUTCOMES else None
