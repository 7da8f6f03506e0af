"""What runs in a worker process: it makes its environments and does what the line to the parent says.

This file imports nothing heavy: what the environments need is loaded by them, after the process has come up.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_envs.vector.channel import (
    CALL,
    CLOSE,
    FAILED,
    OBJECT,
    OK,
    RESET,
    STEP,
    Channel,
    LineClosedError,
    forget_all,
)
from rl_envs.vector.failures import Failure
from rl_envs.vector.makers import Maker, Parcel, unpack

if TYPE_CHECKING:
    from rl_core import Columns, EnvBase
    from rl_envs.vector.member_rows import MemberRows
    from rl_envs.vector.members import Members
    from rl_envs.vector.shared_columns import Place, SharedColumns, SharedParts

__all__ = ["main", "nurse", "serve_forked"]


def main(fd: int) -> None:
    """The program of a spawned worker.

    Args:
        fd: its end of the line.
    """
    channel = Channel(socket.socket(fileno=fd))
    _load()
    try:
        _, (parcel, first, threads, script) = channel.receive()
    except LineClosedError:
        return
    _end_after(lambda: _serve(channel, parcel, first, threads, script))


def nurse(control_fd: int, *fds: int) -> None:
    """The program of a nursery: load what all environments need, fork a worker for each line, tell how they end.

    Args:
        control_fd: its own line.
        *fds: the workers' ends of theirs.
    """
    _end_after(lambda: _nurse(Channel(socket.socket(fileno=control_fd)), fds))


def _nurse(control: Channel, fds: Sequence[int]) -> None:
    sockets = [socket.socket(fileno=fd) for fd in fds]
    _load()  # here, once; the parent writes down meanwhile what the workers are to make
    _, (parcels, firsts, threads, script) = control.receive()
    pids: dict[int, int] = {}
    for number, sock in enumerate(sockets):
        pid = os.fork()
        if not pid:
            control.close()
            for other in sockets[number + 1 :]:
                other.close()
            _end_after(partial(_serve, Channel(sock), parcels[number], firsts[number], threads, script))
        pids[pid] = number
        sock.close()
    with contextlib.suppress(LineClosedError):  # where the parent is gone, the workers end and so does this
        control.send(OBJECT, list(pids))
        while pids:
            pid, status = os.wait()
            if pid in pids:
                control.send(OBJECT, (pids.pop(pid), os.waitstatus_to_exitcode(status)))
    while pids:
        pids.pop(os.wait()[0], None)


def _load() -> None:
    """Load what all environments need."""
    from rl_envs.vector.without_compiler import compiler_left_out

    with compiler_left_out():
        from rl_envs.vector import member_rows, shared_columns  # noqa: F401


def _end_after(serve: Callable[[], None]) -> None:
    """Serve and leave at once: taking an interpreter with torch apart lasts seconds, and nobody needs it any more."""
    try:
        serve()
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve_forked(sock: socket.socket, makers: Sequence[Maker], first: int, threads: int | None) -> None:
    """The program of a worker that was forked."""
    forget_all()
    # Its environments may start processes of their own, which multiprocessing forbids to daemons.
    getattr(multiprocessing.current_process(), "_config", {})["daemon"] = False
    _serve(Channel(sock), makers, first, threads, None)


def _serve(
    channel: Channel, content: Sequence[Maker] | Parcel, first: int, threads: int | None, script: dict[str, Any] | None
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        worker = _Worker(channel, first)
        if worker.begin(content, threads, script):
            worker.run()
    except LineClosedError:
        pass  # the parent is gone


class _Worker:
    """Some environments of a batch and the line to the parent.

    Args:
        channel: the line.
        first: the place of the first environment in the batch.
    """

    members: Members
    shared: SharedColumns | SharedParts

    def __init__(self, channel: Channel, first: int) -> None:
        self.channel, self.first = channel, first
        self.rows: MemberRows | None = None

    # ---------------------------------------------------------------- life
    def begin(self, content: Sequence[Maker] | Parcel, threads: int | None, script: dict[str, Any] | None) -> bool:
        """Come up, make the environments and describe them; whether that went well."""
        import torch

        from rl_envs.vector.members import Members

        if threads is not None:
            torch.set_num_threads(threads)
        self.channel.mark(OK)
        self.members = Members([])
        try:
            if script is not None:
                spawn.prepare(script)
            makers = unpack(content) if isinstance(content, Parcel) else content
            self.members.add(makers)
            descriptions = self.members.describe()
        except BaseException as error:
            self.channel.send(FAILED, self._failure(error, "construction"))
            return False
        self.channel.send(OBJECT, descriptions)
        return True

    def run(self) -> None:
        """Do what is asked until the line ends."""
        try:
            while self._answer(self.channel.read_mark()):
                pass
        finally:
            self.members.close()

    def _answer(self, mark: bytes) -> bool:
        phase = "call"
        try:
            if mark == STEP:
                phase = "step"
                self._step()
                self._give(1)
            elif mark == RESET:
                phase = "reset"
                self._reset(None, False)
                self._give(0)
            elif mark == CALL:
                name, args = self.channel.read_object()
                phase = ("reset" if args[1] == "reset" else "step") if name == "one" else _PHASES.get(name, "call")
                getattr(self, f"do_{name}")(*args)
            elif mark == CLOSE:
                phase = "close"
                self.members.close()
                self.channel.mark(OK)
                return False
        except LineClosedError:
            raise
        except BaseException as error:
            self.channel.send(FAILED, self._failure(error, phase))
        return True

    def _failure(self, error: BaseException, phase: str) -> Failure:
        return Failure.of(error, self.first + self.members.at, phase)

    # ---------------------------------------------------------------- shared columns
    def do_share(self, places: Sequence[Place], batch: tuple[int, ...], envs: range) -> None:
        """Bind the environments to the memory that follows over the line."""
        import torch

        from rl_envs.vector.shared_columns import SharedColumns

        fd = self.channel.receive_file()
        self.shared = shared = SharedColumns(places, batch, fd, envs)
        os.close(fd)
        columns = shared.columns(torch.Size([len(envs), *batch[1:]]))
        self._bind(columns, [(columns, self.members.envs[0])])

    def do_share_parts(self, layouts: Sequence[Sequence[Place]], batch: tuple[int, ...], envs: range) -> None:
        """The same for environments of shapes of their own."""
        from rl_envs.vector.shared_columns import SharedParts

        fd = self.channel.receive_file()
        self.shared = SharedParts(layouts, batch, fd, envs)
        os.close(fd)
        parts = self.shared.parts
        self._bind(parts, list(zip(parts, self.members.envs, strict=True)))

    def _bind(self, columns: Columns | Sequence[Columns], held: Sequence[tuple[Columns, EnvBase]]) -> None:
        from rl_envs.vector.member_rows import MemberRows

        self.rows = MemberRows(self.members, columns)
        carried = [(key, part.arrays[key], env.state_keys) for part, env in held for key in part.carried]
        self.following = [array for key, array, states in carried if key not in states]
        self.everything = [array for _, array, _ in carried]
        self.stepped = False
        self.channel.send(OBJECT, self.rows.has_ahead)

    def _step(self) -> None:
        assert self.rows is not None
        if self.stepped:
            for array in self.following:
                array[0] = array[1]
        self.rows.program.step(0)
        self.stepped = True

    def _reset(self, kwargs: Sequence[Mapping[str, Any]] | None, given: bool) -> None:
        assert self.rows is not None
        if self.stepped:
            for array in self.everything:
                array[0] = array[1]
            self.stepped = False
        mask = self.shared.mask
        self.members.reset_kwargs, self.members.given = kwargs, given
        self.rows.program.reset(0, None if mask.all() else mask)
        self.members.reset_kwargs, self.members.given = None, False

    def _give(self, row: int) -> None:
        """Say that the shared rows are written; entries that are no tensors go along."""
        shared = self.shared
        if not shared.objects:
            self.channel.mark(OK)
        else:
            self.channel.send(OBJECT, {key: shared.arrays[key][row] for key in shared.objects if key in shared.carried})

    def do_reset(self, kwargs: Sequence[Mapping[str, Any]] | None, given: bool) -> None:
        """A reset with arguments, or one that reads states."""
        self._reset(kwargs, given)
        self._give(0)

    def do_step(self, objects: Mapping[Any, np.ndarray]) -> None:
        """A step whose actions or states hold objects."""
        for key, (row, following) in objects.items():
            self.shared.arrays[key][0] = row
            if following is not None:
                self.shared.arrays[key][1] = following
        self._step()
        self._give(1)

    # ---------------------------------------------------------------- TensorDicts over the line
    def do_reset_rows(self, requests: Sequence[Any], kwargs: Sequence[Mapping[str, Any]] | None) -> None:
        """Reset the environments that have a request."""
        from rl_envs.vector.row_by_row import reset_members
        from rl_envs.vector.wire import from_wire, to_wire

        self.channel.send(OBJECT, to_wire(reset_members(self.members, from_wire(requests), kwargs)))

    def do_step_rows(self, rows: Sequence[Any]) -> None:
        """Step the environments."""
        from rl_envs.vector.row_by_row import step_members
        from rl_envs.vector.wire import from_wire, to_wire

        self.channel.send(
            OBJECT, to_wire(step_members(self.members, [row for row in from_wire(rows) if row is not None]))
        )

    def do_one(self, index: int, method: str, data: Any, kwargs: Mapping[str, Any]) -> None:
        """One environment's own reset, step or step_and_maybe_reset."""
        from rl_envs.vector.single_calls import call_member
        from rl_envs.vector.wire import from_wire, to_wire

        given = from_wire([data])[0]
        self.channel.send(OBJECT, to_wire(call_member(self.members, index, method, given, kwargs)))

    # ---------------------------------------------------------------- access
    def do_seed(self, seeds: Sequence[int]) -> None:
        """Seed the environments; numpy's and Python's global generators follow the first one's seed."""
        random.seed(seeds[0])
        np.random.seed(seeds[0] % 2**32)
        self.members.seed(seeds)
        self.channel.mark(OK)

    def do_call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A method or an attribute of every environment."""
        from rl_envs.vector.row_by_row import call_or_read

        results = []
        for index, env in enumerate(self.members.envs):
            self.members.at = index
            results.append(call_or_read(env, name, args, kwargs))
        self.channel.send(OBJECT, results)

    def do_set_attr(self, name: str, values: Sequence[Any]) -> None:
        """An attribute of every environment."""
        for index, (env, value) in enumerate(zip(self.members.envs, values, strict=True)):
            self.members.at = index
            setattr(env, name, value)
        self.channel.mark(OK)

    def do_train(self, mode: bool) -> None:
        """Training mode of every environment."""
        for env in self.members.envs:
            env.train(mode)
        self.channel.mark(OK)

    def do_state_dict(self) -> None:
        """The environments' states."""
        self.channel.send(OBJECT, self.members.state_dict())

    def do_load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the states back."""
        self.channel.send(OBJECT, self.members.load_state_dict(dict(state)))


_PHASES = {
    "share": "construction",
    "share_parts": "construction",
    "reset": "reset",
    "step": "step",
    "reset_rows": "reset",
    "step_rows": "step",
}
