"""Choosing a level, refusing, explaining, and judging an ending; nothing here needs a kernel feature."""

from __future__ import annotations

import os
import shutil
import signal
import warnings

import pytest

from rl_core.errors import RLError, SpecError
from rl_llm.tools.sandbox import levels
from rl_llm.tools.sandbox import sandbox as executor
from rl_llm.tools.sandbox.limits import Limits
from rl_llm.tools.sandbox.result import SandboxError
from rl_llm.tools.sandbox.running import Ending
from rl_llm.tools.sandbox.sandbox import Sandbox
from rl_llm.tools.sandbox.verdict import judge

EXITED = 256  # the wait status of exit code 1


@pytest.fixture
def forbidden(monkeypatch):
    """Every launch fails, as in a container that forbids namespaces."""

    def refuse(self, *args, **kwargs):
        raise SandboxError("PermissionError: [Errno 1] unshare: Operation not permitted")

    monkeypatch.setattr(Sandbox, "run", refuse)


def test_auto_never_comes_to_unsafe_local_and_gives_every_reason(forbidden):
    with pytest.raises(SandboxError) as caught:
        Sandbox()
    text = str(caught.value)
    assert isinstance(caught.value, RLError)
    assert "bubblewrap: " in text
    assert "namespaces: PermissionError: [Errno 1] unshare: Operation not permitted" in text
    assert "landlock: " in text
    assert "unsafe_local: " not in text


def test_a_named_level_is_not_replaced_by_another(forbidden):
    with pytest.raises(SandboxError) as caught:
        Sandbox("namespaces")
    assert "landlock:" not in str(caught.value)


def test_an_unknown_level_is_refused():
    with pytest.raises(SandboxError, match=r"unsafe_local or 'auto'; got 'docker'"):
        Sandbox("docker")


def test_unsafe_local_refuses_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SandboxError, match="this process is root"):
        Sandbox("unsafe_local")


def test_unsafe_local_warns(monkeypatch):
    monkeypatch.setattr(levels.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Sandbox, "_fails", lambda self, level: None)
    with pytest.warns(UserWarning, match="isolates nothing"):
        sandbox = Sandbox("unsafe_local")
    assert "NOT KEPT" in sandbox.explain()


def test_the_first_level_that_works_is_taken_and_the_others_reasons_are_told(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(Sandbox, "_fails", lambda self, level: "masked /proc" if level == "namespaces" else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sandbox = Sandbox()
    text = sandbox.explain()
    assert sandbox.level == "landlock"
    assert text.splitlines()[0] == "sandbox level: landlock"
    assert "not bubblewrap: there is no program 'bwrap'" in text
    assert "not namespaces: masked /proc" in text


def test_root_does_not_use_bubblewrap(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/bwrap")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "root" in (levels.why_not("bubblewrap") or "")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert levels.why_not("bubblewrap") is None


def test_a_level_that_starts_but_does_not_run_is_not_taken(monkeypatch):
    class Odd:
        stdout, stderr, status = "", "cannot load libpython", "error"

    monkeypatch.setattr(Sandbox, "run", lambda self, code: Odd())
    with pytest.raises(SandboxError, match="cannot load libpython"):
        Sandbox("namespaces")


def test_a_private_folder_is_removed_whatever_was_done_to_it():
    with executor._folder() as path:
        os.makedirs(os.path.join(path, "a", "b"))
        os.symlink("/", os.path.join(path, "a", "root"))
        os.chmod(os.path.join(path, "a", "b"), 0)
        os.chmod(os.path.join(path, "a"), 0)
    assert not os.path.exists(path)
    assert os.path.exists("/tmp")


@pytest.mark.parametrize(
    ("verdict", "ending", "expected"),
    [
        (None, Ending(wait_status=0), ("ok", 0)),
        (None, Ending(wait_status=EXITED), ("error", 1)),
        (None, Ending(wait_status=125 << 8), ("oom", 125)),
        (None, Ending(wait_status=9, oom=True), ("oom", None)),
        (None, Ending(wait_status=signal.SIGXCPU), ("timeout", -signal.SIGXCPU)),
        (None, Ending(wait_status=signal.SIGKILL, cpu_s=11.0), ("timeout", -9)),
        (None, Ending(wait_status=signal.SIGKILL, cpu_s=1.0), ("killed", -9)),
        (None, Ending(wait_status=signal.SIGSEGV), ("killed", -11)),
        (None, Ending(), ("killed", None)),
        (None, None, ("killed", None)),
        ("timeout", Ending(wait_status=9), ("timeout", None)),
        ("output_truncated", Ending(wait_status=0), ("output_truncated", None)),
    ],
)
def test_the_status_follows_from_what_the_parent_saw(verdict, ending, expected):
    assert judge(verdict, ending, 10) == expected


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "1"])
def test_limits_are_positive_numbers(value):
    with pytest.raises(SpecError, match="wall_s"):
        Limits(wall_s=value)


def test_limits_of_counts_are_integers():
    with pytest.raises(SpecError, match=r"memory_bytes is a positive integer; got 1\.5"):
        Limits(memory_bytes=1.5)
