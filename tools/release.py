"""Release a distribution: check, date the changelog, set the version, commit, tag, open the next development version.

::

    nox -s release -- rl-core 0.9.0            two commits and the tag rl-core-v0.9.0; nothing is uploaded
    nox -s release -- rl-core 0.9.0 --dry-run  only the checks, and what would be done
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

import changelog
from history import about_path, git, literal_version, releases
from requires import core_requirement_faults

__all__ = ["Plan", "faults", "main", "next_development", "perform"]

MAIN = "main"


@dataclass(frozen=True)
class Plan:
    """What is to be released.

    Attributes:
        root: the repository.
        dist: the distribution.
        version: the version as it was given.
        date: the day in the changelog, ISO 8601.
        python: an interpreter with all packages installed, which writes api.txt; None leaves that file alone.
    """

    root: Path
    dist: str
    version: str
    date: str
    python: str | None = None

    @property
    def about(self) -> Path:
        """The file with the version."""
        return self.root / about_path(self.dist)

    @property
    def changelog(self) -> Path:
        """The distribution's changelog."""
        return self.root / "packages" / self.dist / "CHANGELOG.md"

    @property
    def tag(self) -> str:
        """The tag's name."""
        return f"{self.dist}-v{self.version}"


def next_development(version: Version) -> str:
    """The development version that follows a release.

    Example:
        >>> [next_development(Version(text)) for text in ("0.9.0", "1.2", "1.0.0rc1")]
        ['0.9.1.dev0', '1.2.1.dev0', '1.0.0rc2.dev0']
    """
    if version.pre is not None:
        letter, number = version.pre
        return f"{version.base_version}{letter}{number + 1}.dev0"
    return f"{version.major}.{version.minor}.{version.micro + 1}.dev0"


def faults(plan: Plan) -> list[str]:
    """Why the distribution cannot be released so; an empty list lets it go."""
    if not plan.about.is_file():
        known = sorted(path.parent.name for path in plan.root.glob("packages/*/pyproject.toml"))
        return [f"there is no distribution {plan.dist!r}; there are {', '.join(known)}"]
    found = [*_tree_faults(plan), *_version_faults(plan), *_changelog_faults(plan)]
    return found or core_requirement_faults(plan.root, plan.dist, Version(plan.version))


def perform(plan: Plan) -> None:
    """Make the release commit, its tag, and the commit that opens the next development version."""
    root, text = plan.root, plan.changelog.read_text(encoding="utf-8")
    plan.changelog.write_text(changelog.release_section(text, plan.version, plan.date), encoding="utf-8")
    _set_version(plan.about, plan.version)
    if plan.python is not None:
        subprocess.run(_api_command(plan, "--update", "--version", plan.version), check=True)
    _commit(plan, f"Release {plan.dist} {plan.version}")
    git(root, "tag", "--annotate", plan.tag, "--message", f"{plan.dist} {plan.version}")
    following = next_development(Version(plan.version))
    plan.changelog.write_text(changelog.reopened(plan.changelog.read_text(encoding="utf-8")), encoding="utf-8")
    _set_version(plan.about, following)
    _commit(plan, f"Begin {plan.dist} {following}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s release --", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("dist", help="the distribution, e.g. rl-core")
    parser.add_argument("version", help="its new version, e.g. 0.9.0")
    parser.add_argument("--dry-run", action="store_true", help="check, say what would be done, change nothing")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="the changelog's date; today")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help=argparse.SUPPRESS)
    parser.add_argument("--python", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    plan = Plan(given.root, given.dist, given.version, given.date, given.python)
    if found := faults(plan):
        print(f"{plan.dist} {plan.version} cannot be released:", *(f"- {fault}" for fault in found), sep="\n")
        return 1
    if plan.python is not None and subprocess.run(_api_command(plan, "--version", plan.version)).returncode:
        return 1
    following = next_development(Version(plan.version))
    if given.dry_run:
        print(f"would commit 'Release {plan.dist} {plan.version}', tag it {plan.tag}, and go on as {following}; notes:")
        print(changelog.unreleased(plan.changelog.read_text(encoding="utf-8")))
        return 0
    perform(plan)
    print(f"{plan.tag} is made, the tree is {following}. Nothing was uploaded: git push origin {MAIN} {plan.tag}")
    return 0


def _tree_faults(plan: Plan) -> list[str]:
    found = []
    if changed := git(plan.root, "status", "--porcelain"):
        found.append(f"the working tree is not clean; commit or stash this first:\n{changed}")
    branch = git(plan.root, "rev-parse", "--abbrev-ref", "HEAD")
    if branch != MAIN:
        found.append(f"releases are made on {MAIN}, this is {branch}")
    if git(plan.root, "tag", "--list", plan.tag):
        found.append(f"the tag {plan.tag} exists")
    return found


def _version_faults(plan: Plan) -> list[str]:
    try:
        version = Version(plan.version)
    except InvalidVersion:
        return [f"{plan.version!r} is not a version (PEP 440): write 1.2.3 or 1.2.3rc1"]
    if str(version) != plan.version or version.is_devrelease or version.local or version.post or version.epoch:
        return [f"{plan.version!r} is not the plain form of a release: write 1.2.3 or 1.2.3rc1"]
    current = literal_version(plan.about.read_text(encoding="utf-8"))
    known = [*(release.version for release in releases(plan.root, plan.dist)), current]
    if version <= max(known):
        return [f"{plan.version} is not greater than {max(known)}, the last version of {plan.dist}"]
    return []


def _changelog_faults(plan: Plan) -> list[str]:
    text = plan.changelog.read_text(encoding="utf-8")
    where = plan.changelog.relative_to(plan.root)
    if changelog.has_version(text, plan.version):
        return [f"{where} has a section {plan.version} already"]
    notes = changelog.unreleased(text)
    if notes is None:
        return [f'{where} has no section "## Unreleased"']
    return [] if notes else [f'"## Unreleased" of {where} is empty: say what is new']


def _set_version(about: Path, version: str) -> None:
    text = about.read_text(encoding="utf-8")
    about.write_text(re.sub(r'^__version__ = ".*"', f'__version__ = "{version}"', text, flags=re.M), encoding="utf-8")


def _commit(plan: Plan, subject: str) -> None:
    git(plan.root, "add", "--", f"packages/{plan.dist}")
    git(plan.root, "commit", "--quiet", "--message", subject)


def _api_command(plan: Plan, *options: str) -> list[str]:
    return [str(plan.python), str(Path(__file__).with_name("api.py")), *options, plan.dist]


if __name__ == "__main__":
    sys.exit(main())
