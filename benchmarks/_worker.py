"""One contender as a process: builds its work once, then does one measured repetition per line ``run`` on stdin.

Started by ``_harness.py`` as ``python _worker.py CONTENDER.py '{"n_envs": 16}' REPEATS``. The contender's file has
``build(**case)``, which returns a function without arguments: the work of one repetition. Answers are JSON lines.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

VERSIONS = (
    *("torch", "tensordict", "numpy", "gymnasium", "stable-baselines3", "torchrl", "cpprb"),
    *("rl-core", "rl-envs", "rl-modules", "rl-collectors", "rl-buffers", "rl-objectives", "rl-marl", "rl-llm"),
    *("vmas", "transformers", "trl"),
)


def main(path: str, case: str, repeats: str) -> None:
    """Answer ``run`` lines until stdin closes."""
    answers = _take_stdout()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    work = _load(path).build(**json.loads(case))
    _answer(answers, {"ready": True, "versions": _versions()})
    for line in sys.stdin:
        if line.strip() != "run":
            raise SystemExit(f"expected the line 'run', got {line!r}")
        _answer(answers, {"seconds": _measure(work, int(repeats))})


def _measure(work: Callable[[], object], repeats: int) -> float:
    """Seconds of one repetition: the mean over ``repeats`` calls in a row."""
    gc.collect()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def _take_stdout() -> Any:
    """Keep the real stdout for answers; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _answer(stream: Any, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"contender_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    sys.path.append(str(Path(path).parent))  # last: a suite's files must not hide an installed package
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
