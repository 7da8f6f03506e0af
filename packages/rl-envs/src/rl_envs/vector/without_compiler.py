"""Loads libraries without torch's compiler, which takes a worker process longer than all the rest but torch itself.

tensordict tells the compiler about some of its functions as it is loaded, and that loads the compiler. Here what it has
to say is kept, and told when something loads the compiler after all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

__all__ = ["compiler_left_out"]

_COMPILER = "torch._dynamo"
_TELLING = ("allow_in_graph", "assume_constant_result")  # of torch.compiler; both return the function they are given


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Until its end, what libraries tell torch's compiler is put off; only for processes that import nothing else."""
    import torch.compiler

    if _COMPILER in sys.modules:
        yield
        return
    whole = {name: getattr(torch.compiler, name) for name in _TELLING}
    later: list[tuple[str, Any]] = []
    for name in _TELLING:
        setattr(torch.compiler, name, _put_off(name, whole[name], later))
    try:
        yield
    finally:
        for name, tell in whole.items():
            setattr(torch.compiler, name, tell)
        sys.meta_path.insert(0, _Compiler(later))


def _put_off(name: str, tell: Callable[[Any], Any], later: list[tuple[str, Any]]) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        if _COMPILER in sys.modules:
            return tell(function)
        later.append((name, function))
        return function

    return note


class _Compiler(MetaPathFinder):
    """Finds the compiler, once, and sees to it that it is told."""

    def __init__(self, later: list[tuple[str, Any]]) -> None:
        self.later = later

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self.later)
        return spec


class _Telling(Loader):
    """Loads the compiler, then tells it."""

    def __init__(self, loader: Loader, later: list[tuple[str, Any]]) -> None:
        self.loader, self.later = loader, later

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        for name, function in self.later:
            getattr(module, name)(function)
