"""``EndOfLifeTransform``: marks the loss of a life, where an episode goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Categorical, Columns, Composite, RowProgram, Transform, Unbounded, reset_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key

__all__ = ["EndOfLifeTransform"]


class EndOfLifeTransform(Transform):
    """Writes how many lives are left, and a flag that is True where one was lost or the episode ended.

    The environment's end flags stay as they are: the episode goes on. A loss that is to see the end of a life as the
    end of an episode reads the flag: ``loss.set_keys(done="end-of-life", terminated="end-of-life")``.

    Args:
        eol_key: the flag, bool ``[*B, 1]``.
        lives_key: the number of lives, int64 ``[*B]``.
        done_key: the environment's end flag.
        eol_attribute: the path of a method (or number) of the simulator that says how many lives are left. In a batch
            it is looked up in each environment of the simulator's ``envs``.
    """

    def __init__(
        self,
        eol_key: Key = "end-of-life",
        lives_key: Key = "lives",
        done_key: Key = "done",
        eol_attribute: str = "unwrapped.ale.lives",
    ) -> None:
        super().__init__()
        self.eol_key, self.lives_key, self.done_key, self.eol_attribute = eol_key, lives_key, done_key, eol_attribute

    # ---------------------------------------------------------------- lives
    def _find(self, simulator: Any) -> Callable[[], int]:
        found = simulator
        try:
            for name in self.eol_attribute.split("."):
                found = getattr(found, name)
        except AttributeError as error:
            raise EnvError(
                f"EndOfLifeTransform finds no {self.eol_attribute!r} in {simulator}: {error}. It is about environments "
                "with lives, such as Atari games; give eol_attribute= for others"
            ) from error
        if callable(found):
            return found
        owner_path, _, last = self.eol_attribute.rpartition(".")

        def read() -> int:
            owner = simulator
            for name in filter(None, owner_path.split(".")):
                owner = getattr(owner, name)
            return int(getattr(owner, last))

        return read

    def _readers(self) -> list[Callable[[], int]]:
        container = self.container
        if container is None:
            raise EnvError("EndOfLifeTransform asks a simulator for its lives; append it to an environment")
        base: Any = container.base_env
        if not len(container.batch_size):
            return [self._find(base)]
        return [self._find(env) for env in base.envs]

    def _lives(self) -> np.ndarray:
        container = self.container
        batch = () if container is None else tuple(container.batch_size)
        return np.asarray([read() for read in self._readers()], dtype=np.int64).reshape(batch)

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the flag and the number."""
        batch = observation_spec.shape
        observation_spec.set(self.eol_key, Categorical(2, shape=(*batch, 1), dtype=torch.bool))
        observation_spec.set(self.lives_key, Unbounded(shape=batch, dtype=torch.int64))
        return observation_spec

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        lives = torch.from_numpy(self._lives())
        flag = torch.zeros((*lives.shape, 1), dtype=torch.bool)
        rows = reset_rows(tensordict)
        if rows is not None and tensordict is not None and tensordict.get(self.lives_key, None) is not None:
            lives = torch.where(rows.to(lives.device), lives, tensordict.get(self.lives_key).to(lives.device))
        tensordict_reset.set(self.lives_key, lives)
        return tensordict_reset.set(self.eol_key, flag)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        before, done = tensordict.get(self.lives_key, None), next_tensordict.get(self.done_key, None)
        if before is None:
            raise KeyMissingError(self._missing(self.lives_key, tensordict))
        if done is None:
            raise KeyMissingError(self._missing(self.done_key, next_tensordict))
        lives = torch.from_numpy(self._lives()).to(before.device)
        next_tensordict.set(self.lives_key, lives)
        return next_tensordict.set(self.eol_key, (lives < before).unsqueeze(-1) | done)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: the flag from the numbers of lives that they have."""
        nxt = tensordict.get("next")
        before, lives, done = tensordict.get(self.lives_key), nxt.get(self.lives_key), nxt.get(self.done_key)
        if any(value is None for value in (before, lives, done)):
            raise KeyMissingError(self._missing(self.lives_key, tensordict))
        nxt.set(self.eol_key, (lives < before).unsqueeze(-1) | done)
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """One call per environment and step."""
        readers, batch = self._readers(), tuple(before.batch_size)
        lives, flags = after[self.lives_key], after[self.eol_key]
        ends = [before[name] for name in ("terminated", "truncated") if name in before]

        def read() -> np.ndarray:
            return np.asarray([lives_of() for lives_of in readers], dtype=np.int64).reshape(batch)

        def step(t: int) -> None:
            lives[t + 1] = read()
            lost = (lives[t + 1] < lives[t])[..., None]
            for flag in ends:
                lost = lost | flag[t + 1]
            flags[t + 1] = lost

        def reset(t: int, mask: np.ndarray | None) -> None:
            if mask is None:
                lives[t], flags[t] = read(), False
            else:
                lives[t][mask] = read()[mask]
                flags[t][mask] = False

        return RowProgram(step, reset)
