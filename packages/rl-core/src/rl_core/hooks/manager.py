"""The hook manager: pluggy's, in which a broken plugin is left out with one warning instead of stopping everyone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pluggy

from rl_core.errors import PluginError, WrongKindError
from rl_core.hooks.markers import PROJECT
from rl_core.hooks.specs import CommandHooks, DoctorHooks, RunHooks
from rl_core.registry.errors_text import close_match
from rl_core.registry.switches import is_strict

__all__ = ["HookManager", "PluginWarning"]


class PluginWarning(UserWarning):
    """A hook plugin is left out."""


class HookManager(pluggy.PluginManager):
    """The hooks and the plugins that react to them.

    Attributes:
        failures: what was left out and why, by the plugin's name (``"dist/name"`` for an installed one).
    """

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.failures: dict[str, PluginError] = {}
        self._callers: dict[str, pluggy.HookCaller] = {}
        self._plans: dict[str, tuple[pluggy.HookImpl, ...]] = {}
        for specs in (RunHooks, CommandHooks, DoctorHooks):
            self.add_hookspecs(specs)
        for spec in (RunHooks, CommandHooks, DoctorHooks):
            self._callers |= {name: getattr(self.hook, name) for name in vars(spec) if not name.startswith("_")}

    def register(self, plugin: Any, name: str | None = None) -> str | None:
        """Let a plugin react from now on.

        Raises:
            WrongKindError: nothing in it is marked with ``hookimpl``, or it marks a hook that does not exist.
            PluginError: a function asks for an argument that its hook does not have.
        """
        self._plans.clear()
        try:
            registered = super().register(plugin, name)
        except pluggy.PluginValidationError as error:
            self._remove(plugin)
            raise PluginError(str(error).replace("\n", "; ")) from error
        callers = self.get_hookcallers(plugin) or []
        if any(_is_wrapper(caller, plugin) for caller in callers):
            self._remove(plugin)
            raise WrongKindError(
                f"{registered} marks a hook wrapper; each plugin is called on its own, so nothing can be wrapped"
            )
        unknown = [caller.name for caller in callers if not _is_known(caller, plugin)]
        if unknown or not callers:
            self._remove(plugin)
            raise _not_a_hook_plugin(plugin, registered, unknown, list(self._callers))
        return registered

    def unregister(self, plugin: Any = None, name: str | None = None) -> Any:
        """Take a plugin out."""
        self._plans.clear()
        return super().unregister(plugin, name)

    def add(self, name: str, plugin: Any, dist: str) -> None:
        """Register an installed plugin; a fault of it is one warning, or an error in strict mode."""
        try:
            self.register(plugin, name)
        except PluginError as error:
            self.leave_out(name, dist, error)

    def leave_out(self, name: str, dist: str | None, error: PluginError) -> None:
        """Note a fault and go on without the plugin.

        Raises:
            PluginError: the fault itself, where ``RL_STRICT_PLUGINS=1``.
        """
        self.failures[name] = error
        if is_strict():
            raise error
        cure = f"rl doctor {dist}, or turn it off with RL_DISABLE_PLUGINS={dist}" if dist else "unregister it"
        warnings.warn(f"the hook plugin {name} is left out: {error}. Cure: {cure}", PluginWarning, stacklevel=4)

    def fire(self, hook: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Call every plugin's function of this hook; see :func:`rl_core.hooks.call`."""
        plan = self._plans.get(hook)
        if plan is None:
            plan = self._plan(hook)
        results: list[Any] = []
        for implementation in plan:
            try:
                given = [arguments[argument] for argument in implementation.argnames]
            except KeyError as missing:
                raise PluginError(f"the hook {hook} was called without its argument {missing}") from None
            try:
                result = implementation.function(*given)
            except Exception as cause:
                self._failed(implementation, hook, cause)
            else:
                if result is not None:
                    results.append(result)
        return results

    def _plan(self, hook: str) -> tuple[pluggy.HookImpl, ...]:
        """The functions of a hook in the order of their calls; kept until a plugin comes or goes."""
        if hook not in self._callers:
            known = ", ".join(self._callers)
            raise PluginError(f"no hook is named {hook!r}{close_match(hook, self._callers)}; hooks: {known}")
        self._plans[hook] = plan = tuple(reversed(self._callers[hook].get_hookimpls()))
        return plan

    def _failed(self, implementation: pluggy.HookImpl, hook: str, cause: Exception) -> None:
        """A plugin's function raised: it is left out from now on."""
        self._remove(implementation.plugin)
        name = implementation.plugin_name
        dist = name.partition("/")[0] if "/" in name else None
        error = PluginError(f"its {hook} raised {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        self.leave_out(name, dist, error)

    def _remove(self, plugin: Any) -> None:
        if self.get_name(plugin) is not None:
            self.unregister(plugin)


def _is_known(caller: pluggy.HookCaller, plugin: Any) -> bool:
    return caller.has_spec() or any(i.optionalhook for i in caller.get_hookimpls() if i.plugin is plugin)


def _is_wrapper(caller: pluggy.HookCaller, plugin: Any) -> bool:
    return any(i.hookwrapper or i.wrapper for i in caller.get_hookimpls() if i.plugin is plugin)


def _not_a_hook_plugin(plugin: Any, name: str | None, unknown: list[str], hooks: list[str]) -> PluginError:
    if unknown:
        asked = ", ".join(f"{hook!r}{close_match(hook, hooks)}" for hook in unknown)
        return WrongKindError(f"{name} implements hooks that this rl-core does not have: {asked}")
    return WrongKindError(f"{name} ({type(plugin).__name__}) has no function that is marked with rl_core.hookimpl")
