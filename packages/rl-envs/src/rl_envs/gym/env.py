"""``GymWrapper`` and ``GymEnv``: gymnasium environments, single and vectorised, as rl-core environments."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rl_core import Bounded, Categorical, Columns, Composite, NonTensor, RowProgram, Unbounded
from rl_core.errors import EnvError
from rl_envs.gym.backend import check_backend
from rl_envs.gym.frame_skip import FrameSkip
from rl_envs.gym.info_env import InfoReading
from rl_envs.gym.library import gymnasium
from rl_envs.gym.making import make_single, make_vector
from rl_envs.gym.replay import Replay
from rl_envs.gym.seeds import ResetArguments
from rl_envs.gym.serial import serial_program
from rl_envs.gym.single import single_program
from rl_envs.gym.spaces import Leaf, composite, leaves_of, observation_leaves
from rl_envs.gym.vector import autoreset_mode, vector_program

__all__ = ["GymEnv", "GymWrapper"]


class GymWrapper(InfoReading):
    """A gymnasium environment (or vector environment, of any autoreset mode) as an rl-core environment.

    A Dict observation gives its keys, any other one "observation"; the action is "action", nested where its space is.
    Values are cast to the dtypes of the spaces once, on their way in and out; rewards are float32 ``[*B, 1]``.
    Attributes of the environment underneath are reachable through this one.

    Args:
        env: the environment; it is closed with this one.
        categorical_action_encoding: write choices (Discrete, MultiDiscrete) as numbers instead of one-hot vectors.
        from_pixels: write the rendered frame as "pixels", uint8 ``[*B, H, W, 3]``; needs ``render_mode="rgb_array"``.
        pixels_only: with ``from_pixels``, leave the other observations out.
        frame_skip: frames per step, on which the action is repeated and the rewards are summed.
        device: where tensors are moved; None leaves them on the CPU.
        missing_obs_value: what stands for the last observation of an episode where a vector environment of the mode
            SAME_STEP does not tell it; None refuses such an environment when that happens.

    Values of ``info`` become entries where :meth:`set_info_dict_reader` or :meth:`auto_register_info_dict` asks for
    them. An environment with a ``reward_space`` (a Box) has vector rewards, float32 ``[*B, K]``.

    Raises:
        EnvError: the environment cannot be used as it is; the message says what to change.

    Example:
        >>> import gymnasium
        >>> env = GymWrapper(gymnasium.make("CartPole-v1"), categorical_action_encoding=True)
        >>> env.rollout(3)["observation"].shape
        torch.Size([3, 4])
    """

    _serial = False

    def __init__(
        self,
        env: Any,
        categorical_action_encoding: bool = False,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int = 1,
        device: torch.device | str | None = None,
        allow_done_after_reset: bool = False,
        missing_obs_value: float | None = None,
    ) -> None:
        vector = isinstance(env, gymnasium.vector.VectorEnv)
        if not vector and not isinstance(env, gymnasium.Env):
            raise TypeError(f"GymWrapper takes a gymnasium.Env or VectorEnv, got {type(env).__name__}")
        super().__init__(
            device=device, batch_size=[env.num_envs] if vector else [], allow_done_after_reset=allow_done_after_reset
        )
        self._env = env
        self.name = _name_of(env)
        self.from_pixels, self.missing_obs_value = from_pixels, missing_obs_value
        self.autoreset_mode = autoreset_mode(env) if vector and not self._serial else None
        self.simulator = self._with_frame_skip(env, frame_skip)
        self._reset_arguments = ResetArguments(env.num_envs if vector else None)
        self.was_reset = False
        # Which rows are inside an episode: plain bools where rows are visited one by one, an array where they are not.
        count = env.num_envs if vector else 1
        self.running = np.zeros(count, dtype=bool) if self.autoreset_mode is not None else [False] * count
        self.waiting = {}
        self.info_readers = []
        self._read_spaces(categorical_action_encoding, pixels_only)
        self.replay = self._new_replay()

    def _new_replay(self) -> Replay | None:
        """The record of the present episodes, where the environments themselves are at hand."""
        if self.autoreset_mode is not None:
            return None
        envs = self.simulator.envs if self._serial else [self.simulator]
        return Replay(envs, self.gym_action_space, self.action_leaves, self.observation_leaves, self._serial)

    def _with_frame_skip(self, env: Any, frame_skip: int) -> Any:
        if frame_skip == 1:
            return env
        if not len(self.batch_size):
            return FrameSkip(env, frame_skip)
        raise EnvError(
            f"frame_skip={frame_skip} cannot be added around the vector environment {env}; pass it to GymEnv(id, "
            "num_envs=N, frame_skip=...), or wrap the environments that it is made of in "
            "rl_envs.gym.frame_skip.FrameSkip"
        )

    # ---------------------------------------------------------------- specs
    def _read_spaces(self, categorical: bool, pixels_only: bool) -> None:
        env, batch = self._env, self.batch_size
        single = "single_" if len(batch) else ""
        self.gym_action_space = getattr(env, f"{single}action_space")
        self.action_leaves = leaves_of(self.gym_action_space, ("action",), categorical)
        observed = observation_leaves(getattr(env, f"{single}observation_space"), categorical)
        self.observation_leaves: list[Leaf] = [] if self.from_pixels and pixels_only else observed
        self._refuse_stale_texts()
        self.encoders = [leaf.encoder() for leaf in self.observation_leaves]
        observation_spec = composite(self.observation_leaves, batch)
        if self.from_pixels:
            if "pixels" in observation_spec:
                raise EnvError(f"{self.name} has an observation 'pixels' already; leave from_pixels out")
            observation_spec.set("pixels", self._pixel_spec())
        self.observation_spec = observation_spec
        self.full_action_spec = composite(self.action_leaves, batch)
        self.reward_shape = _reward_shape(env.envs[0] if self._serial else env)
        self.reward_spec = Unbounded(shape=(*batch, *(self.reward_shape or (1,))), dtype=torch.float32)
        flag = Categorical(2, shape=(*batch, 1), dtype=torch.bool)
        self.done_spec = Composite({name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=batch)

    def _refuse_stale_texts(self) -> None:
        texts = [leaf.key for leaf in self.observation_leaves if isinstance(leaf.spec, NonTensor)]
        if texts and getattr(self._env.unwrapped, "shared_memory", False):
            raise EnvError(
                f"gymnasium's AsyncVectorEnv never updates the observation {texts[0]!r} in shared memory; make it with "
                "shared_memory=False (GymEnv(id, num_envs=N, vectorization_mode='async') does)"
            )

    def _pixel_spec(self) -> Bounded:
        """Render once to learn the size of a frame."""
        env = self._env
        if env.render_mode != "rgb_array":
            raise EnvError(
                f"from_pixels needs frames, but {self.name} was made with render_mode={env.render_mode!r}; make it "
                "with render_mode='rgb_array' (GymEnv(id, from_pixels=True) does)"
            )
        if self.autoreset_mode == gymnasium.vector.AutoresetMode.SAME_STEP:
            raise EnvError(
                f"from_pixels needs the last frame of an episode, which {self.name} (autoreset mode SAME_STEP) "
                "cannot render any more; use AutoresetMode.DISABLED"
            )
        env.reset(seed=0)  # the first reset of this object seeds the simulator anew
        frame = env.render()
        shape = np.shape(frame)
        expected = len(self.batch_size) + 3
        if len(shape) != expected:
            raise EnvError(f"{self.name} rendered {type(frame).__name__} of shape {shape}, not a frame [H, W, 3]")
        return Bounded(low=0, high=255, shape=shape, dtype=torch.uint8)

    # ---------------------------------------------------------------- rows
    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the simulator to columns."""
        if not len(self.batch_size):
            return single_program(self, columns)
        return serial_program(self, columns) if self._serial else vector_program(self, columns)

    def next_seeds(self, rows: Sequence[int] = (0,)) -> list[int | None]:
        """The seeds for a reset of some rows (None: go on); called once per reset."""
        self.was_reset = True
        return self._reset_arguments.take_seeds(rows)

    def next_options(self) -> dict[str, Any] | None:
        """The options for the reset at hand."""
        return self._reset_arguments.take_options()

    def _set_seed(self, seed: int) -> None:
        """The next reset seeds the simulator; the environments of a batch get independent seeds (``spawn_seeds``)."""
        self._reset_arguments.seed(seed)

    def _reset_options(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - {"seed", "options"})
        if unknown:
            raise TypeError(f"reset of {self.name} takes seed= and options=, not {', '.join(unknown)}")
        seed = kwargs.get("seed")
        if isinstance(seed, Sequence):
            self._reset_arguments.seed_each(seed)
        elif seed is not None:
            self._reset_arguments.seed(int(seed))
        self._reset_arguments.options = kwargs.get("options")

    # ---------------------------------------------------------------- life
    def render(self) -> Any:
        """The frame (or the frames) of the present state."""
        return self._env.render()

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the simulator."""
        if not self.is_closed:
            self.simulator.close()
        super().close(raise_if_closed=raise_if_closed)

    # ---------------------------------------------------------------- checkpoints
    def state_dict(self) -> dict[str, Any]:
        """The present episodes, as what repeats them (:mod:`rl_envs.gym.replay`), and the seeds that wait.

        Empty for vector environments that were made elsewhere or step in other processes.
        """
        if self.replay is None or not self.was_reset:
            return {}
        seeds = self._reset_arguments.seeds
        return {**self.replay.state_dict(), "seeds": None if seeds is None else list(seeds)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        """Go on where a :meth:`state_dict` was made: the episodes are repeated from their first step.

        Returns:
            whether that led back; where it did not (see :mod:`rl_envs.gym.replay`; an empty state), the next step asks
            for a reset.

        Raises:
            CheckpointError: the state is one of another number of environments.
        """
        restored: list[bool | None] = [None]
        if state_dict and self.replay is not None:
            restored = self.replay.load_state_dict(state_dict)
            seeds = state_dict["seeds"]
            self._reset_arguments.seeds = None if seeds is None else list(seeds)
            self.running[:] = [bool(inside) for inside in restored]
        if None in restored:
            self.running[:] = [False] * len(self.running)
        self.was_reset = None not in restored
        return self.was_reset

    def __getstate__(self) -> dict[str, Any]:
        """Without what is bound to columns of this process."""
        return {**super().__getstate__(), "encoders": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Bind again."""
        self.__dict__.update(state)
        self.encoders = [leaf.encoder() for leaf in self.observation_leaves]

    def __getattr__(self, name: str) -> Any:
        """Attributes of the environment underneath."""
        if name.startswith("_") or "_env" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if hasattr(type(self), name):  # a property of ours failed: show its own error
            return object.__getattribute__(self, name)
        env = self.__dict__["_env"]
        if hasattr(env, name):
            return getattr(env, name)
        if hasattr(env, "get_wrapper_attr") and env.has_wrapper_attr(name):
            return env.get_wrapper_attr(name)
        raise AttributeError(f"neither {type(self).__name__} nor {env} has an attribute {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, batch_size={list(self.batch_size)}, device={self.device})"


def _reward_shape(env: Any) -> tuple[int, ...]:
    """The shape of vector rewards (as MO-Gymnasium has them); empty where a reward is one number."""
    space = getattr(env.unwrapped, "reward_space", None)
    return tuple(space.shape) if isinstance(space, gymnasium.spaces.Box) else ()


def _name_of(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


class GymEnv(GymWrapper):
    """A gymnasium environment by its id.

    Args:
        env_name: the id, for example ``"CartPole-v1"``.
        categorical_action_encoding: as in :class:`GymWrapper`.
        num_envs: 0 for a single environment, else N environments as one of batch size ``[N]``.
        from_pixels: as in :class:`GymWrapper`; the render mode is set.
        pixels_only: as in :class:`GymWrapper`.
        frame_skip: as in :class:`GymWrapper`.
        device: as in :class:`GymWrapper`.
        missing_obs_value: as in :class:`GymWrapper`.
        backend: "gymnasium", the only one (None is the same).
        disable_env_checker: leave gymnasium's own checker out (it costs more than most simulators).
        vectorization_mode: "sync" (one after the other in this process), "async" (one process each) or
            "vector_entry_point" (the environment's own vector class).
        vector_kwargs: for gymnasium's AsyncVectorEnv or SyncVectorEnv.
        **gym_make_kwargs: for ``gymnasium.make``.

    Raises:
        UnknownNameError: no such id.
        PluginNotInstalledError: gymnasium, or what the environment needs, is not installed.

    Example:
        >>> GymEnv("CartPole-v1", num_envs=4).rollout(20, break_when_any_done=False).batch_size
        torch.Size([4, 20])
    """

    def __init__(
        self,
        env_name: str,
        categorical_action_encoding: bool = False,
        *,
        num_envs: int = 0,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int = 1,
        device: torch.device | str | None = None,
        disable_env_checker: bool = True,
        allow_done_after_reset: bool = False,
        missing_obs_value: float | None = None,
        backend: Any = None,
        vectorization_mode: str = "sync",
        vector_kwargs: dict[str, Any] | None = None,
        **gym_make_kwargs: Any,
    ) -> None:
        check_backend(backend)
        if from_pixels:
            gym_make_kwargs.setdefault("render_mode", "rgb_array")
        if num_envs:
            wrappers = [partial(FrameSkip, frame_skip=frame_skip)] if frame_skip != 1 else []
            env = make_vector(
                env_name, num_envs, vectorization_mode, wrappers, vector_kwargs, disable_env_checker, gym_make_kwargs
            )
            self._serial = vectorization_mode == "sync"
            if self._serial:
                env.env_fns = ()  # used up; gymnasium's local functions would keep the batch from pickling
            frame_skip = 1
        else:
            env = make_single(env_name, disable_env_checker, gym_make_kwargs)
        super().__init__(
            env,
            categorical_action_encoding,
            from_pixels=from_pixels,
            pixels_only=pixels_only,
            frame_skip=frame_skip,
            device=device,
            allow_done_after_reset=allow_done_after_reset,
            missing_obs_value=missing_obs_value,
        )
