"""Builds and runs the C++ test programs of all packages under the sanitizers of GCC or Clang.

``packages/<dist>/native/tests/*.cpp`` are programs, each linked with all of ``packages/<dist>/native/*.cpp``. Every one
runs under AddressSanitizer and UndefinedBehaviorSanitizer; those whose names start with ``race_`` under ThreadSanitizer
as well.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

import nox

__all__ = ["run_native_tests"]

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-omit-frame-pointer"]
MEMORY = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
THREADS = ["-fsanitize=thread"]
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


def run_native_tests(session: nox.Session) -> None:
    """Compile and run each program whose name contains one of the session's arguments (all without arguments)."""
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    with tempfile.TemporaryDirectory(prefix="native-tests-") as folder:
        for program in sorted(ROOT.glob("packages/*/native/tests/*.cpp")):
            if session.posargs and not any(part in str(program.relative_to(ROOT)) for part in session.posargs):
                continue
            sources = sorted(str(path) for path in program.parent.parent.glob("*.cpp"))
            for sanitizer in (MEMORY, THREADS) if program.name.startswith("race_") else (MEMORY,):
                target = str(Path(folder) / program.stem)
                session.log(f"{program.relative_to(ROOT)} with {sanitizer[0]}")
                command = [*compiler, *FLAGS, *sanitizer, *sources, str(program), "-o", target]
                session.run(*command, external=True, silent=True)
                session.run(target, external=True, env=OPTIONS)
