"""``RayPool``: actors that follow orders; it starts them, hears them, and notices when one fails, dies or hangs."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rl_collectors.acting import is_off_cpu, on_device
from rl_collectors.background import StoppedError
from rl_collectors.process.settings import EnvFacts, WorkerSettings
from rl_collectors.process.worker import Order
from rl_collectors.ray.actor import ASIDE, CollectorActor
from rl_collectors.ray.cluster import in_bytes
from rl_collectors.ray.hire import Hire
from rl_collectors.ray.library import ray
from rl_collectors.ray.member import Asked, RayMember
from rl_collectors.ray.telling import cause_of_death, death, hang, late_end
from rl_collectors.ray.travel import SentBatch
from rl_core.errors import CollectorError
from rl_core.keys import Key
from rl_core.training.seeding import spawn_seeds

__all__ = ["RayPool"]

_CPU = torch.device("cpu")
_START_SECONDS = 180.0
_END_SECONDS = 5.0
_DEATHS_IN_A_ROW = 3
_THREADS_ASIDE = 8
_SETTINGS = ("create_env_fn", "policy_factory", "init_fn", "collector_kwargs")


class RayPool:
    """Workers in Ray actors.

    Args:
        settings: of each worker.
        hire: their resources, whether they are started anew, and what they do with their batches.
        timeout: seconds without progress after which a worker counts as hanging.
    """

    def __init__(self, settings: Sequence[WorkerSettings], hire: Hire, timeout: float) -> None:
        self.hire, self.timeout = hire, timeout
        self.closed = False
        self.restarts = self.frames_lost = 0
        self.lock = threading.RLock()
        self._turn = 0
        self._policy = ray.put(in_bytes(_on_cpu(settings[0].policy), "policy"))
        self._handover = ray.put(in_bytes(hire.handover, "what the actors need to hand their batches to the buffer"))
        options = hire.options(len(settings))
        self.members = [
            RayMember(each.index, _packed(replace(each, policy=None)), own, each.seed)
            for each, own in zip(settings, options, strict=True)
        ]
        for member in self.members:
            self._launch(member, inner=False)

    # ---------------------------------------------------------------- starting
    def _launch(self, member: RayMember, inner: bool) -> None:
        remote: Any = ray.remote  # its types do not know of concurrency groups
        make = remote(concurrency_groups={ASIDE: _THREADS_ASIDE})(CollectorActor)
        member.handle = make.options(**member.options).remote(member.index)
        member.ready, member.pulse = False, None
        seed = member.seed if not member.generation else spawn_seeds(member.seed, 1, key=(member.generation,))[0]
        order = (
            "begin", member.settings, self._policy, self._handover, self.hire.workers_per_actor, seed,
            member.first_id, self.timeout,
        )  # fmt: skip
        self._give(member, Asked(order, "building its environment and policy", None, inner))
        if not inner:
            return
        if member.state is not None:
            self._give(member, Asked(("load", member.state), "taking its state back", None, True))
            self._give(member, Asked(("seed", seed), "seeding", None, True))
        for model_id, (version, parts) in member.weights.items():
            asked = Asked(("catch_up", model_id, version, *parts), "taking new weights", None, True)
            self._give(member, asked)
            member.answers[model_id, version] = (member.generation, asked.ref)

    def _give(self, member: RayMember, asked: Asked) -> None:
        match asked.order:
            case ("gather", slot, Order() as order) if member.fresh:  # its episodes are not those that its owner counts
                member.fresh = False
                asked.order = ("gather", slot, replace(order, reset=True))
        method, *arguments = asked.order
        asked.ref = getattr(member.handle, method).remote(*arguments)
        member.pending.append(asked)

    def wait_until_ready(self) -> list[EnvFacts]:
        """What each worker says about its environment, once all are built."""
        return [self.receive([member.index])[1][1] for member in self.members]

    # ---------------------------------------------------------------- orders
    def send(self, worker: int, *order: Any, phase: str) -> None:
        """Give a worker an order: the name of a method of its actor, and the arguments."""
        with self.lock:
            self.check_open()
            member = self.members[worker]
            match order:
                case ("load", state):
                    member.state, member.weights = state, {}
                case ("seed", int(seed)):
                    member.seed = seed
            self._give(member, Asked(order, phase, None))

    def check_open(self) -> None:
        """Raise where the workers have ended."""
        if self.closed:
            raise StoppedError("the workers were shut down")
        if not ray.is_initialized():
            raise self.fail(CollectorError("Ray was shut down while its actors collected; construct a new collector"))

    def ask(self, workers: Sequence[int], *order: Any, phase: str) -> list[Any]:
        """Give workers that have nothing else to do an order, and wait for their answers."""
        for worker in workers:
            self.send(worker, *order, phase=phase)
        return [self.receive([worker])[1][1] for worker in workers]

    def receive(self, workers: Sequence[int]) -> tuple[int, tuple[Any, ...]]:
        """The next message of one of these workers; those that have waited longest come first.

        Raises:
            CollectorError: a worker failed, died and is not started anew, or makes no progress; all are ended then.
        """
        stalled = {worker: (-1, time.monotonic()) for worker in workers}
        while True:
            with self.lock:
                self.check_open()
                heads = [self.members[worker] for worker in self._in_turn(workers)]
                refs = {member.pending[0].ref: member for member in heads}
            ready, _ = ray.wait(list(refs), num_returns=1, timeout=min(1.0, self.timeout / 4))
            if not ready:
                self._look_for_hangs(stalled)
                continue
            member = refs[ready[0]]
            message = self._read(member, ready[0])
            if message is not None:
                self._turn = member.index + 1
                return member.index, message
            stalled[member.index] = (-1, time.monotonic())

    def _in_turn(self, workers: Sequence[int]) -> list[int]:
        count = len(self.members)
        return sorted(workers, key=lambda worker: (worker - self._turn) % count)

    def _read(self, member: RayMember, ref: Any) -> tuple[Any, ...] | None:
        """A member's answer; None where there is nothing to be told of."""
        generation = member.generation
        try:
            reply = ray.get(ref)
        except ray.exceptions.RayError as error:
            self.bury(member, generation, error)
            return None
        with self.lock:
            self.check_open()
            if not member.pending or member.pending[0].ref != ref:
                return None  # another thread was faster
            asked = member.pending.popleft()
            return self._heard(member, asked, reply)

    def _heard(self, member: RayMember, asked: Asked, reply: tuple[Any, ...]) -> tuple[Any, ...] | None:
        match reply:
            case ("ready", EnvFacts() as facts, str(where)):
                member.ready, member.where, member.rows = True, where, facts.batch_size.numel()
            case ("batch", SentBatch() as sent):
                member.deaths, member.first_id = 0, sent.next_id
                member.slots[sent.slot] = sent.views()
                reply = ("batch", sent.filled)
            case ("failed" | "refused", failure) if failure is not None:
                raise self.fail(failure.error())
            case ("stopped",):
                raise StoppedError("the workers were shut down while a batch was awaited")
        return None if asked.inner else reply

    def views(self, worker: int, slot: int) -> Mapping[Key, Tensor]:
        """The tensors of a batch that a worker has told of; they are the caller's."""
        return self.members[worker].slots.pop(slot)

    def cut(self, worker: int, batch: int) -> None:
        """Let a worker end batch number ``batch`` with the steps it has."""
        self.members[worker].handle.cut.remote(batch)

    # ---------------------------------------------------------------- what goes wrong
    def bury(self, member: RayMember, generation: int, error: Exception) -> None:
        """A member was found dead: start it anew, or end all.

        Raises:
            CollectorError: it is not started anew.
        """
        with self.lock:
            self.check_open()
            if member.generation != generation:
                return  # another thread has seen to it
            told = death(member, error)
            member.deaths += 1
            if not self.hire.may_restart(self.restarts):
                raise self.fail(told)
            if member.deaths >= _DEATHS_IN_A_ROW:
                raise self.fail(
                    CollectorError(f"{told} It has died {member.deaths} times in a row without finishing a batch")
                )
            lost = member.frames_under_way
            self.frames_lost += lost
            self.restarts += 1
            warnings.warn(
                f"{member} died while {member.phase}: {cause_of_death(error)}. It is started anew with the current "
                f"weights; up to {lost} frames of its unfinished batch are lost, and are collected again",
                RuntimeWarning,
                stacklevel=2,
            )
            self._restart(member)

    def _restart(self, member: RayMember) -> None:
        ray.kill(member.handle)
        member.generation += 1
        orders = [asked for asked in member.pending if not asked.inner]
        member.pending.clear()
        self._launch(member, inner=not orders or orders[0].order[0] != "begin")
        member.fresh = True
        for asked in orders:
            if asked.order[0] != "begin":  # that was given by the launch
                self._give(member, asked)

    def _look_for_hangs(self, stalled: dict[int, tuple[int, float]]) -> None:
        now = time.monotonic()
        for worker, (progress, since) in stalled.items():
            member = self.members[worker]
            found = self._pulse(member)
            if found is not None and found != progress:
                stalled[worker] = (found, now)
                continue
            limit = self.timeout if member.ready else max(self.timeout, _START_SECONDS)
            if now - since > limit:
                raise self.fail(hang(member, limit))

    def _pulse(self, member: RayMember) -> int | None:
        """A number that moves with a member's work, if it has answered since the last time."""
        if member.pulse is None:
            member.pulse = member.handle.progress.remote()
        ready, _ = ray.wait([member.pulse], timeout=0)
        if not ready:
            return None
        pulse, member.pulse = member.pulse, None
        try:
            return int(ray.get(pulse)[0])
        except ray.exceptions.RayError:
            return None  # it is dead, as the order that is awaited will tell

    def fail(self, error: CollectorError) -> CollectorError:
        """End all workers; returns the error to raise."""
        self.shutdown(1.0)
        return error

    # ---------------------------------------------------------------- the end
    def shutdown(self, grace: float = 5.0) -> list[str]:
        """End all workers: they close what they made, within so many seconds; then they are killed.

        Ray is shut down too where it was started for them.

        Returns:
            What is to be told about workers that did not end in order.
        """
        with self.lock:
            if self.closed:
                return []
            self.closed = True
        if not ray.is_initialized():
            return []
        for member in self.members:
            member.handle.stop.remote()
        refs = {member.handle.close.remote(): member for member in self.members if member.ready}
        ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=grace) if refs else ([], [])
        told = [late_end(refs[ref], grace) for ref in late]
        for ref in ready:
            try:
                reply = ray.get(ref)
            except ray.exceptions.RayError:
                continue  # it died; whoever waited for it was told
            if reply[0] == "failed":
                told.append(str(reply[1].error()))
        for member in self.members:
            ray.kill(member.handle)
        for member in self.members:
            _await_end(member)
        if self.hire.started_ray:
            ray.shutdown()
        return told


def _await_end(member: RayMember) -> None:
    """Wait until a killed actor is gone, which takes a moment."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        try:
            ray.get(member.handle.progress.remote(), timeout=_END_SECONDS)
        except ray.exceptions.RayError:
            return


def _on_cpu(policy: Any) -> Any:
    """The policy, or a copy on the CPU: an actor may have no other device."""
    return on_device(policy, _CPU) if isinstance(policy, nn.Module) and is_off_cpu(policy) else policy


def _packed(settings: WorkerSettings) -> bytes:
    try:
        return in_bytes(settings, "a worker's settings")
    except CollectorError:
        for what in _SETTINGS:
            in_bytes(getattr(settings, what), what)  # raises with the name of the one
        raise
