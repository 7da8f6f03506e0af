"""Choosing between the compiled kernels and their torch twins."""

import os
import subprocess
import sys

import pytest
import torch

from rl_core.errors import NativeError
from rl_objectives import native


def state_with(switch):
    code = "from rl_objectives import native; print(*native.doctor_report()[0]); native.library()"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "RL_OBJECTIVES_NATIVE": switch},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_switch_turns_the_kernels_off():
    done = state_with("0")
    assert done.returncode == 0, done.stderr
    assert "off torch twins in use: turned off by RL_OBJECTIVES_NATIVE=0" in done.stdout


def test_the_report_says_where_the_library_lies():
    if native.native_state() == "native":
        assert "librl_objectives_native" in native.doctor_report()[0][2]
    else:
        assert "torch twins in use" in native.doctor_report()[0][2]


def test_demanding_a_missing_library_is_an_error_with_a_cure(monkeypatch):
    monkeypatch.setenv("RL_OBJECTIVES_NATIVE", "1")
    monkeypatch.setattr(native, "_load", lambda: native.Loaded(None, "absent", "no library is installed"))
    with pytest.raises(NativeError, match=r"no library is installed.*Install a C"):
        native.library()


def test_a_library_of_another_abi_is_not_used(monkeypatch):
    if native.native_state() != "native":
        pytest.skip("no library here")
    monkeypatch.setattr(native, "ABI", 999)
    native._load.cache_clear()
    try:
        assert native.library() is None
        assert native.native_state() == "broken"
        assert "needs 999; install rl-objectives again" in native.doctor_report()[0][2]
    finally:
        native._load.cache_clear()


def test_tensors_the_kernels_cannot_take_go_to_the_twin():
    plain = torch.ones(2)
    assert not native.usable(plain.half())
    assert not native.usable(plain, plain.double())
    assert not native.usable(plain.requires_grad_())
    with torch.no_grad():
        assert native.usable(plain) == (native.native_state() == "native")


def test_sizes_are_checked_before_the_kernel_runs():
    if native.native_state() != "native":
        pytest.skip("no library here")
    with pytest.raises(NativeError, match=r"reads 6 elements, \[B, T, F\] = \[1, 3, 2\]; got \[4\]"):
        native.run("rl_linear_recurrence", [torch.ones(6), torch.ones(4)], (1, 3, 2), (), 1)
