"""The environments behind the nox sessions: one that holds third parties, thin ones over it that hold our wheels.

::

    .nox/third-party   requirements/dev.txt and no distribution of this repository; rebuilt when that file changes
    .nox/wheels/<dist> one wheel per package, rebuilt when the package's sources change
    .nox/suite         every wheel; sees all of third-party             (train, tests, docs, bench)
    .nox/only-<dist>   one wheel and its declared dependencies, nothing else   (tests-<dist>)
    .nox/peers         requirements/peers.txt, what the benchmarks compare with

Each folder has a stamp with the hash of what it was made from, so an unchanged one is reused at once, and one whose
making was interrupted is made again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import nox

from closure import closure, link, wheel_requirements

__all__ = [
    "DISTRIBUTIONS",
    "HOME",
    "PACKAGES",
    "ROOT",
    "bin_of",
    "digest",
    "install",
    "isolated",
    "new_env",
    "peers",
    "read_stamp",
    "site_packages",
    "suite",
    "thin_env",
    "third_party",
    "wheels",
    "write_stamp",
]

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".nox"
PACKAGES = ROOT / "packages"
DISTRIBUTIONS = sorted(path.parent.name for path in PACKAGES.glob("*/pyproject.toml"))
_NOT_SOURCES = {
    "tests",
    "tests-heavy",
    "__pycache__",
    "build",
    "dist",
    ".pytest_cache",
    ".hypothesis",
    ".mypy_cache",
    ".ruff_cache",
}


def bin_of(env: Path, name: str = "python") -> str:
    """The path of a program of an environment."""
    return str(env / "Scripts" / f"{name}.exe" if os.name == "nt" else env / "bin" / name)


def third_party(session: nox.Session) -> Path:
    """The environment of ``requirements/dev.txt``."""
    return _from_requirements(session, HOME / "third-party", ROOT / "requirements" / "dev.txt")


def peers(session: nox.Session) -> Path:
    """The environment of ``requirements/peers.txt``."""
    return _from_requirements(session, HOME / "peers", ROOT / "requirements" / "peers.txt")


def suite(session: nox.Session) -> Path:
    """Every package of the repository, installed from its wheel over the whole third-party environment."""
    base, built = third_party(session), wheels(session)
    env = HOME / "suite"
    stamp = digest([read_stamp(base), *(read_stamp(wheel.parent) for wheel in built.values())])
    if read_stamp(env) != stamp:
        thin_env(session, env)
        site_packages(env).joinpath("_third_party.pth").write_text(f"{site_packages(base)}\n", encoding="utf-8")
        install(session, base, env, built.values())
        write_stamp(env, stamp)
    return env


def isolated(session: nox.Session, dist: str) -> Path:
    """One package, its declared dependencies and its ``test`` extra: anything else cannot be imported there.

    Third parties are links into the third-party environment, so the cell costs about a second, not a download.
    """
    base, built = third_party(session), wheels(session)
    env = HOME / f"only-{dist}"
    ours = {name: wheel_requirements(path) for name, path in built.items()}
    wanted = closure(dist, {"test"}, ours, site_packages(base))
    mine = [built[name] for name in sorted(wanted & ours.keys())]
    stamp = digest([read_stamp(base), *sorted(wanted), *(read_stamp(wheel.parent) for wheel in mine)])
    if read_stamp(env) != stamp:
        thin_env(session, env)
        for name in sorted(wanted - ours.keys()):
            link(name, site_packages(base), site_packages(env))
        install(session, base, env, mine)
        write_stamp(env, stamp)
    return env


def wheels(session: nox.Session) -> dict[str, Path]:
    """One wheel per distribution, built by hatchling without a build environment of its own."""
    python = bin_of(third_party(session))
    built = {}
    for dist in DISTRIBUTIONS:
        folder = HOME / "wheels" / dist
        stamp = digest([sys.version, *_source_lines(PACKAGES / dist)])
        if read_stamp(folder) != stamp:
            shutil.rmtree(folder, ignore_errors=True)
            session.run(
                *(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"),
                *("--wheel-dir", str(folder), str(PACKAGES / dist)),
            )
            write_stamp(folder, stamp)
        built[dist] = next(folder.glob("*.whl"))
    return built


def _from_requirements(session: nox.Session, env: Path, requirements: Path) -> Path:
    """An environment of a requirements file: first its torch line alone, then the whole file."""
    text = requirements.read_text(encoding="utf-8")
    stamp = digest([sys.version, text])
    if read_stamp(env) != stamp:
        session.log(f"making {env.relative_to(ROOT)} from {requirements.relative_to(ROOT)}: once, a few minutes")
        new_env(session, env)
        pip = (bin_of(env), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        torch = next(line for line in text.splitlines() if line.startswith("torch=="))
        session.run(*pip, torch)
        session.run(*pip, "-r", str(requirements))
        write_stamp(env, stamp)
    return env


def new_env(session: nox.Session, env: Path, *options: str) -> None:
    """A new environment, in place of any that was there; options are virtualenv's."""
    # virtualenv comes with nox and, unlike venv, needs no ensurepip (which Debian packages apart).
    shutil.rmtree(env, ignore_errors=True)
    session.run(sys.executable, "-m", "virtualenv", "--quiet", "--no-periodic-update", *options, str(env))


def thin_env(session: nox.Session, env: Path) -> None:
    """An empty environment, without pip."""
    new_env(session, env, "--without-pip")


def install(session: nox.Session, base: Path, env: Path, wheel_files: Iterable[Path]) -> None:
    """Install wheels into a thin environment, with the third-party environment's pip and nothing from an index."""
    session.run(
        *(bin_of(base), "-m", "pip", "--python", bin_of(env), "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-index", "--force-reinstall", *map(str, wheel_files)),
    )


def site_packages(env: Path) -> Path:
    """Where an environment's packages are."""
    if os.name == "nt":
        return env / "Lib" / "site-packages"
    return env / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _source_lines(package: Path) -> list[str]:
    """A line per file that goes into a wheel: its path and the hash of its content."""
    files = [
        path
        for path in sorted(package.rglob("*"))
        if path.is_file() and not _NOT_SOURCES.intersection(path.relative_to(package).parts)
    ]
    return [f"{path.relative_to(package)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files]


def digest(parts: Iterable[str]) -> str:
    """The hash of what a folder is made from, its stamp."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_stamp(folder: Path) -> str:
    """The stamp that a folder was left with; "" where its making was not finished."""
    stamp = folder / "stamp"
    return stamp.read_text(encoding="utf-8") if stamp.is_file() else ""


def write_stamp(folder: Path, stamp: str) -> None:
    """Mark a folder as made."""
    folder.joinpath("stamp").write_text(stamp, encoding="utf-8")
