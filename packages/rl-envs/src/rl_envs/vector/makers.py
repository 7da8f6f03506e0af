"""What makes the environments of a batch: names, references and functions, checked, and written down for workers."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rl_core import registry
from rl_core.errors import EnvError, RLError

if TYPE_CHECKING:
    from rl_core import EnvBase

__all__ = ["Maker", "Parcel", "makers_of", "pack", "unpack"]

EnvSource = Any
"""``"gym:CartPole-v1"``, an EnvRef, an EnvCreator, or any function that returns an environment."""


@dataclass(frozen=True)
class Maker:
    """Makes one environment of a batch.

    Attributes:
        source: a registry name, or a callable.
        kwargs: arguments for it.
    """

    source: EnvSource
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> EnvBase:
        from rl_core import EnvBase  # here: a worker loads what its environments need, and nothing before

        if isinstance(self.source, str):
            env = registry.envs.make(self.source, **self.kwargs)
        else:
            env = self.source(**self.kwargs)
        if not isinstance(env, EnvBase):
            raise EnvError(
                f"create_env_fn returned {type(env).__name__}, not an environment (EnvBase); wrap it, as in "
                "lambda: GymWrapper(gymnasium.make(...))"
            )
        return env


def makers_of(name: str, count: int, create_env_fn: EnvSource | Sequence[EnvSource], kwargs: Any = None) -> list[Maker]:
    """One maker for each environment of a batch.

    Args:
        name: who asks, for messages.
        count: the number of environments.
        create_env_fn: one source for all of them, or a sequence with one for each.
        kwargs: arguments for the source, or a sequence with a dictionary for each environment.

    Raises:
        ValueError: the count is not positive, or a sequence has another length.
        EnvError: a source is an environment already, or nothing that makes one.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name} needs the number of environments, an integer >= 1; got {count!r}")
    sources = _one_each(name, "create_env_fn", create_env_fn, count)
    arguments = _one_each(name, "create_env_kwargs", {} if kwargs is None else kwargs, count)
    for source in sources:
        _check_source(name, source)
    return [Maker(source, dict(own or {})) for source, own in zip(sources, arguments, strict=True)]


def _one_each(name: str, argument: str, given: Any, count: int) -> list[Any]:
    if not isinstance(given, list | tuple):
        return [given] * count
    if len(given) != count:
        raise ValueError(f"{name} has {count} environments and got {len(given)} entries of {argument}; give one each")
    return list(given)


def _check_source(name: str, source: Any) -> None:
    from rl_core import EnvBase

    if isinstance(source, EnvBase):
        raise EnvError(
            f"{name} makes its environments itself and got one that exists already, {source!r}; give it a function: "
            f"{name}(n, lambda: {type(source).__name__}(...)), or a name such as 'gym:CartPole-v1'"
        )
    if not isinstance(source, str) and not callable(source):
        raise EnvError(
            f"create_env_fn is a function that returns an environment, an EnvRef, or a name such as "
            f"'gym:CartPole-v1'; got {type(source).__name__}"
        )


# --------------------------------------------------------------------------------------------------- to other processes
@dataclass(frozen=True)
class Parcel:
    """Makers as bytes for a new process.

    Attributes:
        content: what :func:`pickle.loads` takes.
        needs_main: the content names functions of the main script, which the process must import first.
    """

    content: bytes
    needs_main: bool = False


def pack(makers: Sequence[Maker]) -> Parcel:
    """Write makers down for a process that shares no memory with this one.

    Functions that such a process cannot import (lambdas, those of a notebook or of the main script) travel by value,
    which takes cloudpickle.

    Raises:
        EnvError: a function can travel neither way.
    """
    cloudpickle = _cloudpickle()
    strangers = _strangers(makers)
    if not strangers:
        try:
            content = pickle.dumps(list(makers))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if cloudpickle is None:
                raise _cannot_travel(makers, error) from error
        else:
            if b"__main__" not in content:
                return Parcel(content)
            if cloudpickle is None:
                return Parcel(content, needs_main=True)
    elif cloudpickle is None:
        raise _cannot_travel(makers, f"its module {strangers[0]} cannot be imported by name elsewhere")
    try:
        with _by_value(cloudpickle, strangers):
            return Parcel(cloudpickle.dumps(list(makers)))
    except RLError:
        raise
    except Exception as error:
        raise _cannot_travel(makers, error) from error


def unpack(parcel: Parcel) -> list[Maker]:
    """The makers again."""
    makers: list[Maker] = pickle.loads(parcel.content)
    return makers


def _cloudpickle() -> Any:
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")
    except ModuleNotFoundError:
        return None
    return cloudpickle


def _cannot_travel(makers: Sequence[Maker], why: object) -> EnvError:
    cure = "" if _cloudpickle() is not None else "pip install 'rl-envs[cloudpickle]'; "
    return EnvError(
        f"create_env_fn {_first_function(makers)!r} cannot be sent to a worker process ({why}). {cure}or use a "
        "function at the top level of a module, or a name such as EnvRef('gym:CartPole-v1'), or "
        "mp_start_method='fork', which sends nothing"
    )


def _functions(maker: Maker) -> Iterator[Callable[..., Any]]:
    source = maker.source
    while isinstance(source, partial):
        source = source.func
    if callable(source):
        yield source


def _first_function(makers: Sequence[Maker]) -> Any:
    return next((found for maker in makers for found in _functions(maker)), makers[0].source)


def _strangers(makers: Sequence[Maker]) -> list[str]:
    """Modules of the functions that another process could not import by their names."""
    names = {str(getattr(function, "__module__", None)) for maker in makers for function in _functions(maker)}
    return sorted(name for name in names if name in sys.modules and name != "__main__" and not _can_be_imported(name))


def _can_be_imported(name: str) -> bool:
    """Whether another process would find the module on the path, and not only in this one's ``sys.modules``."""
    if getattr(sys.modules[name], "__file__", None) is None:
        return True  # built in
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        return False
    path = getattr(sys.modules[parent], "__path__", None) if parent else None
    return any(finder.find_spec(name, path, None) is not None for finder in sys.meta_path)


@contextmanager
def _by_value(cloudpickle: Any, modules: Sequence[str]) -> Iterator[None]:
    for name in modules:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        yield
    finally:
        for name in modules:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
