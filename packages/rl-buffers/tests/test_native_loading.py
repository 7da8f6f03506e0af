"""Loading the kernels: lazily, checked, with clear errors, and with the twin where that is wanted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_buffers import native
from rl_core.errors import NativeError

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def fresh_load(monkeypatch):
    monkeypatch.delenv("RL_BUFFERS_NATIVE", raising=False)
    native.load.cache_clear()
    yield
    native.load.cache_clear()


def test_the_variable_turns_the_kernels_off(monkeypatch):
    monkeypatch.setenv("RL_BUFFERS_NATIVE", "0")
    assert native.library() is None and native.native_state() == "off"
    assert native.doctor_report() == [("rl-buffers kernels", "off", "RL_BUFFERS_NATIVE=0")]


def test_an_absent_library_is_reported_with_the_cure(monkeypatch, tmp_path):
    monkeypatch.setattr(native, "_candidates", lambda: [tmp_path / "nothing.so"])
    assert native.library() is None
    ((_, state, detail),) = native.doctor_report()
    assert state == "absent" and "nothing.so" in detail and "g++" in detail


def test_a_required_library_that_is_absent_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("RL_BUFFERS_NATIVE", "1")
    monkeypatch.setattr(native, "_candidates", lambda: [tmp_path / "nothing.so"])
    with pytest.raises(NativeError, match=r"RL_BUFFERS_NATIVE=1.*nothing.so"):
        native.library()
    assert native.native_state() == "absent"


def test_a_file_that_is_no_library_falls_back_with_a_warning(monkeypatch, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native, "_candidates", lambda: [broken])
    with pytest.warns(RuntimeWarning, match=r"broken\.so is not a library of rl-buffers kernels"):
        assert native.library() is None
    assert native.native_state() == "broken"


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")
def test_a_library_of_another_version_is_refused(tmp_path):
    source, library = tmp_path / "old.cpp", tmp_path / "libold.so"
    source.write_text('extern "C" long long rl_buffers_abi() { return 999; }')
    subprocess.run(["c++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    with pytest.raises(NativeError, match=f"interface number 999, this rl-buffers needs {native.ABI}"):
        native.open_library(library)


def test_the_interface_number_is_that_of_the_sources():
    header = (ROOT / "native" / "abi.h").read_text()
    assert f"kAbi = {native.ABI};" in header


def test_importing_the_package_loads_no_library():
    code = (
        "import rl_buffers, rl_buffers.native as n, rl_buffers.buffer, rl_buffers.storages.lazy_tensor\n"
        "rl_buffers.ReplayBuffer(storage=rl_buffers.ListStorage(3))\n"
        "assert n.load.cache_info().currsize == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
