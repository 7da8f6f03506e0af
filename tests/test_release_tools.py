"""Releasing in a small repository: what is refused, what is committed and tagged, what history finds later."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from packaging.version import Version

DATE = "2031-05-06"
GAMES_PROJECT = '[project]\nname = "rl-games"\ndependencies = ["rl-core>=0.9,<2"]\n'
PLUGIN_PROJECT = """[project]
name = "rl-toys"
dependencies = ["rl-core{asked}", "numpy>=1.24"]

[project.optional-dependencies]
recipes = ["rl-games"]
"""


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Repository:
    """Three tiny distributions under git: rl-core, and the plugins rl-toys and rl-games."""

    def __init__(self, root: Path) -> None:
        self.root = root
        git(root.parent, "init", "--quiet", "--initial-branch=main", root.name)
        for name, value in (("user.name", "A"), ("user.email", "a@example.org"), ("commit.gpgsign", "false")):
            git(root, "config", name, value)
        self.write("packages/rl-core/pyproject.toml", '[project]\nname = "rl-core"\ndependencies = []\n')
        self.write("packages/rl-games/pyproject.toml", GAMES_PROJECT)
        self.ask(">=0.9,<2")
        for dist, version in (("rl-core", "0.9.0.dev0"), ("rl-toys", "0.1.0.dev0"), ("rl-games", "0.1.0.dev0")):
            self.version(dist, version)
            self.write(f"packages/{dist}/CHANGELOG.md", f"# Changelog of {dist}\n\n## Unreleased\n\n- First version.\n")
        self.commit("Start")

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8")

    def version(self, dist: str, version: str) -> None:
        self.write(f"packages/{dist}/src/{dist.replace('-', '_')}/__about__.py", f'__version__ = "{version}"\n')

    def ask(self, asked: str) -> None:
        self.write("packages/rl-toys/pyproject.toml", PLUGIN_PROJECT.format(asked=asked))

    def commit(self, subject: str = "Change") -> None:
        git(self.root, "add", "--all")
        git(self.root, "commit", "--quiet", "--message", subject)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "repository").mkdir()
    return Repository(tmp_path / "repository")


@pytest.fixture
def release(tool, repository):
    """The command; gives its exit code."""

    def run(dist: str, version: str, *options: str) -> int:
        return tool("release").main([dist, version, "--root", str(repository.root), "--date", DATE, *options])

    return run


def test_a_release_is_two_commits_and_a_tag(release, repository):
    assert release("rl-core", "0.9.0") == 0
    subjects = git(repository.root, "log", "--format=%s").splitlines()
    assert subjects == ["Begin rl-core 0.9.1.dev0", "Release rl-core 0.9.0", "Start"]
    assert git(repository.root, "rev-list", "-n1", "rl-core-v0.9.0") == git(repository.root, "rev-parse", "HEAD~1")
    assert git(repository.root, "status", "--porcelain") == ""


def test_the_release_commit_has_the_version_and_the_dated_changes(release, repository):
    release("rl-core", "0.9.0")
    about = "packages/rl-core/src/rl_core/__about__.py"
    assert git(repository.root, "show", f"rl-core-v0.9.0:{about}") == '__version__ = "0.9.0"'
    assert git(repository.root, "show", "rl-core-v0.9.0:packages/rl-core/CHANGELOG.md") == (
        f"# Changelog of rl-core\n\n## 0.9.0 - {DATE}\n\n- First version."
    )


def test_afterwards_the_next_version_is_in_development(release, repository):
    release("rl-core", "0.9.0")
    assert repository.read("packages/rl-core/src/rl_core/__about__.py") == '__version__ = "0.9.1.dev0"\n'
    assert repository.read("packages/rl-core/CHANGELOG.md") == (
        f"# Changelog of rl-core\n\n## Unreleased\n\n## 0.9.0 - {DATE}\n\n- First version.\n"
    )


def test_other_distributions_are_left_alone(release, repository):
    release("rl-core", "0.9.0")
    changed = git(repository.root, "diff", "--name-only", "HEAD~2").splitlines()
    assert {Path(path).parts[1] for path in changed} == {"rl-core"}


def test_a_dry_run_changes_nothing(release, repository, capsys):
    before = git(repository.root, "rev-parse", "HEAD")
    assert release("rl-core", "0.9.0", "--dry-run") == 0
    assert git(repository.root, "rev-parse", "HEAD") == before
    assert git(repository.root, "tag") == git(repository.root, "status", "--porcelain") == ""
    said = capsys.readouterr().out
    assert "rl-core-v0.9.0" in said and "- First version." in said


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.8.9", "not greater than 0.9.0.dev0"),
        ("nine", "not a version"),
        ("0.9.0.dev1", "plain form"),
        ("v0.9.0", "plain form"),
        ("0.9.0+local", "plain form"),
    ],
)
def test_a_version_that_is_none_or_not_greater_is_refused(release, repository, capsys, version, words):
    assert release("rl-core", version) == 1
    assert words in capsys.readouterr().out
    assert git(repository.root, "log", "--format=%s") == "Start"


def test_a_version_is_released_once(release, capsys):
    release("rl-core", "0.9.0")
    assert release("rl-core", "0.9.0") == 1
    assert "not greater than 0.9.1.dev0" in capsys.readouterr().out


def test_a_changed_tree_is_refused(release, repository, capsys):
    repository.write("new.txt", "")
    assert release("rl-core", "0.9.0") == 1
    assert "new.txt" in capsys.readouterr().out


def test_another_branch_is_refused(release, repository, capsys):
    git(repository.root, "switch", "--quiet", "--create", "feature")
    assert release("rl-core", "0.9.0") == 1
    assert "made on main, this is feature" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# Changelog\n\n## Unreleased\n\n## 0.8.0 - 2030-01-01\n\n- Old.\n", "is empty"),
        ("# Changelog\n\n## 0.8.0 - 2030-01-01\n\n- Old.\n", "has no section"),
        ("# Changelog\n\n## Unreleased\n\n- New.\n\n## 0.9.0 - 2030-01-01\n", "a section 0.9.0 already"),
    ],
)
def test_a_changelog_without_news_is_refused(release, repository, capsys, text, words):
    repository.write("packages/rl-core/CHANGELOG.md", text)
    repository.commit()
    assert release("rl-core", "0.9.0") == 1
    assert words in capsys.readouterr().out


def test_an_unknown_distribution_is_refused(release, capsys):
    assert release("rl-nothing", "0.9.0") == 1
    assert "there are rl-core, rl-games, rl-toys" in capsys.readouterr().out


def test_a_plugin_is_released_after_the_core_it_asks_for(release, capsys):
    assert release("rl-toys", "0.1.0") == 1
    assert "release rl-core first" in capsys.readouterr().out
    assert release("rl-core", "0.9.0") == 0
    assert release("rl-toys", "0.1.0") == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (">=0.9.0.dev0,<2", "write rl-core>=0.9,<2"),
        (">=0.9", "a floor and a cap"),
        ("==0.9.*", "a floor and a cap"),
        (">=0.9,<1.5", "a cap is on the major"),
        (">=0.10,<2", "rl-core 0.9.1.dev0 does not satisfy"),
    ],
)
def test_a_plugin_that_asks_for_the_core_in_another_form_is_refused_with_the_cure(
    release, repository, capsys, asked, words
):
    release("rl-core", "0.9.0")
    repository.ask(asked)
    repository.commit()
    assert release("rl-toys", "0.1.0") == 1
    assert words in capsys.readouterr().out


def test_a_core_that_a_plugin_of_the_tree_does_not_accept_is_refused(release, capsys):
    assert release("rl-core", "2.0.0") == 1
    assert "rl-toys asks for rl-core<2,>=0.9, which rl-core 2.0.0 does not satisfy" in capsys.readouterr().out


def found(tool, repository, dist: str) -> list[tuple[str, str]]:
    """Versions of a distribution and the subjects of their commits."""
    releases = tool("history").releases(repository.root, dist)
    return [(str(r.version), git(repository.root, "show", "-s", "--format=%s", r.commit)) for r in releases]


def test_history_finds_tags_and_without_tags_the_release_commits(tool, release, repository):
    release("rl-core", "0.9.0")
    repository.write("packages/rl-core/CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- More.\n")
    repository.commit()
    release("rl-core", "0.10.0")
    expected = [("0.9.0", "Release rl-core 0.9.0"), ("0.10.0", "Release rl-core 0.10.0")]
    assert found(tool, repository, "rl-core") == expected
    git(repository.root, "tag", "--delete", "rl-core-v0.9.0")
    assert found(tool, repository, "rl-core") == expected
    git(repository.root, "tag", "--delete", "rl-core-v0.10.0")
    assert found(tool, repository, "rl-core") == expected
    assert found(tool, repository, "rl-toys") == []


def test_a_tag_wins_over_the_commit_that_set_the_version(tool, release, repository):
    release("rl-core", "0.9.0")
    git(repository.root, "tag", "--force", "rl-core-v0.9.0", "HEAD")
    assert found(tool, repository, "rl-core") == [("0.9.0", "Begin rl-core 0.9.1.dev0")]


def test_a_release_can_be_laid_out_as_it_was(tool, release, repository, tmp_path):
    release("rl-core", "0.9.0")
    history = tool("history")
    (last,) = history.releases(repository.root, "rl-core")
    history.extract(repository.root, last.commit, ["packages/rl-core", "not-there.txt"], tmp_path / "old")
    assert (tmp_path / "old/packages/rl-core/src/rl_core/__about__.py").read_text() == '__version__ = "0.9.0"\n'
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["packages"]


def planned(tool, repository, *plugins: str, last: int = 1) -> tuple[list[str], list[str]]:
    """Cells as text, and the remarks."""
    cells, remarks = tool("compat_plan").cells(repository.root, list(plugins), last)
    return [" + ".join(map(str, (cell.core, cell.plugin, *cell.companions))) for cell in cells], remarks


def test_without_releases_there_is_nothing_to_compare(tool, repository):
    assert planned(tool, repository, "rl-toys")[0] == []
    assert tool("history").no_releases(repository.root, ["rl-core"]) == (
        "no releases yet of rl-core: nothing to compare with"
    )


def test_a_new_core_meets_the_last_plugin_and_the_last_core_the_new_plugin(tool, release, repository):
    release("rl-core", "0.9.0")
    release("rl-toys", "0.1.0")
    assert planned(tool, repository, "rl-toys")[0] == [
        "rl-core 0.9.1.dev0 + rl-toys 0.1.0 + rl-games 0.1.0.dev0",
        "rl-core 0.9.0 + rl-toys 0.1.1.dev0 + rl-games 0.1.0.dev0",
    ]


def more_cores(release, repository, *versions: str) -> None:
    for version in versions:
        repository.write("packages/rl-core/CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n- More.\n")
        repository.commit()
        assert release("rl-core", version) == 0


def test_a_plugin_meets_its_floor_as_well_as_the_last_core(tool, release, repository):
    more_cores(release, repository, "0.9.0", "0.10.0", "0.11.0")
    repository.ask(">=0.10,<2")
    repository.commit()
    cells, remarks = planned(tool, repository, "rl-toys")
    assert [cell.split(" + ")[0] for cell in cells] == ["rl-core 0.10.0", "rl-core 0.11.0"]
    assert remarks == ["rl-toys has no release yet"]


def test_a_pair_that_does_not_claim_to_fit_is_named_and_not_tested(tool, release, repository):
    more_cores(release, repository, "0.9.0")
    repository.version("rl-core", "0.10.0.dev0")
    repository.ask(">=0.10,<2")
    repository.commit()
    cells, remarks = planned(tool, repository, "rl-toys")
    assert cells == []
    assert "rl-toys 0.1.0.dev0 asks for rl-core<2,>=0.10: not tested with rl-core 0.9.0" in remarks


@pytest.mark.parametrize(
    ("version", "following"), [("0.9.0", "0.9.1.dev0"), ("1.2", "1.2.1.dev0"), ("1.0.0rc1", "1.0.0rc2.dev0")]
)
def test_the_next_development_version_comes_after_the_release(tool, version, following):
    assert tool("release").next_development(Version(version)) == following
    assert Version(following) > Version(version)


PROJECTS = {
    "rl-core": ["torch>=2.11", "numpy>=1.24", "typing-extensions>=4.4"],
    "rl-toys": ["rl-core>=0.9,<2", "numpy>=1.26"],
}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for dist, lines in PROJECTS.items():
        (tmp_path / dist).mkdir()
        text = f'[project]\nname = "{dist}"\ndependencies = {lines}\noptional-dependencies.test = ["pytest>=8"]\n'
        (tmp_path / dist / "pyproject.toml").write_text(text)
    return [tmp_path / dist for dist in PROJECTS]


def test_the_resolver_is_asked_for_third_parties_but_torch(tool, folders):
    asked = ["numpy>=1.24", "numpy>=1.26", "pytest>=8", "typing-extensions>=4.4"]
    assert tool("floor_lines").resolver_input(folders) == asked


def test_floors_that_were_not_tested_are_named(tool, folders):
    module = tool("floor_lines")
    pins = {name: Version(text) for name, text in (("numpy", "1.26"), ("typing-extensions", "4.10"), ("pytest", "8"))}
    assert module.raised(module.declared_floors(folders), pins, "2.13.0") == [
        "numpy: declared rl-core >=1.24, rl-toys >=1.26; one environment has one version, 1.26",
        "torch: declared >=2.11, tested with 2.13.0, the development version",
        "typing-extensions: declared rl-core >=4.4; the lowest that installs beside the others is 4.10",
    ]
