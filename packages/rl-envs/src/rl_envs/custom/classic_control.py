"""``ClassicControlEnv``: the base of gymnasium's classic control problems in torch, stateless and batched."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Bounded, Categorical, Composite, OneHot, TensorEnv, Unbounded
from rl_core.errors import EnvError, KeyMissingError

__all__ = ["ClassicControlEnv"]


class ClassicControlEnv(TensorEnv):
    """A problem of few numbers and few actions; subclasses define its physics on ``[*B]`` tensors.

    The state lies in the TensorDict, not in this object: a step reads it there, so any batch size works (unless
    ``num_envs`` fixes one), a state can be stored, copied and edited, and gradients flow through steps. Episodes end as
    the problem says; gymnasium's registered problems are also cut after some steps, as ``StepCounter(max_steps=...)``
    does.

    Args:
        num_envs: environments stepped together; None: any batch size, that of the TensorDict given to reset.
        categorical_action_encoding: actions as numbers int64 ``[*B]``; False: one-hot ``[*B, n]``.
        seed: of the first states; None draws them from torch's generator.
        device: where to compute.

    Raises:
        EnvError: ``num_envs`` is less than 1.
    """

    n_actions: ClassVar[int]
    state_key: ClassVar[str] = "observation"
    """The entry that holds the whole state."""

    def __init__(
        self,
        num_envs: int | None = None,
        *,
        categorical_action_encoding: bool = False,
        seed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if num_envs is not None and num_envs < 1:
            raise EnvError(f"{type(self).__name__} steps at least one environment; got num_envs={num_envs}")
        super().__init__(device=device, batch_size=[] if num_envs is None else [num_envs])
        self.batch_locked = num_envs is not None
        size, n = self.batch_size, self.n_actions
        self.categorical_action_encoding = categorical_action_encoding
        entries = {"observation": self.observation_bound()}
        if self.state_key != "observation":
            entries[self.state_key] = self.state_bound()
            self.state_spec = Composite({self.state_key: _bounded(self.state_bound(), size)}, shape=size)
        self.observation_spec = Composite({key: _bounded(bound, size) for key, bound in entries.items()}, shape=size)
        self.action_spec = Categorical(n, shape=size) if categorical_action_encoding else OneHot(n, shape=(*size, n))
        self.reward_spec = Unbounded(shape=(*size, 1), dtype=torch.float32)
        self._generator: torch.Generator | None = None
        if seed is not None:
            self.set_seed(seed)

    # ---------------------------------------------------------------- for subclasses
    @abstractmethod
    def observation_bound(self) -> Tensor:
        """The largest absolute value of each number of an observation, ``[F]``; infinite where there is none."""

    def state_bound(self) -> Tensor:
        """The same for the state, where it is another entry."""
        return self.observation_bound()

    @abstractmethod
    def first_state(self, uniform: Tensor) -> Tensor:
        """States ``[*B, S]`` at the start of episodes, of uniform numbers in [0, 1) of that shape."""

    @abstractmethod
    def advance(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step.

        Args:
            state: ``[*B, S]``.
            action: int64 ``[*B]``.

        Returns:
            the next state ``[*B, S]``, the reward ``[*B, 1]``, and bool ``[*B, 1]``: the episode terminates.
        """

    def observe(self, state: Tensor) -> Tensor:
        """What is seen of a state, ``[*B, F]``."""
        return state

    # ---------------------------------------------------------------- environment
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        batch = self.batch_size if tensordict is None else tensordict.batch_size
        count = self.state_bound().numel()
        uniform = torch.rand(*batch, count, generator=self._generator, device=self.device)
        return TensorDict(self._seen(self.first_state(uniform)), batch_size=batch, device=self.device)

    def _step_entries(self, entries: dict[str, Any]) -> dict[str, Any]:
        state, action = entries.get(self.state_key), entries["action"]
        if state is None:
            raise KeyMissingError(
                f"{type(self).__name__} is stateless: a step reads {self.state_key!r}; start with td = env.reset()"
            )
        if not self.categorical_action_encoding:
            action = action.to(torch.uint8).argmax(-1)
        state, reward, terminated = self.advance(state, action)
        return {**self._seen(state), "reward": reward, "terminated": terminated, "done": terminated.clone()}

    def _seen(self, state: Tensor) -> dict[str, Tensor]:
        seen = {"observation": self.observe(state)}
        return seen if self.state_key == "observation" else {**seen, self.state_key: state}

    def _set_seed(self, seed: int) -> None:
        """A generator of this environment's own, from then on."""
        self._generator = torch.Generator(self.device or "cpu").manual_seed(seed)


def _bounded(bound: Tensor, batch: torch.Size) -> Bounded:
    shape = (*batch, *bound.shape)
    return Bounded(low=(-bound).expand(shape), high=bound.expand(shape), shape=shape, dtype=torch.float32)
