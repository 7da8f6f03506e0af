"""``GymLikeEnv``: the base for simulators whose ``reset`` and ``step`` are their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rl_core import Categorical, Columns, Composite, RowProgram, TensorSpec, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key, as_path
from rl_envs.gym.info_env import InfoReading
from rl_envs.gym.library import gymnasium
from rl_envs.gym.results import wrong_reset, wrong_step
from rl_envs.gym.rows import Part
from rl_envs.gym.seeds import ResetArguments
from rl_envs.gym.spaces import Leaf, composite, leaves_of, observation_leaves
from rl_envs.gym_like.rows import gym_like_program

__all__ = ["GymLikeEnv"]


class GymLikeEnv(InfoReading):
    """Base of adapters to single simulators that are stepped like gymnasium's but return something else.

    A subclass says how results are read, by overriding what differs: :meth:`_reset_output_transform` and
    :meth:`_output_transform` bring them into one order; ``read_action``, ``read_obs``, ``read_reward`` and
    ``read_done`` convert their parts; ``begin`` and ``advance`` call the simulator. Values are cast to the specs'
    dtypes once, as they are written. Rollouts and collectors write straight into their columns.

    Args:
        env: the simulator; it is closed with this environment if it has ``close``. Its attributes can be reached
            through this one.
        observation_spec: of the observations: a spec or a gymnasium space; a Composite or Dict has its keys at the
            root, anything else is "observation". Default: the simulator's ``observation_space``.
        action_spec: of "action". Default: the simulator's ``action_space``.
        reward_spec: of the reward; default: one number, float32 ``[1]``.
        categorical_action_encoding: of spaces: write choices as numbers instead of one-hot vectors.
        frame_skip: frames per step, on which the action is repeated and the rewards are summed.
        device: where tensors are moved; None leaves them on the CPU.

    Raises:
        EnvError: a spec is missing and the simulator has no space for it.

    Example:
        >>> class Walk:
        ...     def restart(self):
        ...         self.place = 0
        ...         return [0.0]
        ...     def move(self, by):
        ...         self.place += by
        ...         return [float(self.place)], -abs(self.place), self.place > 2
        >>> class WalkEnv(GymLikeEnv):
        ...     def begin(self, seed, options):
        ...         return self._env.restart()
        ...     def advance(self, action):
        ...         return self._env.move(action)
        ...     def _reset_output_transform(self, reset_outputs):
        ...         return reset_outputs, {}
        ...     def _output_transform(self, step_outputs):
        ...         observation, reward, over = step_outputs
        ...         return observation, reward, over, False, over, {}
        >>> spec = Unbounded(shape=(1,), dtype=torch.float32)
        >>> env = WalkEnv(Walk(), observation_spec=spec, action_spec=Categorical(2))
        >>> env.rollout(9, lambda td: td.set("action", torch.tensor(1)))["next", "observation"].flatten()
        tensor([1., 2., 3.])
    """

    def __init__(
        self,
        env: Any,
        *,
        observation_spec: Any = None,
        action_spec: Any = None,
        reward_spec: TensorSpec | None = None,
        categorical_action_encoding: bool = False,
        frame_skip: int = 1,
        device: torch.device | str | None = None,
        allow_done_after_reset: bool = False,
    ) -> None:
        if frame_skip < 1:
            raise ValueError(f"frame_skip is the number of frames per step, at least 1; got {frame_skip}")
        super().__init__(device=device, batch_size=[], allow_done_after_reset=allow_done_after_reset)
        self._env = self.simulator = env
        self.name, self.frame_skip = type(env).__name__, frame_skip
        self.autoreset_mode, self.was_reset, self.running = None, False, [False]
        self.waiting, self.info_readers = {}, []
        self._reset_arguments = ResetArguments(None)
        observed = self._given(observation_spec, "observation")
        self.observation_leaves = _leaves(observed, "observation", categorical_action_encoding)
        self.observation_spec = composite(self.observation_leaves, self.batch_size)
        action = self._given(action_spec, "action")
        self.action_leaves = _leaves(action, "action", categorical_action_encoding)
        self.full_action_spec = composite(self.action_leaves, self.batch_size)
        self.reward_spec = Unbounded(shape=(1,), dtype=torch.float32) if reward_spec is None else reward_spec
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.done_spec = Composite({name: flag.clone() for name in ("done", "terminated", "truncated")})

    def _given(self, given: Any, what: str) -> Any:
        found = getattr(self._env, f"{what}_space", None) if given is None else given
        if isinstance(found, TensorSpec | gymnasium.Space):
            return found
        raise EnvError(
            f"{what}_spec is a spec or a gymnasium space, got {type(given).__name__}; {self.name} has no {what}_space "
            f"to take it from: {type(self).__name__}(env, {what}_spec=...)"
        )

    # ---------------------------------------------------------------- what subclasses override
    def begin(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Reset the simulator.

        Args:
            seed: given after ``set_seed`` and at the first reset; else None: go on with the simulator's generator.
            options: those of ``reset(options=...)``.
        """
        return self._env.reset(seed=seed, options=options)

    def advance(self, action: Any) -> Any:
        """One frame of the simulator, with a native action."""
        return self._env.step(action)

    def _reset_output_transform(self, reset_outputs: Any) -> tuple[Any, dict[str, Any]]:
        """What :meth:`begin` returned as (observation, info)."""
        try:
            observation, info = reset_outputs
        except (TypeError, ValueError) as error:
            raise wrong_reset(self.name, reset_outputs) from error
        return observation, info

    def _output_transform(self, step_outputs: Any) -> tuple[Any, Any, Any, Any, Any, dict[str, Any]]:
        """What :meth:`advance` returned as (observation, reward, terminated, truncated, done, info)."""
        try:
            observation, reward, terminated, truncated, info = step_outputs
        except (TypeError, ValueError) as error:
            raise wrong_step(self.name, step_outputs) from error
        return observation, reward, terminated, truncated, terminated or truncated, info

    def read_action(self, action: Any) -> Any:
        """The native action from that of the TensorDict, a tensor or (nested actions) a TensorDict."""
        native = self.full_action_spec["action"].to_numpy(action)
        return native.item() if isinstance(native, np.ndarray) and not native.ndim else native

    def read_obs(self, observations: Any) -> Mapping[str, Any]:
        """Observations by key, nested as the spec is."""
        return observations if isinstance(observations, Mapping) else {"observation": observations}

    def read_reward(self, reward: Any) -> Any:
        """What is written as the reward (and summed over the frames of a step)."""
        return reward

    def read_done(self, terminated: Any, truncated: Any, done: Any) -> tuple[bool, bool]:
        """Whether the episode has ended by itself, and whether it was cut.

        Args:
            terminated: as :meth:`_output_transform` gave it, or None where the simulator does not say.
            truncated: the same.
            done: the same; an end that is neither counts as terminated.
        """
        cut = bool(truncated)
        return bool(terminated) or (bool(done) and not cut), cut

    # ---------------------------------------------------------------- rows
    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the simulator to columns."""
        return gym_like_program(self, columns)

    def observation_parts(self, columns: Columns) -> list[Part]:
        """The leaves of the observations on their columns."""
        parts = []
        for leaf in self.observation_leaves:
            encode = leaf.encoder() if leaf.space is not None else None
            parts.append(Part(leaf.key, as_path(leaf.key), columns[leaf.key], encode))
        return parts

    def next_reset(self) -> tuple[int | None, dict[str, Any] | None]:
        """The seed and the options of the reset at hand."""
        self.was_reset = True
        return self._reset_arguments.take_seeds((0,))[0], self._reset_arguments.take_options()

    def _set_seed(self, seed: int) -> None:
        self._reset_arguments.seed(seed)

    def _reset_options(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - {"seed", "options"})
        if unknown:
            raise TypeError(f"reset of {self.name} takes seed= and options=, not {', '.join(unknown)}")
        if kwargs.get("seed") is not None:
            self._reset_arguments.seed(int(kwargs["seed"]))
        self._reset_arguments.options = kwargs.get("options")

    def _trial(self, steps: int) -> list[dict[str, Any]]:
        """Infos of a reset and random steps; the episode that was under way is over."""
        self.running[0], self.was_reset = False, False
        infos = [self._reset_output_transform(self.begin(0, None))[1]]
        for _ in range(steps):
            action = self.read_action(self.rand_action()["action"])
            *_, terminated, truncated, done, info = self._output_transform(self.advance(action))
            infos.append(info)
            if any(self.read_done(terminated, truncated, done)):
                break
        return infos

    # ---------------------------------------------------------------- life
    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the simulator, if it can be closed."""
        ending = getattr(self._env, "close", None)
        if not self.is_closed and callable(ending):
            ending()
        super().close(raise_if_closed=raise_if_closed)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the simulator underneath."""
        if name.startswith("_") or "_env" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if name in dir(type(self)):  # a property of ours failed: show its own error
            return object.__getattribute__(self, name)
        return getattr(self.__dict__["_env"], name)


def _leaves(given: Any, name: str, categorical: bool) -> list[Leaf]:
    """The leaves of a spec or a space."""
    if isinstance(given, gymnasium.Space):
        return (
            observation_leaves(given, categorical) if name == "observation" else leaves_of(given, (name,), categorical)
        )
    root: Key = name
    if not isinstance(given, Composite):
        return [Leaf(root, (), None, given)]
    if name == "action":
        given = Composite({name: given})
    return [Leaf(key, (), None, leaf) for key, leaf in given.items(True, True)]
