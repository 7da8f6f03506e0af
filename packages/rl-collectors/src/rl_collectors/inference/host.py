"""Where a policy is served: in threads of this process. A server in a process of its own has one of these in it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_collectors.inference.hub import SocketHub
from rl_collectors.inference.loop import ServingLoop
from rl_collectors.inference.queueing import RequestQueue
from rl_collectors.inference.requests import PolicyFacts
from rl_collectors.inference.served_policy import ServedPolicy, own_policy
from rl_collectors.inference.wire import Address
from rl_core.exploration import ExplorationType

__all__ = ["HostSettings", "ThreadHost"]


@dataclass(frozen=True)
class HostSettings:
    """What a host is made from; see :class:`rl_collectors.InferenceServer`."""

    policy: Any
    policy_factory: Callable[[], Any] | None
    device: torch.device | None
    exploration_type: ExplorationType | None
    max_batch_size: int
    min_batch_size: int
    timeout: float
    bind: Callable[[Any], Any] | None = None


class ThreadHost:
    """Policy, queue, loop, and, from the first remote client on, a hub for other processes.

    Args:
        settings: what it is made from.
    """

    def __init__(self, settings: HostSettings) -> None:
        self.queue = RequestQueue(settings.max_batch_size, settings.min_batch_size, settings.timeout)
        policy = own_policy(settings.policy, settings.policy_factory, settings.device)
        self.policy = ServedPolicy(policy, settings.device, settings.exploration_type, settings.bind)
        self.loop = ServingLoop(self.policy, self.queue)
        self._hub: SocketHub | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    @property
    def facts(self) -> PolicyFacts:
        """What clients must know."""
        return self.policy.facts

    @property
    def version(self) -> int:
        """Of the weights that act."""
        return self.policy.version

    @property
    def alive(self) -> bool:
        """Whether requests are answered."""
        return self.loop.running

    @property
    def address(self) -> Address:
        """Where other processes reach it."""
        with self._lock:
            if self._hub is None:
                self._hub = SocketHub(self.queue)
            return self._hub.address

    def update(self, version: int, weights: Mapping[str, Tensor] | None) -> None:
        """Act with new weights from the next call on; returns when that holds."""
        self.loop.between_calls(lambda: self.policy.take(version, weights))

    def stats(self) -> dict[str, float]:
        """Counts and times."""
        return self.loop.stats.read()

    def reset_stats(self) -> None:
        """Count from zero."""
        self.loop.stats.reset()

    def state_dict(self) -> dict[str, Any]:
        """Weights and version."""
        state: dict[str, Any] = self.loop.between_calls(self.policy.state_dict)
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        self.loop.between_calls(lambda: self.policy.load_state_dict(state_dict))

    def stop(self, timeout: float = 5.0) -> list[str]:
        """End after the call under way.

        Returns:
            What is to be told, where that did not end in time.
        """
        if os.getpid() != self._process:  # in a process that was forked from the server's
            return []
        why = "it was shut down"
        ended = self.loop.stop(why, timeout)
        with self._lock:
            if self._hub is not None:
                self._hub.stop(why)
        return [] if ended else [f"the served policy did not return within {timeout:g} s; its thread goes on"]
