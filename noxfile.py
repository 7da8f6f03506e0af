"""What one does with this repository, each a session: ``nox -s train``, ``nox -s tests``, ``nox -l`` lists them all.

The environments are made by ``tools/environments.py``: third parties once, our packages as wheels over them.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / "tools"))

from compat import run_matrix
from environments import DISTRIBUTIONS, ROOT, bin_of, isolated, peers, suite, third_party, wheels
from floors import minimum as minimum_env
from heavy import heavy, simulators
from native_tests import run_native_tests

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests"]

# One thread per process: the work is small, and a parallel region on a busy machine costs more than it saves.
# An empty PYTHONPATH keeps the caller's out of the environments.
TEST_ENV = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "", "RL_STRICT_PLUGINS": "1"}
DOCTESTS = ("--doctest-modules", "--pyargs")


@nox.session
def train(session: nox.Session) -> None:
    """Train PPO on CartPole with the installed packages; arguments go to `rl train ppo`."""
    env = suite(session)
    arguments = list(session.posargs)
    if not any(argument.split("=")[0] in ("--env", "--resume") for argument in arguments):
        arguments = ["--env", "gym:CartPole-v1", *arguments]
    session.run(bin_of(env, "rl"), "train", "ppo", *arguments, env={"PYTHONPATH": ""})


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test of every package, the repository's and the examples', and all doctests."""
    folders = [f"packages/{dist}/tests" for dist in DISTRIBUTIONS] + ["tests", "examples"]
    folders = [folder for folder in folders if (ROOT / folder).is_dir()]
    _pytest(session, suite(session), folders, DISTRIBUTIONS, "--timeout=900")


def _tests_of(dist: str) -> None:
    """A session that tests one package where nothing but its declared dependencies can be imported."""

    @nox.session(name=f"tests-{dist}")
    def tests_of(session: nox.Session) -> None:
        _pytest(session, isolated(session, dist), [f"packages/{dist}/tests"], [dist], "--doctest-ignore-import-errors")

    tests_of.__doc__ = f"Test {dist} alone, with its declared dependencies only."


for _dist in DISTRIBUTIONS:
    _tests_of(_dist)


@nox.session(name="tests-heavy")
def tests_heavy(session: nox.Session) -> None:
    """Run the tests that need third parties too heavy for every day: vLLM and a real language model; simulators."""
    folders = [f"packages/{dist}/tests-heavy" for dist in DISTRIBUTIONS]
    folders = [folder for folder in folders if (ROOT / folder).is_dir()]
    for makes, mine in ((simulators, True), (heavy, False)):
        part = [folder for folder in folders if ("rl-envs" in folder) == mine]
        asked = [argument for argument in session.posargs if "tests-heavy" in argument]
        if not asked or any(argument.startswith(folder) for argument in asked for folder in part):
            _pytest(session, makes(session), part, (), "--timeout=900")


def _pytest(session: nox.Session, env: Path, folders: list[str], dists: Sequence[str], *options: str) -> None:
    """Run the tests of folders and the doctests of installed packages; own arguments replace this choice."""
    doctests = [*DOCTESTS, *(dist.replace("-", "_") for dist in dists)] if dists else []
    chosen = session.posargs or [*folders, *doctests]
    pytest = (bin_of(env), "-m", "pytest", "-c", "pyproject.toml", "--rootdir", ".")
    session.run(*pytest, *options, *chosen, env=TEST_ENV)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format (ruff) and the star rule (import-linter)."""
    env = third_party(session)
    sources = ":".join(str(ROOT / "packages" / dist / "src") for dist in DISTRIBUTIONS)
    session.run(bin_of(env, "ruff"), "check", ".")
    session.run(bin_of(env, "ruff"), "format", "--check", ".")
    session.run(bin_of(env, "lint-imports"), env={"PYTHONPATH": sources})


@nox.session
def types(session: nox.Session) -> None:
    """Check types (mypy, strict)."""
    session.run(bin_of(third_party(session)), "-m", "mypy", *session.posargs, env={"PYTHONPATH": ""})


@nox.session
def native(session: nox.Session) -> None:
    """Build and run the C++ test programs under sanitizers; `nox -s native -- fuzz_trees` runs a part."""
    run_native_tests(session)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into docs/_build/html; a warning is an error."""
    target = ROOT / "docs" / "_build" / "html"
    sphinx = (bin_of(suite(session)), "-m", "sphinx", "-W", "--keep-going", "-b", "html")
    session.run(*sphinx, *session.posargs, "docs", str(target), env={"PYTHONPATH": ""})
    session.log(f"open {target / 'index.html'}")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure a suite side by side with peers: `nox -s bench -- collect`."""
    ours, theirs = bin_of(suite(session)), bin_of(peers(session))
    environments = ("--python", f"ours={ours}", "--python", f"peers={theirs}")
    session.run(ours, "benchmarks/_harness.py", *environments, *session.posargs, env={"PYTHONPATH": ""})


@nox.session
def learn(session: nox.Session) -> None:
    """Train the classic algorithms beside Stable-Baselines3, at low priority; stopped, it goes on where it was."""
    ours, theirs = bin_of(suite(session)), bin_of(peers(session))
    environments = ("--python", f"ours={ours}", "--python", f"peers={theirs}")
    session.run(ours, "benchmarks/learning/run.py", *environments, *session.posargs, env={"PYTHONPATH": ""})
    session.run(ours, "benchmarks/learning/compare.py", env={"PYTHONPATH": ""})


@nox.session(name="wheels")
def build_wheels(session: nox.Session) -> None:
    """Build one wheel per package into dist/."""
    target = ROOT / "dist"
    target.mkdir(exist_ok=True)
    for wheel in wheels(session).values():
        shutil.copy2(wheel, target)
        session.log(f"dist/{wheel.name}")


@nox.session
def compat(session: nox.Session) -> None:
    """Test a new core with released plugins, released cores with new ones: `nox -s compat -- rl-envs --last 2`."""
    run_matrix(session, TEST_ENV)


@nox.session
def minimum(session: nox.Session) -> None:
    """Run every package's tests with each dependency at its declared floor."""
    folders = [f"packages/{dist}/tests" for dist in DISTRIBUTIONS]
    _pytest(session, minimum_env(session), folders, DISTRIBUTIONS)


@nox.session
def api(session: nox.Session) -> None:
    """Fail where a public name or signature lost something within a major; `-- --update` writes packages/*/api.txt."""
    session.run(bin_of(suite(session)), "tools/api.py", *session.posargs, env={"PYTHONPATH": ""})


@nox.session
def release(session: nox.Session) -> None:
    """Commit and tag a release, upload nothing: `nox -s release -- rl-core 0.9.0 --dry-run`."""
    python = bin_of(suite(session))
    session.run(sys.executable, "tools/release.py", "--python", python, *session.posargs, env={"PYTHONPATH": ""})
