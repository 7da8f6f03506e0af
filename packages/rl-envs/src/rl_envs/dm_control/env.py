"""``DMControlWrapper`` and ``DMControlEnv``: dm_control's tasks, and other dm_env environments, as ours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rl_core import ArrayEnv, Bounded, Categorical, Columns, Composite, RowProgram, Unbounded
from rl_core.errors import EnvError
from rl_core.registry import unknown_id
from rl_envs.dm_control.library import control, dm_env, suite
from rl_envs.dm_control.rows import dm_program
from rl_envs.dm_control.specs import composite, leaves_of

__all__ = ["DMControlEnv", "DMControlWrapper"]


class DMControlWrapper(ArrayEnv):
    """A ``dm_env.Environment`` as an rl-core environment.

    The observations' names are keys at the root (a single array is "observation"). An episode that ends with the
    discount 0 is terminated; any other end, as that of a time limit, is a truncation. Rewards are float32 ``[1]``;
    observations and actions keep the dtype that is declared, float64 in dm_control, unless ``dtype`` says otherwise.
    Attributes of the environment underneath (``physics``, ``task``) are reachable through this one.

    Frames are drawn by MuJoCo, which reads the variable MUJOCO_GL before its first import: "egl" needs no screen,
    "glfw" has one, "osmesa" works without any driver and is slow.

    Args:
        env: the environment; it is closed with this one.
        from_pixels: write the frame as "pixels", uint8 ``[H, W, 3]``.
        pixels_only: with ``from_pixels``, leave the other observations out.
        frame_skip: control steps per step, on which the action is repeated and the rewards are summed.
        camera_id: number or name of the camera; by default 0.
        render_kwargs: for ``physics.render``: ``height`` (240), ``width`` (320), ``scene_option`` ...
        categorical_action_encoding: write choices as numbers instead of one-hot vectors.
        dtype: of floating-point observations and actions; None keeps what is declared.
        seed_with: ``seed_with(seed)`` seeds the simulator; by default the generator of dm_control's task is.
        device: where tensors are moved; None leaves them on the CPU.

    Raises:
        EnvError: the environment cannot be used as it is; the message says what to change.

    Example:
        >>> from dm_control import suite
        >>> env = DMControlWrapper(suite.load("cartpole", "swingup"), dtype=torch.float32)
        >>> env.rollout(3)["position"].shape
        torch.Size([3, 3])

    Tunyasuvunakool et al., 2020, dm_control: Software and Tasks for Continuous Control, arXiv:2006.12983.
    """

    def __init__(
        self,
        env: Any,
        *,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int = 1,
        camera_id: int | str | None = None,
        render_kwargs: dict[str, Any] | None = None,
        categorical_action_encoding: bool = False,
        dtype: torch.dtype | None = None,
        seed_with: Callable[[int], Any] | None = None,
        device: torch.device | str | None = None,
        allow_done_after_reset: bool = False,
    ) -> None:
        if not isinstance(env, dm_env.Environment):
            raise TypeError(f"DMControlWrapper takes a dm_env.Environment, got {type(env).__name__}")
        if frame_skip < 1:
            raise ValueError(f"frame_skip is the number of control steps per step, at least 1; got {frame_skip}")
        super().__init__(device=device, batch_size=[], allow_done_after_reset=allow_done_after_reset)
        self._env = env
        self.name = f"{type(env).__name__}({type(env.task).__name__})" if _has_task(env) else type(env).__name__
        self.frame_skip, self.from_pixels = frame_skip, from_pixels
        self.render_kwargs = {"height": 240, "width": 320, **(render_kwargs or {})}
        if camera_id is not None or "camera_id" not in self.render_kwargs:
            self.render_kwargs["camera_id"] = 0 if camera_id is None else camera_id
        self._seed_with = seed_with
        self._seed: int | None = None
        self.running = [False]
        self.was_reset = False
        self._read_specs(categorical_action_encoding, dtype, from_pixels and pixels_only)

    def _read_specs(self, categorical: bool, dtype: torch.dtype | None, pixels_only: bool) -> None:
        self.action_leaves = leaves_of(self._env.action_spec(), "action", categorical, dtype, ("action",))
        observed = leaves_of(self._env.observation_spec(), "observation", categorical, dtype)
        self.observation_leaves = [] if pixels_only else observed
        spec = composite(self.observation_leaves)
        if self.from_pixels:
            if "pixels" in spec:
                raise EnvError(f"{self.name} has an observation 'pixels' already; leave from_pixels out")
            frame = (self.render_kwargs["height"], self.render_kwargs["width"], 3)
            spec.set("pixels", Bounded(low=0, high=255, shape=frame, dtype=torch.uint8))
        self.observation_spec = spec
        self.full_action_spec = composite(self.action_leaves)
        self.reward_spec = Unbounded(shape=(1,), dtype=torch.float32)
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self.done_spec = Composite({name: flag.clone() for name in ("done", "terminated", "truncated")}, shape=())

    # ---------------------------------------------------------------- stepping
    def row_program(self, columns: Columns) -> RowProgram:
        """Bind the simulator to columns."""
        return dm_program(self, columns)

    def render(self) -> np.ndarray:
        """The frame of the present state, uint8 ``[H, W, 3]``."""
        frame: np.ndarray = self._env.physics.render(**self.render_kwargs)
        return frame

    # ---------------------------------------------------------------- seeds
    def _set_seed(self, seed: int) -> None:
        """The next reset seeds the task's generator, from which every later episode is drawn as well."""
        if self._seeder() is None:
            raise EnvError(
                f"{self.name} has no generator that is known here; give the wrapper seed_with=function(seed), or seed "
                "it where it is made"
            )
        self._seed = seed

    def before_reset(self) -> None:
        """Seed where that is due; called once per reset. Without a seed, the first reset draws one from torch's."""
        seeder = self._seeder()
        if self._seed is None and not self.was_reset and seeder is not None:
            self._seed = int(torch.randint(2**31 - 1, ()).item())
        if self._seed is not None and seeder is not None:
            seeder(self._seed % 2**32)
            self._seed = None
        self.was_reset = True

    def _seeder(self) -> Callable[[int], Any] | None:
        if self._seed_with is not None:
            return self._seed_with
        if isinstance(self._env, control.Environment):
            seed: Callable[[int], Any] = self._env.task.random.seed
            return seed
        composer = sys.modules.get("dm_control.composer")  # imported by who made such an environment
        if composer is not None and isinstance(self._env, composer.Environment):
            seed = self._env.random_state.seed
            return seed
        return None

    def _reset_options(self, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - {"seed"})
        if unknown:
            raise TypeError(f"reset of {self.name} takes seed=, not {', '.join(unknown)}")
        seed = kwargs["seed"]
        if isinstance(seed, Sequence):
            if len(seed) != 1:
                raise ValueError(f"{len(seed)} seeds for 1 environment; give one integer")
            (seed,) = seed
        if seed is not None:
            self._set_seed(int(seed))

    # ---------------------------------------------------------------- life
    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the simulator."""
        if not self.is_closed:
            self._env.close()
        super().close(raise_if_closed=raise_if_closed)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the environment underneath."""
        if name.startswith("_") or "_env" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if hasattr(type(self), name):  # a property of ours failed: show its own error
            return object.__getattribute__(self, name)
        return getattr(self.__dict__["_env"], name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, batch_size=[], device={self.device})"


def _has_task(env: Any) -> bool:
    return isinstance(env, control.Environment)


class DMControlEnv(DMControlWrapper):
    """A task of dm_control's suite by its names.

    Args:
        env_name: the domain, for example "cheetah".
        task_name: the task, for example "run".
        task_kwargs: for the task, for example ``{"time_limit": 5}``.
        environment_kwargs: for dm_control's environment, for example ``{"flat_observation": True}``.
        visualize_reward: colour the frames by the reward.
        **wrapper_kwargs: as of :class:`DMControlWrapper`.

    Raises:
        UnknownNameError: no such task.

    Example:
        >>> DMControlEnv("cheetah", "run").action_spec.shape
        torch.Size([6])
    """

    def __init__(
        self,
        env_name: str,
        task_name: str,
        *,
        task_kwargs: dict[str, Any] | None = None,
        environment_kwargs: dict[str, Any] | None = None,
        visualize_reward: bool = False,
        **wrapper_kwargs: Any,
    ) -> None:
        if (env_name, task_name) not in suite.ALL_TASKS:
            raise unknown_id("dm_control", f"{env_name}-{task_name}", ["-".join(names) for names in suite.ALL_TASKS])
        env = suite.load(env_name, task_name, task_kwargs, environment_kwargs, visualize_reward)
        super().__init__(env, **wrapper_kwargs)
        self.name = f"{env_name}-{task_name}"
