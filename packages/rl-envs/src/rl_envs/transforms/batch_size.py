"""``BatchSizeTransform``: gives an environment a batch size, or reshapes the one it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDict, TensorDictBase

from rl_core import Composite, Transform
from rl_core.errors import EnvError

__all__ = ["BatchSizeTransform"]


class BatchSizeTransform(Transform):
    """Fixes the batch size of a stateless environment, or reshapes that of any other.

    Args:
        batch_size: of an environment that takes any (``batch_locked=False``); it is fixed from then on.
        reshape_fn: of a TensorDict to the same in another batch shape, such as ``lambda td: td.reshape(2, -1)``.
            Transforms stand after this one, where it reshapes, and not ahead of it.
        reset_func: ``reset_func(tensordict, tensordict_reset)`` makes a TensorDict of the batch size from what the
            environment's reset wrote, where that does not have it.
        env_kwarg: not supported: False. An environment that takes its batch size as an argument is made with it.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_envs import PendulumEnv
        >>> TransformedEnv(PendulumEnv(), BatchSizeTransform(batch_size=[4])).rollout(3).shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        *,
        batch_size: Sequence[int] | torch.Size | None = None,
        reshape_fn: Callable[[TensorDictBase], TensorDictBase] | None = None,
        reset_func: Callable[[TensorDictBase | None, TensorDictBase], TensorDictBase] | None = None,
        env_kwarg: bool = False,
    ) -> None:
        super().__init__()
        if (batch_size is None) == (reshape_fn is None):
            raise ValueError("BatchSizeTransform takes a batch_size or a reshape_fn: one of them")
        if env_kwarg:
            raise ValueError(
                "BatchSizeTransform(env_kwarg=True) is not supported; make the environment with its batch size"
            )
        if reset_func is not None and batch_size is None:
            raise ValueError("reset_func makes a given batch_size; with reshape_fn there is none to make")
        self.size = None if batch_size is None else torch.Size(batch_size)
        self.reshape_fn, self.reset_func = reshape_fn, reset_func
        self._inner: torch.Size | None = None

    # ---------------------------------------------------------------- batch sizes
    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The new batch size.

        Raises:
            EnvError: the environment has one already, or the function changes the number of rows.
        """
        self._inner = batch_size
        if self.size is not None:
            if len(batch_size):
                raise EnvError(
                    f"BatchSizeTransform(batch_size={tuple(self.size)}) needs an environment without one; this one has "
                    f"{tuple(batch_size)}. Reshape it: BatchSizeTransform(reshape_fn=lambda td: td.reshape(...))"
                )
            return self.size
        outer = self._reshaped(TensorDict(batch_size=batch_size)).batch_size
        if outer.numel() != batch_size.numel():
            raise EnvError(f"the reshape_fn of BatchSizeTransform made {tuple(outer)} from {tuple(batch_size)}")
        return outer

    def transform_env_batch_locked(self, batch_locked: bool) -> bool:
        """True.

        Raises:
            EnvError: a batch size is to be given to an environment that has its own.
        """
        if self.size is not None and batch_locked:
            raise EnvError(
                "BatchSizeTransform(batch_size=...) needs an environment that takes any batch size "
                "(batch_locked=False); make a batch of others with SerialEnv or ParallelEnv"
            )
        return True

    def _reshaped(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert self.reshape_fn is not None  # a batch size is given otherwise
        return self.reshape_fn(tensordict)

    def _back(self, tensordict: TensorDictBase) -> TensorDictBase:
        assert self._inner is not None  # the environment asked for the batch size
        return tensordict.exclude("next").reshape(self._inner)

    # ---------------------------------------------------------------- data
    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        if self.size is not None:
            return TensorDict(batch_size=self.size) if tensordict is None else tensordict
        return None if tensordict is None else self._back(tensordict)

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self.size is None:
            return self._reshaped(tensordict_reset)
        if self.reset_func is not None:
            tensordict_reset = self.reset_func(tensordict, tensordict_reset)
        if tensordict_reset.batch_size != self.size:
            raise EnvError(
                f"the environment's reset wrote the batch size {tuple(tensordict_reset.batch_size)}, not "
                f"{tuple(self.size)}; give BatchSizeTransform a reset_func that makes it"
            )
        return tensordict_reset

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict if self.size is not None else self._back(tensordict)

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict if self.size is not None else self._reshaped(next_tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data stay as they are."""
        return tensordict

    # ---------------------------------------------------------------- specs
    def _spec(self, spec: Composite) -> Composite:
        if self.size is not None:
            return spec.expand(self.size)
        return spec.reshape(self._reshaped(TensorDict(batch_size=spec.shape)).batch_size)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """With the batch size."""
        return self._spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """With the batch size."""
        return self._spec(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """With the batch size."""
        return self._spec(done_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """With the batch size."""
        return self._spec(action_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """With the batch size."""
        return self._spec(state_spec)

    @property
    def supports_rows(self) -> bool:
        """False."""
        return False
