"""Making PettingZoo environments by id, with errors that name the cure."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
from typing import Any

from rl_core.errors import EnvError, PluginNotInstalledError, UnknownNameError
from rl_core.registry.errors_text import close_match
from rl_marl.pettingzoo.library import pettingzoo

__all__ = ["all_ids", "make_game"]

_FAMILIES = {
    "butterfly": "pettingzoo.butterfly",
    "classic": "pettingzoo.classic",
    "sisl": "pettingzoo.sisl",
    "atari": "pettingzoo.atari",
    "mpe2": "mpe2",
    "mpe": "mpe2",
}
_VERSIONED = re.compile(r"_v\d+$")


def all_ids() -> list[str]:
    """Every id of PettingZoo and, where it is installed, of mpe2: ``"family/name_vN"``."""
    return sorted(f"{family}/{name}" for family in _FAMILIES if family != "mpe" for name in _names(family))


def _names(family: str) -> list[str]:
    package = importlib.util.find_spec(_FAMILIES[family])
    folders = [] if package is None else list(package.submodule_search_locations or [])
    return [module.name for module in pkgutil.iter_modules(folders) if _VERSIONED.search(module.name)]


def make_game(task: str, parallel: bool | None, kwargs: dict[str, Any]) -> Any:
    """The PettingZoo environment of an id.

    Args:
        task: ``"family/name_vN"`` with the family butterfly, classic, sisl, atari or mpe2 ("mpe" is read as mpe2); a
            bare ``"name_vN"``; or the dotted path of a module that has ``env`` or ``parallel_env``.
        parallel: use the parallel API (True), the turn-based one (False), or the parallel one where the task has it.
        kwargs: for the task's constructor.

    Raises:
        UnknownNameError: there is no such task.
        PluginNotInstalledError: what the task needs is not installed.
        EnvError: the task does not have the API that was asked for.
    """
    module = _module_of(task)
    makers = {True: getattr(module, "parallel_env", None), False: getattr(module, "env", None)}
    if parallel is None:
        parallel = makers[True] is not None
    make = makers[parallel]
    if make is None:
        asked, other = ("parallel_env", "False") if parallel else ("env", "True")
        raise EnvError(f"{task} has no {asked!r}; pass parallel={other}")
    try:
        return make(**kwargs)
    except ModuleNotFoundError as error:
        raise _missing(task, error) from error


def _module_of(task: str) -> Any:
    family, slash, name = task.rpartition("/")
    if slash and family not in _FAMILIES:
        raise UnknownNameError(
            f"PettingZoo has no family {family!r}{close_match(family, _FAMILIES)}; the families are "
            f"{', '.join(sorted(_FAMILIES))}"
        )
    if not slash and "." in task:
        return _imported(task, task)
    homes = [family] if slash else [known for known in _FAMILIES if known != "mpe"]
    for home in homes:
        if name in _names(home):
            return _imported(f"{_FAMILIES[home]}.{name}", task)
    if "mpe2" in homes or "mpe" in homes:
        _require_mpe2(task)
    raise UnknownNameError(
        f"PettingZoo {pettingzoo.__version__} has no task {task!r}{close_match(task, all_ids())}. Every id: "
        "rl_marl.pettingzoo.provider.PettingZooProvider().ids(). Of one name only the newest version may be there"
    )


def _require_mpe2(task: str) -> None:
    if importlib.util.find_spec("mpe2") is None:
        raise PluginNotInstalledError(
            f"{task!r} may be one of the particle environments, which have moved to a package of their own: "
            "pip install 'rl-marl[mpe]'"
        )


def _imported(path: str, task: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if path == task and error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            raise UnknownNameError(f"there is no module {path!r} to make a PettingZoo environment of") from error
        raise _missing(task, error) from error


def _missing(task: str, error: ModuleNotFoundError) -> PluginNotInstalledError:
    family = task.partition("/")[0]
    cure = "mpe2" if family in ("mpe", "mpe2") else f"pettingzoo[{family}]" if "/" in task else str(error.name)
    return PluginNotInstalledError(f"{task} needs the module {error.name!r}, which is absent: pip install '{cure}'")
