"""``rl new plugin``: a folder that holds a working, tested, installable plugin, to begin from."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shlex
from pathlib import Path

from rl_core.cli.scaffold import KINDS, PluginNames, write_plugin
from rl_core.errors import RLError

__all__ = ["NewCommand"]


class NewCommand:
    """Write the beginnings of a plugin."""

    help = (
        "Write the folder NAME with a plugin that works: package, tests and metadata, green at once under nox -s tests."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", choices=["plugin"], help="what to begin")
        parser.add_argument("name", metavar="NAME", help="the distribution's name, for example rl-gridworld")
        for option, kind in KINDS.items():
            parser.add_argument(f"--{option}", dest="kinds", action="append_const", const=option, help=f"{kind.noun}")
        parser.add_argument("--path", type=Path, default=Path(), metavar="DIR", help="where to make it (default: here)")

    def run(self, args: argparse.Namespace) -> int:
        kinds = list(dict.fromkeys(args.kinds or ()))
        if not kinds:
            raise RLError(f"say what the plugin holds, one or several of {', '.join(f'--{kind}' for kind in KINDS)}")
        names = PluginNames.of(args.name)
        files = write_plugin(names, kinds, args.path)
        folder = args.path / names.distribution
        own = " ".join(str(Path("src", names.package, KINDS[kind].modules[0])) for kind in kinds)
        core = _core_source()
        given_core = f"RL_CORE={shlex.quote(core)} " if core else ""
        print(f"{folder} holds {len(files)} files of a plugin that works. Next:")
        print(f"  cd {shlex.quote(str(folder))} && pip install -e '.[test]' && pytest")
        print(f"  {given_core}nox -s tests    # the same in an environment of its own")
        print(f"  make it yours: {own}")
        return 0


def _core_source() -> str | None:
    """Where rl-core was installed from, where that is a place on this disk: an index may not have it."""
    try:
        told = importlib.metadata.distribution("rl-core").read_text("direct_url.json")
        url = json.loads(told)["url"] if told else ""
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError):
        return None
    from urllib.parse import unquote, urlsplit

    place = unquote(urlsplit(url).path) if url.startswith("file:") else ""
    return place if place and Path(place).exists() else None
