"""``rl describe``: what a name is (``losses ppo``), or what an environment is (``gym:CartPole-v1``)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rl_core import registry as _registry
from rl_core.errors import UnknownNameError

__all__ = ["DescribeCommand"]


class DescribeCommand:
    """Describe one name."""

    help = "Describe a name of a group (rl describe losses ppo) or an environment (rl describe gym:CartPole-v1)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", nargs="+", metavar="NAME", help="GROUP NAME, or PROVIDER:ID")

    def run(self, args: argparse.Namespace) -> int:
        what: list[str] = args.what
        if len(what) == 2:
            found: Any = _registry.group(what[0]).describe(what[1])
        elif len(what) == 1 and ":" in what[0]:
            found = _registry.envs.describe(what[0])
        elif len(what) == 1 and what[0] in _registry.groups():
            found = "\n".join(_registry.group(what[0]).names()) or f"no name in {what[0]}"
        else:
            raise UnknownNameError(
                f"say a group and a name (rl describe losses ppo) or PROVIDER:ID (rl describe gym:CartPole-v1); "
                f"got {' '.join(what)!r}. Groups: {', '.join(_registry.groups())}"
            )
        print(_as_text(found))
        return 0


def _as_text(found: Any) -> str:
    if not isinstance(found, Mapping):
        return str(found)
    width = max((len(str(key)) for key in found), default=0)
    return "\n".join(f"{key!s:<{width}}  {value}" for key, value in found.items())
