"""The examples of ``distributed/``: one loop, with environments here, in Ray actors and in jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "distributed"


@pytest.mark.parametrize(
    "command",
    [
        ["train.py", "process", "2000"],
        ["train.py", "workers", "2000"],
        ["ray_cluster.py", "2000"],
        ["slurm.py", "2000", "local"],
    ],
    ids=lambda command: command[0] + " " + command[1],
)
def test_the_same_training_runs_everywhere(command, tmp_path):
    done = subprocess.run(
        [sys.executable, str(HERE / command[0]), *command[1:]],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lengths = [float(line.split(":")[1]) for line in done.stdout.splitlines() if line.startswith("episode length:")]
    assert len(lengths) == 2 and all(8 < length < 500 for length in lengths)


def test_the_readme_names_every_script():
    text = (HERE / "README.md").read_text()
    for script in HERE.glob("*.py"):
        assert script.name in text, f"README.md does not mention {script.name}"
