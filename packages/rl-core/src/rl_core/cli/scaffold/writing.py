"""Filling in the templates and writing the folder; nothing is written unless everything can be."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_core.cli.scaffold.kinds import KINDS, Kind
from rl_core.cli.scaffold.names import PluginNames
from rl_core.errors import RLError
from rl_core.registry.handshake import core_version

__all__ = ["core_range", "in_words", "write_plugin"]

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def write_plugin(names: PluginNames, kinds: Sequence[str], parent: Path) -> list[Path]:
    """Write a plugin's folder.

    Args:
        names: the plugin's names; the folder is called like the distribution.
        kinds: keys of :data:`KINDS`, at least one.
        parent: where the folder is made.

    Returns:
        The files, relative to the folder.

    Raises:
        RLError: there is a file, or a folder that is not empty, in its place.
    """
    folder = parent / names.distribution
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RLError(f"{folder} exists and is not an empty folder: move it away, or choose another NAME or --path")
    filled = _filled(names, [KINDS[kind] for kind in kinds])
    for path, text in filled.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return list(filled)


def core_range(core: str) -> str:
    """The range of rl-core for a plugin that is begun on this version.

    >>> core_range("1.3.2"), core_range("0.9.0"), core_range("1.4.0.dev0")
    ('>=1.3,<2', '>=0.9,<2', '>=1.4.0.dev0,<2')
    """
    from packaging.version import Version

    version = Version(core)
    floor = core if version.is_prerelease else f"{version.major}.{version.minor}"  # no installer takes dev0 for 1.4
    return f">={floor},<{max(version.major + 1, 2)}"


def _filled(names: PluginNames, kinds: Sequence[Kind]) -> dict[Path, str]:
    """The text of every file of the plugin."""
    words = {
        "my-plugin": names.distribution,
        "my_plugin": names.package,
        "my_name": names.name,
        "MyPlugin": names.prefix,
    }
    about = {
        "{core}": core_range(core_version()),
        "{year}": str(datetime.date.today().year),
        "{kinds}": in_words([kind.noun for kind in kinds]),
        "{entry_points}": "\n".join(_entry_point(kind) for kind in kinds),
        "{table}": "\n".join(_table_row(kind) for kind in kinds),
    }
    about = {slot: _replace(text, words) for slot, text in about.items()}
    return {path: _replace(source.read_text(encoding="utf-8"), words | about) for path, source in _files(names, kinds)}


def _files(names: PluginNames, kinds: Sequence[Kind]) -> list[tuple[Path, Path]]:
    """Every file of the plugin, with its template."""
    package, tests = Path("src", names.package), Path("tests")
    plugin, parts = _TEMPLATES / "plugin", _TEMPLATES / "kinds"
    top = ["pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "noxfile.py"]
    files = [(Path(name), plugin / f"{name}.tmpl") for name in top]
    files += [(Path(".gitignore"), plugin / "gitignore.tmpl"), (package / "__init__.py", plugin / "__init__.py.tmpl")]
    files += [(package / module, parts / f"{module}.tmpl") for kind in kinds for module in kind.modules]
    files += [(tests / "test_plugin.py", plugin / "test_plugin.py.tmpl")]
    files += [(tests / kind.test, parts / f"{kind.test}.tmpl") for kind in kinds]
    return files


def _replace(text: str, words: Mapping[str, str]) -> str:
    """Every placeholder by its word, in one pass: a word may look like a placeholder."""
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)


def _entry_point(kind: Kind) -> str:
    return f'[project.entry-points."rl_core.{kind.group}"]\nmy_name = "{kind.target}"\n'


def _table_row(kind: Kind) -> str:
    return f"| {kind.noun} | {kind.found} | `src/my_plugin/{kind.modules[0]}` |"


def in_words(nouns: Sequence[str]) -> str:
    """A list as a sentence has it.

    >>> in_words(["an environment", "a loss", "hooks"])
    'an environment, a loss and hooks'
    """
    return " and ".join([", ".join(nouns[:-1]), nouns[-1]] if len(nouns) > 1 else nouns)
