"""rl new plugin: a folder whose tests are green at once, with names that follow from the distribution's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rl_core.cli import main
from rl_core.cli.scaffold import KINDS, PluginNames, write_plugin
from rl_core.errors import RLError
from rl_core.registry.groups import GROUPS
from rl_core.testing import FakeSite

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it there
    import tomli as tomllib


def new(folder: Path, *arguments: str) -> int:
    return main(["new", "plugin", *arguments, "--path", str(folder)])


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]


def install(site: FakeSite, folder: Path) -> None:
    """Write the metadata that an installer would, the package itself stays where it is."""
    metadata = project(folder)
    offers = {group.removeprefix("rl_core."): names for group, names in metadata["entry-points"].items()}
    head = [f"{key}: {metadata[field]}" for key, field in (("Name", "name"), ("Version", "version"))]
    head += [f"Summary: {metadata['description']}", f"Requires-Python: {metadata['requires-python']}"]
    head += [f"License-Expression: {metadata['license']}"]
    head += [f"Requires-Dist: {requirement}" for requirement in metadata["dependencies"]]
    site.dist(metadata["name"], offers, metadata["version"], metadata="\n".join([*head, ""]).encode())


def test_every_kind_alone_and_all_of_them_together_pass_the_tests_that_come_with_them(tmp_path):
    site = FakeSite(tmp_path / "site")
    tests = []
    for kind in KINDS:
        assert new(tmp_path, f"only-{kind}", f"--{kind}") == 0
        tests.append(tmp_path / f"only-{kind}" / "tests" / KINDS[kind].test)
    assert new(tmp_path, "rl-all", *(f"--{kind}" for kind in KINDS)) == 0
    tests.append(tmp_path / "rl-all" / "tests")
    folders = [*(tmp_path / f"only-{kind}" for kind in KINDS), tmp_path / "rl-all"]
    for folder in folders:
        install(site, folder)
    path = [site.folder, *(folder / "src" for folder in folders), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "OMP_NUM_THREADS": "1"}
    options = ("-q", "-c", str(tmp_path / "rl-all" / "pyproject.toml"), "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *options, *map(str, tests)]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_it_imports_neither_torch_nor_a_plugin(tmp_path):
    program = (
        "import json, sys\nfrom rl_core.cli import main\n"
        f"main(['new', 'plugin', 'demo', '--env', '--loss', '--path', {str(tmp_path)!r}])\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    top = json.loads(done.stdout.splitlines()[-1])
    assert [name for name in top if name in ("torch", "tensordict", "numpy") or name.startswith("rl_")] == ["rl_core"]


@pytest.mark.parametrize(
    ("distribution", "package", "name", "prefix"),
    [
        ("demo", "demo", "demo", "Demo"),
        ("rl-grid-world", "rl_grid_world", "grid_world", "GridWorld"),
        ("My.Dist_envs", "my_dist_envs", "my_dist_envs", "MyDistEnvs"),
        ("rl-2048", "rl_2048", "rl_2048", "Rl2048"),
        ("rl-class", "rl_class", "rl_class", "RlClass"),
        ("my-plugin-my-name", "my_plugin_my_name", "my_plugin_my_name", "MyPluginMyName"),
    ],
)
def test_names_follow_from_the_distributions(tmp_path, distribution, package, name, prefix):
    assert new(tmp_path, distribution, "--loss") == 0
    folder = tmp_path / distribution
    assert project(folder)["name"] == distribution
    assert project(folder)["entry-points"] == {"rl_core.losses": {name: f"{package}.loss:{prefix}Loss"}}
    assert f"class {prefix}Loss(LossModule)" in (folder / "src" / package / "loss.py").read_text("utf-8")
    assert f"from {package}.loss import {prefix}Loss\n" in (folder / "tests" / "test_loss.py").read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rl gridworld", "is no distribution's name"),
        ("../demo", "is no distribution's name"),
        ("demo-", "is no distribution's name"),
        ("dëmo", "is no distribution's name"),
        ("2048", "which is no name in Python"),
        ("class", "which is no name in Python"),
        ("random", "hide the module of that name"),
        ("rl-core", "hide the module of that name"),
    ],
)
def test_a_name_that_cannot_be_is_refused_in_one_line_and_nothing_is_written(tmp_path, capsys, name, said):
    assert new(tmp_path, name, "--env") == 2
    err = capsys.readouterr().err
    assert said in err and repr(name) in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_a_kind_it_lists_them(tmp_path, capsys):
    assert new(tmp_path, "demo") == 2
    err = capsys.readouterr().err
    assert all(f"--{kind}" in err for kind in KINDS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    assert new(tmp_path, "demo", "--env") == 2
    assert "is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["mine.txt"]


def test_a_file_in_the_folders_place_is_left_alone(tmp_path):
    (tmp_path / "demo").write_text("mine")
    with pytest.raises(RLError, match="is not an empty folder"):
        write_plugin(PluginNames.of("demo"), ["env"], tmp_path)
    assert (tmp_path / "demo").read_text() == "mine"


def test_an_empty_folder_is_filled_and_missing_parents_are_made(tmp_path):
    (tmp_path / "demo").mkdir()
    assert new(tmp_path, "demo", "--env") == 0
    assert new(tmp_path / "deep" / "er", "demo", "--env") == 0
    assert (tmp_path / "deep" / "er" / "demo" / "pyproject.toml").is_file()


def test_a_kind_asked_for_twice_is_written_once(tmp_path):
    assert new(tmp_path, "demo", "--hooks", "--env", "--hooks") == 0
    assert list(project(tmp_path / "demo")["entry-points"]) == ["rl_core.hooks", "rl_core.envs"]


def test_it_says_what_to_do_next_in_three_lines(tmp_path, capsys):
    new(tmp_path, "demo", "--env")
    first, *then = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "demo") in first
    assert len(then) == 3
    assert "pytest" in then[0] and "nox -s tests" in then[1] and str(Path("src/demo/env.py")) in then[2]


def test_the_range_of_core_has_a_floor_that_the_running_one_meets_and_caps_the_major_only(tmp_path):
    from rl_core import __version__

    new(tmp_path, "demo", "--env")
    (line,) = project(tmp_path / "demo")["dependencies"]
    core = Requirement(line)
    assert core.name == "rl-core"
    assert sorted(clause.operator for clause in core.specifier) == ["<", ">="]
    assert core.specifier.contains(__version__, prereleases=True)


def test_no_placeholder_is_left_and_lines_are_of_ordinary_length(tmp_path):
    new(tmp_path, "rl-gridworld", *(f"--{kind}" for kind in KINDS))
    for file in (path for path in (tmp_path / "rl-gridworld").rglob("*") if path.is_file()):
        text = file.read_text("utf-8")
        assert re.search(r"my.?plugin|my_name|\{(core|kinds|year|table|entry_points)\}", text, re.IGNORECASE) is None
        if file.suffix == ".py":
            assert max(map(len, text.splitlines())) <= 120, file.name


def test_every_kind_is_published_in_a_group_that_the_core_has():
    assert {kind.group for kind in KINDS.values()} <= set(GROUPS)
