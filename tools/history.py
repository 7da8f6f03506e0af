"""Which releases of a distribution the git history knows, by tag or by the commit that set the version.

A release of ``rl-core 0.9.0`` is the tag ``rl-core-v0.9.0``. A clone may lack tags; then it is the oldest commit whose
literal ``__version__`` reads ``0.9.0``: between releases the literal is a development version.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

__all__ = ["Release", "about_path", "extract", "git", "literal_version", "no_releases", "releases"]


@dataclass(frozen=True)
class Release:
    """One release of one distribution."""

    dist: str
    version: Version
    commit: str

    def __str__(self) -> str:
        return f"{self.dist} {self.version}"


def git(root: Path, *arguments: str) -> str:
    """The output of a git command; its complaint is the error."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(arguments)} failed:\n{done.stderr.strip()}")
    return done.stdout.strip()


def about_path(dist: str) -> str:
    """The file that holds a distribution's version, relative to the root."""
    return f"packages/{dist}/src/{dist.replace('-', '_')}/__about__.py"


def literal_version(source: str) -> Version:
    """The version in the text of an ``__about__.py``."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and [getattr(target, "id", "") for target in node.targets] == ["__version__"]:
            return Version(ast.literal_eval(node.value))
    raise SystemExit('__about__.py has no line __version__ = "..."')


def releases(root: Path, dist: str) -> list[Release]:
    """All releases of a distribution, the newest last; a version without a tag is found by its commit."""
    found = {release.version: release for release in _from_commits(root, dist)}
    found |= {release.version: release for release in _from_tags(root, dist)}
    return [found[version] for version in sorted(found)]


def no_releases(root: Path, dists: list[str]) -> str:
    """Why there is nothing to compare with."""
    shallow = git(root, "rev-parse", "--is-shallow-repository") == "true"
    cure = "; this clone is shallow, `git fetch --unshallow --tags` brings the history" if shallow else ""
    return f"no releases yet of {', '.join(dists)}: nothing to compare with{cure}"


def extract(root: Path, commit: str, paths: list[str], target: Path) -> None:
    """Write files and folders of a commit into a folder; those that the commit does not have are left out."""
    present = [path for path in paths if git(root, "ls-tree", commit, path)]
    command = ["git", "-C", str(root), "archive", "--format=tar", commit, *present]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(target, filter="data")


def _from_tags(root: Path, dist: str) -> list[Release]:
    prefix = f"{dist}-v"
    found = []
    for tag in git(root, "tag", "--list", f"{prefix}*").splitlines():
        try:
            version = Version(tag.removeprefix(prefix))
        except InvalidVersion:
            continue
        found.append(Release(dist, version, git(root, "rev-list", "-n", "1", tag)))
    return found


def _from_commits(root: Path, dist: str) -> list[Release]:
    path = about_path(dist)
    found: list[Release] = []
    for commit in git(root, "log", "--reverse", "--format=%H", "--", path).splitlines():
        if not git(root, "ls-tree", commit, path):
            continue
        version = literal_version(git(root, "show", f"{commit}:{path}"))
        if not version.is_devrelease and all(version != release.version for release in found):
            found.append(Release(dist, version, commit))
    return found
