"""``rl train``: run a recipe by name; what follows the name is the recipe's own."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from rl_core import registry as _registry
from rl_core.cli.table import text_table
from rl_core.errors import UnknownNameError
from rl_core.registry.description import first_paragraph
from rl_core.registry.loading import fault

__all__ = ["TrainCommand"]


class TrainCommand:
    """Run a recipe."""

    help = "Run a recipe: rl train RECIPE [options of the recipe]; rl train RECIPE --help shows them."
    passes_rest = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "rl train RECIPE [options of the recipe]"

    def run(self, args: argparse.Namespace) -> int:
        rest: list[str] = args.rest
        if not rest or rest == ["--help"] or rest == ["-h"]:
            if rest:
                args.parser.print_help()
                print()
            print(_recipes())
            return 0
        if rest[0].startswith("-"):
            raise UnknownNameError(
                f"the recipe comes first: rl train RECIPE {' '.join(rest)}; "
                f"recipes: {', '.join(_registry.recipes.names()) or 'none is installed'}"
            )
        name, options = rest[0], rest[1:]
        _build(name, _registry.recipes.get(name), options).run()
        return 0


def _recipes() -> str:
    entries = [entry for entry in _registry.recipes.entries() if fault(entry) is None]
    rows = [(entry.name, entry.owner) for entry in entries]
    rows += [(name, "this process") for name in _registry.recipes.registered()]
    if not rows:
        return "no recipe is installed: pip install 'rl-trainers[recipes]'"
    return text_table(("recipe", "from"), sorted(rows))


def _build(name: str, recipe: Any, options: list[str]) -> Any:
    """The recipe's config from the command line: by its own ``from_argv``, else from ``--field value`` pairs."""
    from_argv = getattr(recipe, "from_argv", None)
    return from_argv(options) if from_argv is not None else recipe(**_plain_options(name, recipe, options))


def _plain_options(name: str, recipe: Any, options: list[str]) -> dict[str, Any]:
    """For recipes without ``from_argv``: one option for each field whose default is a number, a string or a bool."""
    parser = argparse.ArgumentParser(prog=f"rl train {name}", description=first_paragraph(recipe), allow_abbrev=False)
    for field in dataclasses.fields(recipe) if dataclasses.is_dataclass(recipe) else ():
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            parser.add_argument(flag, dest=field.name, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS)
        elif isinstance(default, int | float | str):
            parser.add_argument(flag, dest=field.name, type=type(default), default=argparse.SUPPRESS)
    return vars(parser.parse_args(options))
