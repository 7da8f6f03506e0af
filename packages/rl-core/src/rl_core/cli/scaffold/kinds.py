"""What a new plugin can hold: for each kind its entry point, its files, and how a user finds it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """One kind of object; ``my_plugin``, ``MyPlugin`` and ``my_name`` stand for the plugin's own names.

    Args:
        noun: one such object, in words.
        group: its entry-point group, without ``rl_core.``.
        target: where the entry point leads.
        found: how a user finds it.
        modules: the modules of the package that it takes, the one to edit first.
        test: the test file.
    """

    noun: str
    group: str
    target: str
    found: str
    modules: tuple[str, ...]
    test: str


def _class_of(kind: str, noun: str) -> Kind:
    """A kind whose entry point is a class in a module of the kind's name."""
    group = f"{kind}s" if kind != "loss" else "losses"
    target = f"my_plugin.{kind}:MyPlugin{kind.capitalize()}"
    return Kind(noun, group, target, f'`registry.{group}.get("my_name")`', (f"{kind}.py",), f"test_{kind}.py")


KINDS: dict[str, Kind] = {
    "env": Kind(
        "an environment",
        "envs",
        "my_plugin.provider:MyPluginProvider",
        '`registry.envs.make("my_name:countdown")`',
        ("env.py", "provider.py"),
        "test_env.py",
    ),
    "transform": _class_of("transform", "a transform"),
    "loss": _class_of("loss", "a loss"),
    "module": _class_of("module", "a module"),
    "storage": _class_of("storage", "a storage"),
    "sampler": _class_of("sampler", "a sampler"),
    "recipe": Kind(
        "a recipe",
        "recipes",
        "my_plugin.recipe:MyPluginRecipe",
        "`rl train my_name`",
        ("recipe.py",),
        "test_recipe.py",
    ),
    "hooks": Kind("hooks", "hooks", "my_plugin.hooks", "called by every training run", ("hooks.py",), "test_hooks.py"),
}
"""By the option of ``rl new plugin`` that asks for it."""
