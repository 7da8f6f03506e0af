"""``CollectorWorker``: what steps an environment on behalf of a collector elsewhere, whatever carries the messages.

It knows no pipe, no shared memory and no process: whoever runs it (a process, an actor) calls its methods and hands it
a function that stores what it collects.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_collectors.process.control import Control
from rl_collectors.process.settings import EnvFacts, WorkerSettings
from rl_collectors.process.watched import Watch, watched
from rl_collectors.weights.models import model_at
from rl_collectors.weights.named import write_weights
from rl_core.training.seeding import seed_everything

__all__ = ["ERRANDS", "CollectorWorker", "Gathered", "Order"]

ERRANDS = {"seed": "seeding", "state": "saving its state", "load": "taking its state back"}
"""What a worker does beside collecting, in the words of an order, and what it says of itself meanwhile."""

Store = Callable[[TensorDictBase, int, int], None]
"""``store(chunk [*B, k], offset, steps)``: keep a chunk as the steps from ``offset`` on of a batch of ``steps``."""


@dataclass(frozen=True)
class Order:
    """A batch that a worker is asked for.

    Attributes:
        number: of the batch, from 1; each worker has its own count.
        steps: steps of each of its environments.
        random: act at random.
        reset: start new episodes first.
    """

    number: int
    steps: int
    random: bool = False
    reset: bool = False


@dataclass(frozen=True)
class Gathered:
    """A batch that was collected.

    Attributes:
        order: what was asked for.
        steps: how many steps it has: fewer than asked for where it was cut short.
        versions: (step, version of the weights from there on), the first at step 0.
    """

    order: Order
    steps: int
    versions: list[tuple[int, int]]


class CollectorWorker:
    """Steps one environment (or a batch of them) under one copy of a policy.

    Args:
        settings: what it is made from.
        control: the numbers that it shares with its owner.
        attend: called between two policy calls when the owner has called.
    """

    def __init__(self, settings: WorkerSettings, control: Control, attend: Callable[[], None]) -> None:
        self.settings, self.control = settings, control
        self.watch = Watch(control, attend)
        self.version = 0
        self._versions: list[tuple[int, int]] = []
        if settings.init_fn is not None:
            settings.init_fn()
        self.seed_process(settings.seed)
        self.collector = settings.collector_class(
            settings.create_env_fn,
            settings.policy,
            policy_factory=settings.policy_factory,
            track_traj_ids=False,
            **settings.collector_kwargs,
        )
        self.collector.env.set_seed(settings.seed)
        self.chunk: int = self.collector.budget.frames_per_batch // self.collector.budget.rows
        self.collector.act_through(lambda policy: watched(policy, self.watch))

    @property
    def facts(self) -> EnvFacts:
        """What the owner must know."""
        env = self.collector.env
        return EnvFacts(env.batch_size, list(env.end_groups), type(env.base_env).__name__)

    # ---------------------------------------------------------------- collecting
    def gather(self, order: Order, store: Store) -> Gathered:
        """Collect a batch chunk by chunk; weights may change between two policy calls."""
        if order.reset:
            self.collector.reset()
        elif self.collector.restarted:  # its owner counts on with the episodes of before, unless it is told
            order = replace(order, reset=True)
        self.collector.restarted = False
        self._versions = [(0, self.version)]
        taken = 0
        while taken < order.steps and not (taken and self.control.cut_at >= order.number):
            chunk = min(self.chunk, order.steps - taken)
            self.watch.calls = taken
            store(self.collector.gather(chunk, random=order.random), taken, order.steps)
            taken += chunk
            self.control.advance()
        return Gathered(order, taken, [entry for entry in self._versions if entry[0] < taken])

    # ---------------------------------------------------------------- weights
    def take_weights(self, model_id: str, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copy new weights into a module here; the next policy call acts with them, steps taken keep what they have."""
        self.collector.keep_steps()
        write_weights(model_at(self.collector, model_id), weights)
        if model_id == "policy":
            self.version = version
            step = self.watch.calls
            self._versions = [entry for entry in self._versions if entry[0] < step] + [(step, version)]

    # ---------------------------------------------------------------- steering
    def run_errand(self, name: str, *given: Any) -> Any:
        """Follow an order of :data:`ERRANDS` ("seed" comes with a number, "load" with a state) and give its answer."""
        errands: dict[str, Callable[..., Any]] = {
            "seed": self.set_seed,
            "state": self.state_dict,
            "load": self.load_state_dict,
        }
        return errands[name](*given)

    def seed_process(self, seed: int) -> None:
        """Seed Python, numpy and torch here."""
        seed_everything(seed)

    def set_seed(self, seed: int) -> None:
        """Seed everything here, the environment included."""
        self.seed_process(seed)
        self.collector.env.set_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        """The collector's state and the random generators', as plain data."""
        name, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
        version, words, gauss_next = random.getstate()
        return {
            "collector": self.collector.state_dict(),
            "version": self.version,
            "torch_rng": torch.get_rng_state(),
            "numpy_rng": {"name": str(name), "keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
                          "place": int(place), "has_gauss": int(has_gauss), "gauss": float(gauss)},
            "python_rng": {"version": version, "words": list(words), "gauss": gauss_next},
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        self.collector.load_state_dict(state_dict["collector"])
        self.version = int(state_dict["version"])
        torch.set_rng_state(state_dict["torch_rng"])
        saved = state_dict["numpy_rng"]
        keys = saved["keys"].numpy().astype(np.uint32)
        np.random.set_state((saved["name"], keys, saved["place"], saved["has_gauss"], saved["gauss"]))
        saved = state_dict["python_rng"]
        random.setstate((saved["version"], tuple(saved["words"]), saved["gauss"]))

    def close(self) -> None:
        """Close what was made here."""
        self.collector.shutdown()
