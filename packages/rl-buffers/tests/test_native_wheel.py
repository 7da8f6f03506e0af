"""The built wheel carries the kernels under a platform tag, or is pure where there is no compiler."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not (ROOT / "native").is_dir(), reason="needs the source tree")
needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a compiler")


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder), str(ROOT)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, check=False)


@needs_compiler
def test_the_wheel_is_tagged_for_the_platform_and_holds_a_library_that_loads(tmp_path):
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        (library,) = [name for name in archive.namelist() if name.startswith("rl_buffers/_native/")]
        archive.extract(library, tmp_path)
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
        assert "Root-Is-Purelib: false" in archive.read(metadata).decode()
    assert ctypes.CDLL(str(tmp_path / library)).rl_buffers_abi() >= 1
    assert not [path for path in (ROOT / "src").rglob("*") if path.suffix in (".so", ".dylib", ".dll", ".o")]


def test_without_a_compiler_the_wheel_is_pure_and_the_build_says_so(tmp_path):
    done = build(tmp_path, CXX="/no/such/compiler")
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if "_native" in name]
    assert "WITHOUT the C++ kernels" in done.stdout + done.stderr


def test_a_required_kernel_without_a_compiler_fails_the_build(tmp_path):
    done = build(tmp_path, CXX="/no/such/compiler", RL_BUFFERS_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert "/no/such/compiler" in done.stdout + done.stderr and not list(tmp_path.glob("*.whl"))


def test_a_pure_wheel_can_be_asked_for(tmp_path):
    done = build(tmp_path, RL_BUFFERS_BUILD_NATIVE="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [wheel.name.endswith("-any.whl") for wheel in tmp_path.glob("*.whl")] == [True]
