"""A pool on rows: EnvPool's arrays go from C++ to the columns, past its own Python layer.

That layer flattens and rebuilds trees of arrays and makes its configuration anew at every call, which takes about as
long as the steps of 64 CartPoles. What is called here are the three C++ methods underneath it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core import Columns, RowProgram
from rl_envs.gym.library import gymnasium
from rl_envs.gym.rows import check_rows
from rl_envs.gym.vector import VectorProgram, vector_program

if TYPE_CHECKING:
    from rl_envs.envpool.env import EnvPoolWrapper

__all__ = ["Wires", "pool_program"]


class Wires:
    """The C++ methods of a pool, and the places of its entries in the lists of arrays that they take and give.

    Args:
        pool: from ``envpool.make_gymnasium``, with one player in an environment and actions that are one array.

    Attributes:
        recv: waits for a batch of what was begun and gives its arrays.
        reset: ``reset(env_ids)`` begins episodes, of environments by their int32 numbers.
        observations: the place of each part of an observation, by the names that lead to it.
        reward: the place of the rewards.
        done: the place of the flags of all ends.
        truncated: the place of those of the time limits.
        env_id: the place of the numbers of the environments.
    """

    def __init__(self, pool: Any) -> None:
        self._send, self.recv, self.reset = pool._send, pool._recv, pool._reset
        places = {key.replace(":", "."): place for place, key in enumerate(pool._state_keys)}
        self.reward, self.done, self.truncated = places["reward"], places["done"], places["trunc"]
        self.env_id = places["info.env_id"]
        nested = isinstance(pool.observation_space, gymnasium.spaces.Dict)
        self.observations = {
            tuple(key.split(".")[1:]) if nested else (): place
            for key, place in places.items()
            if key.partition(".")[0] == "obs"
        }
        _, _, name = pool._action_keys  # the two before it say which environment and which player acts
        self._dtype = pool.spec.action_array_spec[name].dtype

    def send(self, action: np.ndarray, rows: np.ndarray) -> None:
        """Begin steps of environments, by their int32 numbers."""
        self._send([rows, rows, np.ascontiguousarray(action, dtype=self._dtype)])

    def observation(self, state: list[np.ndarray]) -> Any:
        """The observation as EnvPool's own layer gives it."""
        if () in self.observations:
            return state[self.observations[()]]
        tree: dict[str, Any] = {}
        for (*parents, name), place in self.observations.items():
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = state[place]
        return tree


def pool_program(sim: EnvPoolWrapper, columns: Columns) -> RowProgram:
    """Bind a pool to columns; through EnvPool's own layer where infos are read or actions are nested."""
    if sim.info_readers or isinstance(sim.gym_action_space, gymnasium.spaces.Dict):
        return vector_program(sim, columns)
    program = _PoolProgram(sim, columns)
    return RowProgram(program.step, program.reset)


class _PoolProgram(VectorProgram):
    """Steps and resets of rows over :class:`Wires`; the rest is as for any vector environment."""

    def __init__(self, sim: EnvPoolWrapper, columns: Columns) -> None:
        super().__init__(sim, columns)
        self.pool: Any = None
        self.everyone = np.arange(sim.batch_size[0], dtype=np.int32)
        self.arguments = sim._reset_arguments

    def _bound(self) -> Wires:
        """The wires of the present pool; a reset with a seed makes another."""
        if self.pool is not self.env.pool:
            self.pool, self.wires = self.env.pool, Wires(self.env.pool)
            self.targets = [(part.array, self.wires.observations[part.path], part.encode) for part in self.parts]
        return self.wires

    def step(self, t: int) -> None:
        """Step every environment of the pool."""
        if np.count_nonzero(self.sim.running) < len(self.everyone):
            self._step_past_ends(t)
        else:
            self._step(t)

    def _step(self, t: int) -> None:
        wires = self._bound()
        wires.send(self.read(t), self.everyone)
        state = wires.recv()
        if self.fresh:
            check_rows(self.sim.name, self.parts, wires.observation(state))
            self._check_gain(state[wires.reward])
            self.fresh = False
        for array, place, encode in self.targets:
            array[t + 1] = state[place] if encode is None else encode(state[place])
        self.reward[t] = state[wires.reward]
        done, cut = state[wires.done], state[wires.truncated]
        np.greater(done, cut, out=self.terminated[t + 1])
        self.truncated[t + 1] = cut
        if np.count_nonzero(done):
            self.sim.running[done] = False

    def reset(self, t: int, mask: np.ndarray | None) -> None:
        """Begin episodes in some rows, or in all of them."""
        if mask is None or not self._going_on():
            super().reset(t, mask)
            return
        rows = mask.nonzero()[0]
        if not len(rows):
            return
        wires = self._bound()
        wires.reset(rows.astype(np.int32))
        state = wires.recv()
        for array, place, encode in self.targets:
            array[t][rows] = state[place] if encode is None else encode(state[place])
        self.sim.running[rows] = True

    def _going_on(self) -> bool:
        """Whether a reset has neither seeds nor options."""
        seeds = self.arguments.seeds
        waiting = seeds is None or seeds.count(None) < len(seeds)
        return self.sim.was_reset and not waiting and self.arguments.options is None
