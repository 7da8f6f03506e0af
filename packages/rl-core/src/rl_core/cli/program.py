"""The ``rl`` command: find the sub-command, read its options, and say in one line what went wrong."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rl_core.cli.command import BUILTIN, Command, command_summaries, find_command
from rl_core.errors import RLError
from rl_core.registry.handshake import core_version

__all__ = ["main"]

_ASKS_NO_HOOKS = ("plugins", "new", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``rl`` command.

    Args:
        argv: the arguments after ``rl``; the process's own by default.

    Returns:
        The exit code: 0 well, 1 the command's own no, 2 an error (one line on stderr; ``RL_DEBUG=1`` shows the
        traceback), 130 interrupted.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except RLError as error:
        if _debugging():
            raise
        _complain(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:
        # The reader (head, less) went away; without this, the interpreter complains once more while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"rl-core {core_version()}")
        return 0
    name, rest = argv[0], argv[1:]
    command = find_command(name)
    args = _read_options(name, command, rest)
    return command.run(args) or 0


def _read_options(name: str, command: Command, argv: list[str]) -> argparse.Namespace:
    passes_rest = getattr(command, "passes_rest", False)
    parser = argparse.ArgumentParser(
        prog=f"rl {name}", description=command.help, add_help=not passes_rest, allow_abbrev=False
    )
    command.add_arguments(parser)
    hooked = name in BUILTIN and name not in _ASKS_NO_HOOKS
    if hooked:
        _fire("add_arguments", command=name, parser=parser)
    if passes_rest:
        args, rest = parser.parse_known_args(argv)
        args.rest, args.parser = rest, parser
    else:
        args = parser.parse_args(argv)
    if hooked:
        _fire("configure", command=name, args=args)
    return args


def _fire(hook: str, **arguments: object) -> None:
    from rl_core import hooks

    hooks.call(hook, **arguments)


def _help() -> str:
    summaries = command_summaries()
    width = max(map(len, summaries))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in summaries.items()]
    return "\n".join(
        ["usage: rl COMMAND [options]", "", "commands:", *lines, "", "rl COMMAND --help shows a command's options."]
    )


def _debugging() -> bool:
    return os.environ.get("RL_DEBUG", "") not in ("", "0")


def _complain(text: str) -> None:
    red = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    print(f"\033[31m{text}\033[0m" if red else text, file=sys.stderr)
