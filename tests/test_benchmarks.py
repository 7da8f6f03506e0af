"""Benchmarks still run: our contender of each suite does one repetition, and the table's arithmetic is right."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def harness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_harness", BENCHMARKS / "_harness.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("suite", sorted(path.parent.name for path in BENCHMARKS.glob("*/suite.json")))
def test_our_contender_does_a_repetition(suite: str) -> None:
    text = json.loads((BENCHMARKS / suite / "suite.json").read_text(encoding="utf-8"))
    case = text["cases"][-1]
    takes_part = [entry for entry in text["contenders"] if entry["label"] in case.get("contenders", [entry["label"]])]
    contender = next(entry for entry in takes_part if entry["file"].startswith("ours"))
    arguments = json.dumps({**case["arguments"], **contender.get("arguments", {})})
    command = [
        sys.executable,
        str(BENCHMARKS / "_worker.py"),
        str(BENCHMARKS / suite / contender["file"]),
        arguments,
        "1",
    ]
    done = subprocess.run(command, input="run\n", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ready, answer = map(json.loads, done.stdout.splitlines())
    assert ready["ready"] and "rl-core" in ready["versions"]
    assert answer["seconds"] > 0


def test_a_ratio_is_the_median_of_the_ratios_within_a_round() -> None:
    module = harness()
    result = module.Result(module.Case("case", {}), {"first": [1.0, 2.0, 4.0], "second": [3.0, 4.0, 4.0]})
    assert result.rows() == [
        ["case", "first", "2000.000", "1000.000", "4000.000", "1.00"],
        ["case", "second", "4000.000", "3000.000", "4000.000", "2.00"],
    ]


@pytest.mark.parametrize("suite", sorted(path.parent.name for path in BENCHMARKS.glob("*/suite.json")))
def test_a_suite_names_files_that_exist_and_environments_that_are_made(suite: str) -> None:
    loaded = harness().Suite.load(suite)
    assert [c.file for c in loaded.contenders if not (BENCHMARKS / suite / c.file).is_file()] == []
    assert {c.env for c in loaded.contenders} <= {"ours", "peers"}
