"""An environment with every third party at the lowest version that the packages declare (``nox -s minimum``).

::

    .nox/uv        uv, which can resolve to lowest versions; pip cannot
    .nox/minimum   the floors, our wheels, and links to torch (with what it needs) in the third-party environment

torch stays at the version of requirements/dev.txt, since one build of it serves all environments. A floor that cannot
be installed beside it, or beside another floor, is raised by uv; the session says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import nox
from packaging.utils import canonicalize_name
from packaging.version import Version

from closure import closure, link
from environments import (
    DISTRIBUTIONS,
    HOME,
    PACKAGES,
    bin_of,
    digest,
    install,
    read_stamp,
    site_packages,
    thin_env,
    third_party,
    wheels,
    write_stamp,
)
from floor_lines import declared_floors, raised, resolver_input

__all__ = ["minimum"]

# Wheels only: the floors of some libraries are sources that no longer build. These are published as sources.
_BINARIES = ("--only-binary", ":all:", *(part for name in ("gym", "rlcard", "vmas") for part in ("--no-binary", name)))


def minimum(session: nox.Session) -> Path:
    """The environment of floors; logs what could not be had at its floor."""
    base, built = third_party(session), wheels(session)
    torch = _installed(base, "torch")
    folders = [PACKAGES / dist for dist in DISTRIBUTIONS]
    pins = _resolve(session, base, resolver_input(folders), torch.requires or [])
    for line in raised(declared_floors(folders), pins, torch.version):
        session.log(line)
    env = HOME / "minimum"
    lines = [f"{name}=={version}" for name, version in sorted(pins.items())]
    stamp = digest([read_stamp(base), *lines, *(read_stamp(wheel.parent) for wheel in built.values())])
    if read_stamp(env) != stamp:
        thin_env(session, env)
        pip = (bin_of(base), "-m", "pip", "--python", bin_of(env), "install", "--quiet", "--disable-pip-version-check")
        session.run(*pip, "--no-deps", *_BINARIES, *lines)
        install(session, base, env, built.values())
        for name in sorted(closure("torch", set(), {}, site_packages(base)) - pins.keys()):
            link(name, site_packages(base), site_packages(env))
        write_stamp(env, stamp)
    return env


def _resolve(session: nox.Session, base: Path, needs: Iterable[str], limits: Iterable[str]) -> dict[str, Version]:
    """From names to versions: the lowest of what is needed, the newest of what that needs, within the limits."""
    tool = HOME / "uv"
    if not tool.joinpath("bin", "uv").exists():
        pip = (bin_of(base), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        session.run(*pip, "--target", str(tool), "uv>=0.5,<1")
    asked, limiting, dropped = (HOME / f"minimum.{part}" for part in ("needs", "limits", "dropped"))
    asked.write_text("\n".join([*needs, ""]), encoding="utf-8")
    limiting.write_text("\n".join([*limits, ""]), encoding="utf-8")
    dropped.write_text("torch; python_version < '0'\n", encoding="utf-8")  # torch is there already
    options = ("--quiet", "--resolution", "lowest-direct", "--no-annotate", "--no-header")
    found = session.run(
        *(str(tool / "bin" / "uv"), "pip", "compile", *options, *_BINARIES, "--python", bin_of(base)),
        *("--constraint", str(limiting), "--override", str(dropped), str(asked)),
        silent=True,
    )
    return {str(canonicalize_name(name)): Version(v) for name, v in re.findall(r"^([\w.-]+)==(\S+)", str(found), re.M)}


def _installed(env: Path, name: str) -> metadata.Distribution:
    return next(iter(metadata.distributions(name=name, path=[str(site_packages(env))])))
