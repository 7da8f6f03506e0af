"""Run the compatibility matrix of ``compat_plan``, each cell an overlay of wheels over the third-party environment.

::

    .nox/compat/sources/<dist>-<version>   a release as it was, tests included (git archive)
    .nox/compat/wheels/<dist>-<version>    its wheel, built once
    .nox/compat/cells/<cell>               core, plugin and companions (pip install --no-deps --target)
    .nox/compat/logs/<cell>.txt            what its tests said
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import nox

from compat_plan import Cell, Part, cells
from environments import DISTRIBUTIONS, HOME, ROOT, bin_of, read_stamp, site_packages, third_party, wheels, write_stamp
from history import extract, no_releases
from requires import CORE

__all__ = ["run_matrix"]

FOLDER = HOME / "compat"
_SHARED = ["pyproject.toml", "conftest.py"]  # the tests' settings


@dataclass(frozen=True)
class Outcome:
    """How the tests of a cell ended."""

    cell: Cell
    passed: bool
    summary: str
    seconds: float


def run_matrix(session: nox.Session, test_env: Mapping[str, str]) -> None:
    """Plan, build, run, and show the table; fails where a cell fails.

    Args:
        session: its arguments choose plugins (all by default) and ``--last N`` releases of each (1).
        test_env: environment variables of the tests.
    """
    parser = argparse.ArgumentParser(prog="nox -s compat --")
    parser.add_argument("plugins", nargs="*", metavar="PLUGIN", help="distributions; all by default")
    parser.add_argument("--last", type=int, default=1, help="how many releases of each count as old")
    given = parser.parse_args(session.posargs)
    every = [dist for dist in DISTRIBUTIONS if dist != CORE]
    if unknown := set(given.plugins) - set(every):
        session.error(f"no plugin {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    plugins = given.plugins or every
    planned, remarks = cells(ROOT, plugins, given.last)
    if not planned:
        session.log(no_releases(ROOT, [CORE, *plugins]))
        return
    base = third_party(session)
    if found := sorted(path.name for path in site_packages(base).glob("rl_*.dist-info")):
        session.error(f"{base} must hold third parties only, and has {found}: delete .nox/third-party")
    built = wheels(session)
    outcomes = [_run(session, base, built, cell, test_env) for cell in planned]
    session.log("\n" + _table(outcomes, remarks))
    if failed := [outcome.cell.name for outcome in outcomes if not outcome.passed]:
        session.error(f"{len(failed)} of {len(outcomes)} cells failed; see .nox/compat/logs")


def _run(
    session: nox.Session, base: Path, built: Mapping[str, Path], cell: Cell, test_env: Mapping[str, str]
) -> Outcome:
    parts = (cell.core, cell.plugin, *cell.companions)
    overlay = FOLDER / "cells" / cell.name
    shutil.rmtree(overlay, ignore_errors=True)
    pip = (bin_of(base), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    wheel_files = [str(_wheel(session, base, built, part)) for part in parts]
    session.run(*pip, "--target", str(overlay), *wheel_files, silent=True)
    return _test(session, bin_of(base), overlay, cell, test_env)


def _test(session: nox.Session, python: str, overlay: Path, cell: Cell, test_env: Mapping[str, str]) -> Outcome:
    folder = ROOT if cell.plugin.commit is None else _sources(cell.plugin)
    log = FOLDER / "logs" / f"{cell.name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = ("-c", "pyproject.toml", "--rootdir", ".", "-p", "no:cacheprovider", "--timeout=900")
    command = [python, "-m", "pytest", "-q", *settings, f"packages/{cell.plugin.dist}/tests"]
    variables = {**os.environ, **test_env, "PYTHONPATH": str(overlay), "RL_KIT_DISTRIBUTION": cell.plugin.dist}
    session.log(f"{cell.plugin} on {cell.core}")
    start = time.perf_counter()
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, cwd=folder, env=variables, stdout=file, stderr=subprocess.STDOUT)
    seconds = time.perf_counter() - start
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()] or ["no output"]
    if done.returncode != 0:
        session.log("\n".join(lines[-30:]))
    return Outcome(cell, done.returncode == 0, lines[-1].strip("= "), seconds)


def _sources(part: Part) -> Path:
    """The folder of a release as it was."""
    target = FOLDER / "sources" / f"{part.dist}-{part.version}"
    if part.commit is not None and read_stamp(target) != part.commit:
        shutil.rmtree(target, ignore_errors=True)
        extract(ROOT, part.commit, [*_SHARED, f"packages/{part.dist}"], target)
        write_stamp(target, part.commit)
    return target


def _wheel(session: nox.Session, base: Path, built: Mapping[str, Path], part: Part) -> Path:
    """The wheel of a part: the tree's, or one built once from the release's sources."""
    if part.commit is None:
        return built[part.dist]
    folder = FOLDER / "wheels" / f"{part.dist}-{part.version}"
    if read_stamp(folder) != part.commit:
        shutil.rmtree(folder, ignore_errors=True)
        pip = (bin_of(base), "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
        session.run(*pip, "--wheel-dir", str(folder), str(_sources(part) / "packages" / part.dist))
        write_stamp(folder, part.commit)
    return next(folder.glob("*.whl"))


def _table(outcomes: list[Outcome], remarks: list[str]) -> str:
    rows = [("plugin and its tests", "core", "result", "seconds", "")]
    for outcome in outcomes:
        result = "passed" if outcome.passed else "FAILED"
        cell = outcome.cell
        rows.append((str(cell.plugin), str(cell.core), result, f"{outcome.seconds:.1f}", outcome.summary))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows]
    return "\n".join([*lines, *(f"not tested: {remark}" for remark in remarks)])
