"""``EnvCreator``: a function that makes environments, as an object that can be sent to workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rl_core import EnvBase
from rl_core.errors import EnvError
from rl_envs.vector.makers import Maker, makers_of, pack, unpack
from rl_envs.vector.members import Description

__all__ = ["EnvCreator", "env_creator"]


class EnvCreator:
    """Makes environments; those that it makes start with one state, such as the statistics of their transforms.

    At its construction it makes one environment and keeps that one's state and specs. With ``share_memory`` the state's
    tensors lie in memory that processes share, so that :meth:`load_state_dict` here reaches the environments that are
    made later, wherever that is. The creator can be pickled, lambdas included where cloudpickle is installed.

    Args:
        create_env_fn: a function, an ``EnvRef``, or a name such as ``"gym:CartPole-v1"``.
        create_env_kwargs: arguments for it.
        share_memory: put the state's tensors into shared memory.
        **kwargs: further arguments for it.

    Raises:
        EnvError: what is made is no environment.

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> make = EnvCreator(CountingEnv, length=3)
        >>> make().rollout(9).batch_size, make.make_variant(length=2)().rollout(9).batch_size
        (torch.Size([3]), torch.Size([2]))
    """

    def __init__(
        self,
        create_env_fn: Callable[..., EnvBase] | str,
        create_env_kwargs: Mapping[str, Any] | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        given = {**(create_env_kwargs or {}), **kwargs}
        (self.maker,) = makers_of(type(self).__name__, 1, create_env_fn, given)
        self.share_memory = share_memory
        env = self.maker()
        try:
            self.meta_data = Description.of(env)
            self._state = _copied(env.state_dict(), share_memory)
        finally:
            env.close()

    def __call__(self, **kwargs: Any) -> EnvBase:
        """Make an environment.

        Args:
            **kwargs: take the place of the stored arguments.
        """
        env = Maker(self.maker.source, {**self.maker.kwargs, **kwargs})()
        if _holds_tensors(self._state):
            env.load_state_dict(_copied(self._state, False))
        return env

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """A creator of environments with some other arguments."""
        return EnvCreator(self.maker.source, {**self.maker.kwargs, **kwargs}, self.share_memory)

    def state_dict(self) -> dict[str, Any]:
        """The state that environments start with."""
        return _copied(self._state, False)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Give the environments that are made from now on another state.

        Raises:
            EnvError: the state has other entries than an environment's.
        """
        _write(self._state, state_dict, "state")

    def __getstate__(self) -> dict[str, Any]:
        """The function travels by value where it cannot be imported elsewhere."""
        return {**self.__dict__, "maker": pack([self.maker])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.maker,) = unpack(state["maker"])

    def __repr__(self) -> str:
        return f"EnvCreator({self.maker.source!r}, {dict(self.maker.kwargs)!r})"


def env_creator(function: Callable[..., EnvBase]) -> EnvCreator:
    """:class:`EnvCreator` as a decorator of a function that makes an environment."""
    return EnvCreator(function)


def _copied(state: Any, share: bool) -> Any:
    """A state with tensors of its own."""
    if isinstance(state, Tensor):
        copy = state.detach().cpu().clone()
        return copy.share_memory_() if share and copy.numel() else copy
    if isinstance(state, Mapping):
        return {key: _copied(value, share) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copied(value, share) for value in state)
    return state


def _holds_tensors(state: Any) -> bool:
    if isinstance(state, Mapping):
        return any(_holds_tensors(value) for value in state.values())
    if isinstance(state, list | tuple):
        return any(_holds_tensors(value) for value in state)
    return isinstance(state, Tensor)


def _write(target: dict[str, Any], source: Mapping[str, Any], where: str) -> None:
    """Write a state over another one, tensors in place."""
    if set(target) != set(source):
        raise EnvError(
            f"the {where} of the creator's environments has the entries {', '.join(map(repr, target)) or 'none'}, the "
            f"one given has {', '.join(map(repr, source)) or 'none'}"
        )
    for key, value in source.items():
        mine = target[key]
        if isinstance(mine, dict) and isinstance(value, Mapping):
            _write(mine, value, f"{where}[{key!r}]")
        elif isinstance(mine, Tensor) and isinstance(value, Tensor) and mine.shape == value.shape:
            with torch.no_grad():
                mine.copy_(value)
        else:
            target[key] = _copied(value, False)
