"""From the episodes of a Minari dataset to transitions, one episode after the other.

An episode of T steps has T + 1 observations; where the last one was not stored, its transition is dropped or repeats
the observation before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_buffers.datasets.alignment import Steps, align
from rl_buffers.datasets.errors import DatasetError
from rl_buffers.datasets.layout import RESERVED, Leaves, as_tensor, ends_of, flag_column, prefixed
from rl_buffers.datasets.minari_library import gymnasium
from rl_buffers.datasets.report import Tally
from rl_buffers.datasets.row_files import RowWriter

__all__ = ["EpisodeReader"]

_spaces = gymnasium.spaces


class EpisodeReader:
    """Writes episodes and counts them.

    Args:
        observation_space: the dataset's.
        action_space: the dataset's.
        missing_last: "drop" or "repeat".
        float_dtype: what floating-point numbers are cast to.

    Attributes:
        tally: the counts so far.
        left_out: entries that are no numbers, with the reason.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, missing_last: str, float_dtype: torch.dtype | None
    ) -> None:
        self._observation_space, self._action_space = observation_space, action_space
        self._missing_last, self._dtype = missing_last, float_dtype
        self.tally = Tally()
        self.left_out: dict[str, str] = {"infos": "they differ from episode to episode"}
        if isinstance(observation_space, _spaces.Dict):
            taken = [name for name in observation_space.spaces if name in RESERVED]
            if taken:
                raise DatasetError(f"the observations have a part named {taken[0]!r}, which means something else here")

    def write(self, episodes: Iterable[Any], writer: RowWriter) -> None:
        """Convert episodes, in their order.

        Raises:
            DatasetError: the parts of one have lengths that do not fit, or a shape of their own.
        """
        for episode in episodes:
            leaves = self._transitions(episode)
            if leaves:
                writer.append(leaves)

    def _transitions(self, episode: Any) -> Leaves:
        name = f"episode {episode.id}"
        T = len(episode.rewards)
        if T == 0:
            self.tally.drop("an episode without a step", 1)
            return {}
        observations = self._observed(episode, name)
        actions = self._leaves(self._action_space, episode.actions, ("action",), f"{name}: actions")
        terminated = flag_column(episode.terminations, f"{name}: terminations")
        truncated = flag_column(episode.truncations, f"{name}: truncations")
        lengths = {"terminations": len(terminated), "truncations": len(truncated)}
        lengths |= {".".join(path): leaf.shape[0] for path, leaf in actions.items()}
        odd = {part: length for part, length in lengths.items() if length != T}
        seen = {leaf.shape[0] for leaf in observations.values()}
        if odd or len(seen) != 1 or not seen <= {T, T + 1}:
            raise DatasetError(
                f"{name} has {T} rewards, and {sorted(seen)} observations and {odd or 'no'} other lengths; expected "
                f"{T + 1} observations ({T} where the last one was not stored) and {T} of all else"
            )
        known = torch.ones(T, dtype=torch.bool)
        known[-1] = T + 1 in seen
        aligned = align(Steps(terminated, truncated, known_next=known), self._missing_last)
        first, rows = self.tally.episodes, aligned.rows
        self.tally.add(aligned.tally)
        following = rows + (~aligned.repeated).long()
        leaves = {path: leaf.index_select(0, rows) for path, leaf in (observations | actions).items()}
        leaves |= prefixed({path: leaf.index_select(0, following) for path, leaf in observations.items()}, "next")
        reward = as_tensor(episode.rewards, f"{name}: rewards", self._dtype or torch.float32)
        leaves["next", "reward"] = reward.reshape(T, 1).index_select(0, rows)
        return leaves | ends_of(aligned, first)

    def _observed(self, episode: Any, name: str) -> Leaves:
        at_root = isinstance(self._observation_space, _spaces.Dict)
        path = () if at_root else ("observation",)
        return self._leaves(self._observation_space, episode.observations, path, f"{name}: observations")

    def _leaves(self, space: Any, value: Any, path: tuple[str, ...], name: str) -> Leaves:
        """The parts of a (nested) value; choices count from 0, as those of an environment do."""
        if isinstance(space, _spaces.Dict):
            parts = [(str(key), part, _part(value, key, name)) for key, part in space.spaces.items()]
        elif isinstance(space, _spaces.Tuple):
            parts = [(str(key), part, _part(value, key, name)) for key, part in enumerate(space.spaces)]
        elif isinstance(space, _spaces.Box | _spaces.Discrete | _spaces.MultiDiscrete | _spaces.MultiBinary):
            return {path: self._leaf(space, value, name)}
        else:
            self.left_out[".".join(path)] = f"{type(space).__name__} is not kept in tensors"
            return {}
        found: Leaves = {}
        for key, part, inner in parts:
            found |= self._leaves(part, inner, (*path, key), f"{name}/{key}")
        return found

    def _leaf(self, space: Any, value: Any, name: str) -> Tensor:
        tensor = as_tensor(value, name, self._dtype)
        shape = tuple(space.shape or ())
        if tuple(tensor.shape[1:]) != shape:
            raise DatasetError(f"{name} has shape {list(tensor.shape)}, its space says {['T', *shape]}")
        if isinstance(space, _spaces.Discrete | _spaces.MultiDiscrete) and np.any(space.start):
            tensor = tensor - torch.as_tensor(space.start)
        return tensor


def _part(value: Any, key: Any, name: str) -> Any:
    try:
        return value[key]
    except (LookupError, TypeError) as error:
        have = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise DatasetError(f"{name} lacks the part {key!r}; it has {have}") from error
