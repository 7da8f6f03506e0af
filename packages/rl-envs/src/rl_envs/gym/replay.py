"""Bringing simulators back to where they were: their generators at the last reset and the actions taken since.

A gymnasium environment has no state that could be saved, but its episode can be repeated, which needs no pickle. What
it kept from earlier episodes, or drew from other generators than its own, is not repeated; an environment that
therefore shows another observation than the saved one counts as not restored, and a step says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rl_core import NonTensor
from rl_core.errors import CheckpointError
from rl_core.keys import flat_name
from rl_envs.gym.rows import action_reader, reach
from rl_envs.gym.spaces import Leaf

__all__ = ["Replay"]

_BYTES = 2**26  # of actions kept; an episode with more cannot be repeated


class Replay:
    """What it takes to repeat the present episodes of the environments of a batch.

    Args:
        envs: the environments.
        space: the action space of one of them.
        actions: its leaves.
        observations: the leaves of an observation.
        batched: action rows have a leading dimension of environments.
    """

    def __init__(
        self, envs: Sequence[Any], space: Any, actions: Sequence[Leaf], observations: Sequence[Leaf], batched: bool
    ) -> None:
        self.envs, self.space, self.batched = envs, space, batched
        self.actions, self.observations = actions, observations
        count = len(envs)
        self.rows: list[list[Any]] = []  # action leaves of each step, oldest first
        self.dropped = 0  # steps that were taken before the first row
        self.begins, self.ends = [0] * count, [-1] * count  # steps at which the episode began; ended, or -1
        self.origins: list[dict[str, Any] | None] = [None] * count
        self.seen: list[Any] = [None] * count  # the last observation

    # ---------------------------------------------------------------- recording
    def recorder(self, arrays: Sequence[np.ndarray]) -> Callable[[int], None]:
        """``record(t)`` keeps action row t of the arrays; called once per step of the batch."""
        rows, append = self.rows, self.rows.append
        most = max(1, _BYTES // (128 + sum(array.nbytes // len(array) for array in arrays)))
        parts = [(array, array.ndim > 1) for array in arrays]

        def record(t: int) -> None:
            append([array[t].copy() if copied else array[t] for array, copied in parts])
            if len(rows) > most:
                self._drop(most // 2)

        return record

    def begin(self, index: int, seed: int | None, options: dict[str, Any] | None) -> None:
        """An environment is about to be reset."""
        origin: dict[str, Any] = {"seed": seed, "options": options}
        generator = None if seed is not None else getattr(self.envs[index].unwrapped.np_random, "bit_generator", None)
        if generator is not None:
            origin["generator"] = generator.state
        self.origins[index] = origin if seed is not None or generator is not None else None
        self.begins[index], self.ends[index] = self.dropped + len(self.rows), -1
        self._drop(min(self.begins) - self.dropped)

    def end(self, index: int) -> None:
        """An environment's episode is over."""
        self.ends[index] = self.dropped + len(self.rows)

    def _drop(self, count: int) -> None:
        if count > 0:
            del self.rows[:count]
            self.dropped += count

    # ---------------------------------------------------------------- saving
    def state_dict(self) -> dict[str, Any]:
        """Numbers, texts and tensors: for each environment its origin, steps and observation; the actions of all."""
        episodes = [self._episode(index) for index in range(len(self.envs))]
        actions = {
            flat_name(leaf.key, "/"): _packed([row[place] for row in self.rows], leaf)
            for place, leaf in enumerate(self.actions)
            if self.rows
        }
        return {"episodes": episodes, "actions": actions}

    def _episode(self, index: int) -> dict[str, Any] | None:
        begin, origin = self.begins[index] - self.dropped, self.origins[index]
        if origin is None or begin < 0:
            return None
        end = self.ends[index]
        return {**origin, "begin": begin, "end": end if end < 0 else end - self.dropped, "seen": self._digest(index)}

    def _digest(self, index: int) -> str:
        """A fingerprint of the last observation's numbers."""
        mark = hashlib.sha256()
        for leaf in self.observations:
            value = np.asarray(reach(self.seen[index], leaf.path))
            mark.update(value.tobytes() if value.dtype != object and value.dtype.kind != "U" else repr(value).encode())
        return mark.hexdigest()

    # ---------------------------------------------------------------- loading
    def load_state_dict(self, state: dict[str, Any]) -> list[bool | None]:
        """Repeat the episodes.

        Returns:
            for each environment whether it is inside an episode; None where it could not be brought back.

        Raises:
            CheckpointError: the state is one of another number of environments.
        """
        episodes = state["episodes"]
        if len(episodes) != len(self.envs):
            raise CheckpointError(
                f"the state holds {len(episodes)} environments, this one is made of {len(self.envs)}; make it with "
                f"num_envs={len(episodes)}"
            )
        actions = state["actions"]
        arrays = {
            leaf.key: _unpacked(actions[flat_name(leaf.key, "/")], self.batched) for leaf in self.actions if actions
        }
        columns = list(arrays.values())
        self.rows[:] = [[array[t] for array in columns] for t in range(len(columns[0]) if columns else 0)]
        self.dropped = 0
        return [self._repeat(index, episode, arrays) for index, episode in enumerate(episodes)]

    def _repeat(self, index: int, episode: dict[str, Any] | None, arrays: dict[Any, np.ndarray]) -> bool | None:
        self.begins[index], self.ends[index], self.origins[index] = len(self.rows), -1, None
        if episode is None:
            return None
        env, seed, options = self.envs[index], episode["seed"], episode["options"]
        if seed is None:
            env.unwrapped.np_random.bit_generator.state = episode["generator"]
        self.origins[index] = {key: episode[key] for key in ("seed", "options", "generator") if key in episode}
        self.begins[index], self.ends[index] = episode["begin"], episode["end"]
        self.seen[index], _ = env.reset(seed=seed, options=options)
        stop = len(self.rows) if episode["end"] < 0 else episode["end"]
        if stop > episode["begin"]:
            read = action_reader(self.space, self.actions, arrays, index if self.batched else None)
            for t in range(episode["begin"], stop):
                self.seen[index], *_ = env.step(read(t))
        return episode["end"] < 0 if self._digest(index) == episode["seen"] else None


def _packed(rows: list[Any], leaf: Leaf) -> Any:
    """The action rows of a leaf as one tensor, or as a list of what is none (texts)."""
    if isinstance(leaf.spec, NonTensor):
        return [row.tolist() if isinstance(row, np.ndarray) else row for row in rows]
    return torch.from_numpy(np.stack(rows))


def _unpacked(packed: Any, batched: bool) -> np.ndarray:
    if isinstance(packed, torch.Tensor):
        return packed.cpu().numpy()
    array = np.empty((len(packed), len(packed[0])) if batched else len(packed), dtype=object)
    for t, row in enumerate(packed):
        array[t] = row
    return array
