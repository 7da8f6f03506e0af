"""``PixelRenderTransform``: what the environment renders, as an observation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase
from torch import Tensor

from rl_core import Bounded, Columns, Composite, EnvBase, NonTensor, RowProgram, TensorSpec, Transform, Unbounded
from rl_core.errors import EnvError
from rl_core.keys import Key, as_keys

__all__ = ["PixelRenderTransform"]


class PixelRenderTransform(Transform):
    """Calls ``env.render()`` after each reset and step, and writes the frame.

    Args:
        out_keys: where to write it; default ``["pixels"]`` (one key).
        preproc: a function of what was rendered, that gives an array or a tensor ``[*B, ...]``.
        as_non_tensor: write it as a non-tensor entry (one per environment of a batch); default: as a tensor.
        render_method: the environment's method.
        pass_tensordict: call it with the TensorDict.
        **kwargs: further arguments of the method.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_envs import GymEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1", render_mode="rgb_array"), PixelRenderTransform())
        >>> env.reset()["pixels"].shape
        torch.Size([400, 600, 3])
    """

    def __init__(
        self,
        out_keys: Key | Iterable[Key] | None = None,
        preproc: Callable[[Any], Any] | None = None,
        as_non_tensor: bool | None = None,
        render_method: str = "render",
        pass_tensordict: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__([], None)
        self.out_keys = ["pixels"] if out_keys is None else _one(out_keys)
        self.preproc, self.as_non_tensor, self.render_method = preproc, bool(as_non_tensor), render_method
        self.pass_tensordict, self.kwargs = pass_tensordict, kwargs
        self._on = True
        self._started = False  # whether the environment was reset through this transform
        self._leaf: TensorSpec | None = None

    # ---------------------------------------------------------------- rendering
    @property
    def enabled(self) -> bool:
        """Whether frames are rendered."""
        return self._on

    def switch(self, mode: str | bool | None = None) -> None:
        """Render ("on"), or leave frames and their spec out ("off"), as in training; None changes over."""
        if mode not in (None, True, False, "on", "off"):
            raise ValueError(f"switch takes 'on', 'off' or nothing, got {mode!r}")
        on = not self._on if mode is None else mode in (True, "on")
        if on != self._on:
            self._on = on
            container = self.container
            if container is not None:
                container.specs_changed()

    def set_container(self, owner: Any) -> None:
        """Take an owner; the size of its frames is found at the first use."""
        super().set_container(owner)
        self._leaf, self._started = None, False

    def _env(self) -> EnvBase:
        container = self.container
        if container is None:
            raise EnvError("PixelRenderTransform renders an environment; append it to one: TransformedEnv(env, ...)")
        return container

    def render(self, tensordict: TensorDictBase | None = None) -> Any:
        """What the environment renders now: a tensor ``[*B, ...]``, or non-tensor data."""
        env = self._env()
        base: Any = env.base_env
        method = getattr(base, self.render_method, None)
        if method is None:
            raise EnvError(f"{type(base).__name__} has no method {self.render_method!r}; give render_method=")
        frame = method(tensordict, **self.kwargs) if self.pass_tensordict else method(**self.kwargs)
        if self.preproc is not None:
            frame = self.preproc(frame)
        if frame is None:
            raise EnvError(
                f"{type(base).__name__}.{self.render_method}() gave no frame; make the environment with "
                'render_mode="rgb_array"'
            )
        batch = env.batch_size
        if self.as_non_tensor:
            return NonTensorStack.from_list(list(frame)) if len(batch) else NonTensorData(frame)
        value = frame if isinstance(frame, Tensor) else torch.from_numpy(np.array(frame))
        if value.shape[: len(batch)] != batch:
            raise EnvError(
                f"{type(base).__name__} rendered shape {tuple(value.shape)} for the batch size {tuple(batch)}; give a "
                "preproc that makes one frame for each environment"
            )
        return value if env.device is None else value.to(env.device)

    def _write(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set(self.out_keys[0], self.render(tensordict)) if self._on else tensordict

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._started = True
        return self._write(tensordict_reset)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._write(next_tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data have nothing to render; they pass."""
        return tensordict

    # ---------------------------------------------------------------- specs
    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the frame, whose size one rendered frame says."""
        if not self._on:
            return observation_spec
        if self.out_keys[0] in observation_spec:
            raise EnvError(
                f"the environment already has {self.out_keys[0]!r}; give PixelRenderTransform other out_keys"
            )
        if self._leaf is None:
            self._leaf = self._measured(observation_spec.shape)
        observation_spec.set(self.out_keys[0], self._leaf.clone())
        return observation_spec

    def _measured(self, batch: torch.Size) -> TensorSpec:
        if self.as_non_tensor:
            return NonTensor(shape=batch)
        frame = self._sample()
        if frame.dtype == torch.uint8:
            return Bounded(low=0, high=255, shape=frame.shape, dtype=torch.uint8, device=frame.device)
        return Unbounded(shape=frame.shape, dtype=frame.dtype, device=frame.device)

    def _sample(self) -> Tensor:
        """One frame. Simulators render nothing before their first reset; the environment takes no note of this one."""
        base: Any = self._env().base_env
        if not self._started and not getattr(base, "was_reset", False):
            simulator = getattr(base, "_env", None)
            generator, saved = torch.random.get_rng_state(), base.state_dict()
            (base if simulator is None else simulator).reset()
            base.load_state_dict(saved)
            torch.random.set_rng_state(generator)
        frame: Tensor = self.render()
        return frame

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True, for tensors of no TensorDict."""
        return not self.as_non_tensor and not self.pass_tensordict

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Renders into a row."""
        if not self._on:
            return RowProgram(lambda t: None, lambda t, mask: None)
        target = after.tensors[self.out_keys[0]]

        def step(t: int) -> None:
            target[t + 1] = self.render()

        def reset(t: int, mask: np.ndarray | None) -> None:
            frame = self.render()
            if mask is None:
                target[t] = frame
            else:
                rows = torch.from_numpy(mask)
                target[t][rows] = frame[rows]

        return RowProgram(step, reset)


def _one(out_keys: Key | Iterable[Key]) -> list[Key]:
    keys = as_keys(out_keys)
    if len(keys) != 1:
        raise ValueError(f"PixelRenderTransform writes one entry, got the out_keys {keys}")
    return keys
