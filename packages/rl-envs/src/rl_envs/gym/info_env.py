"""``InfoReading``: the part of a gymnasium adapter that turns ``info`` into entries."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rl_core import ArrayEnv, Categorical, Columns
from rl_core.errors import EnvError
from rl_envs.gym.info import BaseInfoDictReader, default_info_dict_reader
from rl_envs.gym.info_rows import InfoRows, VectorInfoRows, info_of_each
from rl_envs.gym.library import gymnasium
from rl_envs.gym.spaces import batched_spec

__all__ = ["InfoReading"]

_TRIAL = 8  # steps


class InfoReading(ArrayEnv):
    """Base of adapters to simulators that return an ``info``."""

    _env: Any
    name: str
    simulator: Any
    gym_action_space: Any
    autoreset_mode: Any
    running: Any
    was_reset: bool
    waiting: dict[int, list[Any]]
    info_readers: list[BaseInfoDictReader]

    def set_info_dict_reader(
        self, info_dict_reader: Any = None, ignore_private: bool = True, *, trial_steps: int = _TRIAL
    ) -> Any:
        """Write values of ``info`` as entries, at resets and at steps.

        Args:
            info_dict_reader: a :class:`BaseInfoDictReader`, or names to read. None: every name that a trial shows.
            ignore_private: of the reader that is made where none is given: leave out names that begin with "_".
            trial_steps: random steps of the trial that finds names and specs which are not declared.

        Returns:
            this environment, whose episodes begin anew where a trial was made.

        Raises:
            EnvError: an entry has no spec, or its name is taken.

        Example:
            >>> from rl_envs import GymEnv, default_info_dict_reader
            >>> from rl_core import Unbounded
            >>> reader = default_info_dict_reader(["score"], spec=[Unbounded(shape=(), dtype=torch.float32)])
            >>> env = GymEnv("CartPole-v1").set_info_dict_reader(reader)
            >>> env.rollout(3)["next", "score_present"]
            tensor([False, False, False])
        """
        reader = info_dict_reader
        if not isinstance(reader, BaseInfoDictReader):
            reader = default_info_dict_reader(reader, ignore_private=ignore_private)
        if isinstance(reader, default_info_dict_reader) and (reader.open or None in reader.specs.values()):
            reader.learn(self._trial(trial_steps))
        self._declare_info(reader)
        self.info_readers.append(reader)
        return self

    def auto_register_info_dict(self, ignore_private: bool = True, *, info_dict_reader: Any = None) -> Any:
        """Read every value of ``info`` that a short trial shows; new names that come later are warned of once.

        Args:
            ignore_private: leave out names that begin with "_".
            info_dict_reader: a reader to use instead of a :class:`default_info_dict_reader`.

        Returns:
            this environment.
        """
        return self.set_info_dict_reader(info_dict_reader, ignore_private)

    def _declare_info(self, reader: BaseInfoDictReader) -> None:
        spec, batch = self.observation_spec, self.batch_size
        taken = {*self.observation_keys, *self.action_keys, *self.reward_keys, *self.done_keys}
        for entry in reader.entries:
            for key, leaf in ((entry.key, entry.spec), (entry.present, Categorical(2, shape=(), dtype=torch.bool))):
                if key is None:
                    continue
                if key in taken:
                    raise EnvError(
                        f"{self.name} has an entry {key!r} already; leave that name out of the reader (keys=[...])"
                    )
                spec.set(key, batched_spec(leaf, batch))
                taken.add(key)
        self.observation_spec = spec

    # ---------------------------------------------------------------- the trial
    def _trial(self, steps: int) -> list[dict[str, Any]]:
        """Infos of single environments during a reset and random steps; the episodes that were under way are over."""
        env = self.simulator
        self.running[:] = [False] * len(self.running)
        self.was_reset = False
        self.waiting.clear()
        batched = len(self.batch_size) > 0
        space, one = copy.deepcopy(env.action_space), copy.deepcopy(self.gym_action_space)
        space.seed(0)
        one.seed(0)
        observation, info = env.reset(seed=0)
        infos = [info]
        for _ in range(steps):
            masks = info.get("action_mask", observation.get("action_mask") if isinstance(observation, dict) else None)
            if masks is None:
                action = space.sample()
            elif isinstance(one, gymnasium.spaces.Discrete):
                legal = [one.sample(mask=np.asarray(mask, np.int8)) for mask in (masks if batched else [masks])]
                action = np.array(legal) if batched else legal[0]
            else:
                break  # what joint masks allow is not drawn here
            observation, _, ended, cut, info = env.step(action)
            infos.append(info)
            if np.any(ended) or np.any(cut):
                break
        env.reset()
        if not batched:
            return infos
        return [single for info in infos for single in info_of_each(info, self.batch_size[0])]

    # ---------------------------------------------------------------- rows
    def info_writer(self, columns: Columns, index: int | None = None) -> Callable[[int, dict[str, Any]], None] | None:
        """``write(t, info)`` of one environment; None where nothing is read."""
        return InfoRows(self.info_readers, columns, index).write if self.info_readers else None

    def vector_info(self, columns: Columns) -> VectorInfoRows | None:
        """The same for a vector environment."""
        return VectorInfoRows(self.info_readers, columns, self.batch_size[0]) if self.info_readers else None
