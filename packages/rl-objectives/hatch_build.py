"""Build hook: compiles the package's C++ kernels into the wheel, or leaves a pure wheel where there is no compiler.

The kernels are ``extern "C"`` functions on raw pointers, so the library depends on no Python and no torch and the wheel
is tagged ``py3-none-<platform>``. The file is the same in every package; its parameters come from ``pyproject.toml``::

    [tool.hatch.build.hooks.custom]
    package = "rl_buffers"                 # import name; also the prefix of the environment variables
    library = "rl_buffers_native"          # file name without suffix
    sources = ["native/*.cpp"]             # globs, relative to this file

Environment: ``CXX`` names the compiler, ``CXXFLAGS`` adds flags, ``<PACKAGE>_REQUIRE_NATIVE=1`` makes a missing or
failing compiler an error, ``<PACKAGE>_BUILD_NATIVE=0`` builds a pure wheel on purpose.

The library is compiled into a temporary folder and never into the source tree, from where a later pure wheel would
carry it. A wheel holds it at ``<package>/_native/``. An editable install puts it at ``<package>.libs/`` in
site-packages: that name cannot be imported, so it never shadows the package.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra"]
LINUX_FLAGS = ["-Wl,--as-needed"]
COMPILERS = ("c++", "g++", "clang++")


class NativeBuildError(RuntimeError):
    """The kernels could not be compiled."""


def find_compiler() -> list[str]:
    """The compiler's command line: ``$CXX``, else the first of `COMPILERS` that is installed.

    Raises:
        NativeBuildError: there is none.
    """
    command = shlex.split(os.environ.get("CXX", ""))
    if command:
        if shutil.which(command[0]) is None:
            raise NativeBuildError(f"CXX names {command[0]!r}, which is not an installed program")
        return command
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise NativeBuildError(f"no C++ compiler: CXX is not set and none of {', '.join(COMPILERS)} is installed")


def library_file(library: str) -> str:
    """The file name of a shared library here, e.g. ``librl_buffers_native.so``."""
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    return f"lib{library}{suffix}"


def compile_library(root: Path, sources: list[str], target: Path) -> None:
    """Compile all sources (globs under `root`) into the shared library `target`.

    Raises:
        NativeBuildError: no source, no compiler, or the compiler refused; the text holds its output.
    """
    files = sorted(str(path) for pattern in sources for path in root.glob(pattern))
    if not files:
        raise NativeBuildError(f"no source file matches {sources} under {root}")
    command = [*find_compiler(), *FLAGS, *(LINUX_FLAGS if sys.platform == "linux" else [])]
    command += [*shlex.split(os.environ.get("CXXFLAGS", "")), *files, "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{shlex.join(command)} did not run: {error}") from error
    if done.returncode != 0:
        raise NativeBuildError(f"{shlex.join(command)} failed:\n{done.stderr or done.stdout}")


def platform_tag() -> str:
    """The platform part of the wheel's tag, e.g. ``linux_x86_64``."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


class CustomBuildHook(BuildHookInterface):
    """Adds the compiled library to a wheel, or to an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, then tell the builder where the library goes (`version` is "standard" or "editable")."""
        if self.target_name != "wheel":
            return
        package, library = self.config["package"], self.config["library"]
        prefix = package.upper()
        if os.environ.get(f"{prefix}_BUILD_NATIVE") == "0":
            self.app.display_info(f"{package}: pure wheel, as {prefix}_BUILD_NATIVE=0 asks")
            return
        self._folder = tempfile.TemporaryDirectory(prefix=f"{package}-native-")
        target = Path(self._folder.name) / library_file(library)
        try:
            compile_library(Path(self.root), self.config["sources"], target)
        except NativeBuildError as error:
            if os.environ.get(f"{prefix}_REQUIRE_NATIVE") == "1":
                raise
            self.app.display_warning(
                f"{package}: building WITHOUT the C++ kernels; the slower torch twins will be used. Cause: {error}\n"
                f"Install a C++17 compiler (Debian: apt install g++) or set CXX, then install {package} again; "
                f"{prefix}_REQUIRE_NATIVE=1 turns this warning into an error."
            )
            return
        if version == "editable":
            # The forced inclusions replace the usual ones here, and hatchling sets the tag of an editable wheel itself.
            build_data["force_include_editable"] = {str(target): f"{package}.libs/{target.name}"}
        else:
            build_data["force_include"][str(target)] = f"{package}/_native/{target.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()
