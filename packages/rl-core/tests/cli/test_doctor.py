"""rl doctor: every plugin in a process of its own, conflicts, and a block for a bug report."""

from __future__ import annotations

import pytest

from rl_core import registry
from rl_core.cli import main
from rl_core.cli.examine import conflicts_of, examine

LOSS = "class Loss:\n    def forward(self, td): ...\n"


def doctor(capsys, *arguments: str) -> tuple[int, str]:
    code = main(["doctor", *arguments])
    return code, capsys.readouterr().out


def test_a_healthy_distribution_is_well_and_the_report_can_be_pasted(site, capsys):
    site.module("well_mod", LOSS)
    site.dist("well-dist", {"losses": {"well": "well_mod:Loss"}})
    code, out = doctor(capsys, "well_dist")
    assert code == 0
    block = out.split("```text\n")[1].split("```")[0]
    for part in ("python 3.", "rl-core ", "torch ", "tensordict ", "well-dist 1.0"):
        assert part in block
    assert "conflicts" not in out


def test_a_plugin_that_kills_its_process_does_not_stop_its_siblings(site):
    site.module("crash_mod", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    site.module("noise_mod", 'print(\'{"not": "ours"}\')\n' + LOSS)
    offers = {"a_noisy": "noise_mod:Loss", "b_crash": "crash_mod:Loss", "c_after": "noise_mod:Loss"}
    site.dist("mixed-dist", {"losses": offers})
    entries = [entry for entry in registry.entries() if entry.dist == "mixed-dist"]
    findings = {finding.entry.name: finding for finding in examine(entries, timeout=60)}
    assert {name: finding.state for name, finding in findings.items()} == {
        "a_noisy": "ok", "b_crash": "crashed", "c_after": "ok",
    }  # fmt: skip
    assert "SIGKILL" in findings["b_crash"].detail


def test_a_plugin_that_hangs_is_stopped(site):
    site.module("hang_mod", "import threading\nthreading.Event().wait()")
    site.dist("hang-dist", {"losses": {"hang": "hang_mod:Loss"}})
    [finding] = examine([entry for entry in registry.entries() if entry.dist == "hang-dist"], timeout=1.5)
    assert finding.state == "timed out"


def test_what_fails_is_in_the_block_with_its_cause(site, capsys):
    site.module("bad_mod", "raise OSError('undefined symbol: _ZN5torch')")
    site.dist("bad-dist", {"losses": {"bad": "bad_mod:Loss"}})
    code, out = doctor(capsys, "bad-dist")
    assert code == 1
    assert "undefined symbol: _ZN5torch" in out.split("```text\n")[1]


def test_the_report_of_a_package_and_of_a_hook_plugin_are_shown(site, capsys):
    site.module("native_mod", LOSS + "def doctor_report():\n    return [('native scan', 'ok', 'gcc 12')]\n")
    site.module(
        "hook_mod",
        "from rl_core import hookimpl\n@hookimpl\ndef doctor_report():\n    return [('cluster', 'absent', 'no ray')]\n",
    )
    site.dist("native-dist", {"losses": {"n": "native_mod:Loss"}, "hooks": {"h": "hook_mod"}})
    code, out = doctor(capsys, "native-dist")
    assert code == 0
    assert "native scan  ok  gcc 12" in out
    assert "cluster  absent  no ray" in out


def test_a_report_that_fails_is_a_finding(site, capsys):
    site.module("torn_mod", LOSS + "def doctor_report():\n    raise ValueError('no idea')\n")
    site.dist("torn-dist", {"losses": {"n": "torn_mod:Loss"}})
    _, out = doctor(capsys, "torn-dist")
    assert "doctor_report  broken  ValueError: no idea" in out


def test_a_requirement_that_is_not_met_is_a_conflict(site):
    requires = ("rl-core>=0.9.0.dev0,<2", "pluggy>=999", "no-such-distribution-anywhere", "pluggy<1; extra == 'x'")
    site.dist("greedy-dist", {"losses": {"g": "m:L"}}, requires=requires)
    found = conflicts_of("greedy-dist")
    assert len(found) == 2
    assert "needs pluggy>=999, found " in found[0]
    assert "pip install 'no-such-distribution-anywhere'" in found[1]


def test_a_clash_of_names_is_a_conflict(site, capsys):
    site.module("a_mod", LOSS)
    site.dist("a-dist", {"weight_syncs": {"same": "a_mod:Loss"}})
    site.dist("b-dist", {"weight_syncs": {"same": "a_mod:Loss"}})
    entries = [entry for entry in registry.entries() if entry.dist in ("a-dist", "b-dist")]
    with registry.isolated(entry_points=entries):
        code, out = doctor(capsys)
    assert code == 1
    assert "weight_syncs same is offered by a-dist 1.0 and b-dist 1.0" in out


def test_an_unknown_distribution_suggests_a_close_one(site, capsys):
    site.dist("well-dist", {"losses": {"w": "m:L"}})
    assert main(["doctor", "wel-dist"]) == 2
    assert "did you mean 'well-dist'" in capsys.readouterr().err


@pytest.mark.parametrize("state", ["unreadable", "version mismatch"])
def test_a_misfit_is_not_imported_but_reported(site, capsys, state):
    site.module("misfit_mod", "raise SystemExit('it ran')")
    if state == "unreadable":
        site.dist("misfit-dist", {"losses": {"m": "misfit_mod:L"}}, metadata=b"\xff")
    else:
        site.dist("misfit-dist", {"losses": {"m": "misfit_mod:L"}}, requires=("rl-core>=99",))
    code, out = doctor(capsys, "misfit-dist")
    assert code == 1
    assert state in out
    assert "it ran" not in out
