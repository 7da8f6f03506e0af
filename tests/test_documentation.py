"""What the README and the guide say is true: their Python runs, their names exist, their links lead somewhere."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "STYLE.md", "benchmarks/README.md")]
TEXTS += sorted((ROOT / "docs").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("text", [path for path in TEXTS if BLOCK.search(path.read_text(encoding="utf-8"))], ids=names)
def test_the_python_of_a_text_runs_from_top_to_bottom(text: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(BLOCK.findall(text.read_text(encoding="utf-8"))), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_names_of_the_torchrl_table_are_importable() -> None:
    table = (ROOT / "docs" / "coming-from-torchrl.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`torchrl.*?) \| `(rl_\w+)` \|$", table, re.MULTILINE)
    assert len(rows) > 5
    missing = [
        f"{package}.{name}"
        for cell, package in rows
        for name in re.findall(r"`([A-Za-z_]+)`", cell)
        if not hasattr(importlib.import_module(package), name)
    ]
    assert missing == []


def test_the_plugin_guide_lists_every_group() -> None:
    from rl_core.registry.groups import GROUPS, PREFIX

    guide = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    assert [group for group in GROUPS if f"`{PREFIX}{group}`" not in guide] == []


@pytest.mark.parametrize("text", TEXTS, ids=names)
def test_the_relative_links_of_a_text_lead_to_files(text: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text.read_text(encoding="utf-8"))
    made_by_the_build = {"api/generated/index.rst"}
    assert [link for link in links if link not in made_by_the_build and not (text.parent / link).exists()] == []


def test_the_readme_and_ci_run_the_same_test_command() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "python -m pip install nox && python -m nox -s tests" in script
    assert "python -m pip install nox && " in readme and "python -m nox -s tests" in readme
