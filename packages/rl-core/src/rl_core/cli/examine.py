"""The examination behind ``rl doctor``: each distribution's plugins are tried in a process of their own."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_core.registry.entry import Entry

__all__ = ["Finding", "conflicts_of", "examine", "examine_hooks"]


@dataclass(frozen=True)
class Finding:
    """What one try has shown.

    Args:
        entry: what was tried.
        state: ``ok``, ``broken``, ``crashed`` or ``timed out``.
        detail: the error, or how the process ended; empty where all is well.
        seconds: how long the import took, in seconds.
        report: rows ``[name, state, detail]`` that the plugin says about itself.
    """

    entry: Entry
    state: str
    detail: str = ""
    seconds: float = 0.0
    report: list[list[str]] = field(default_factory=list)


def examine(entries: Sequence[Entry], timeout: float) -> list[Finding]:
    """Try the entries: one process a distribution, two at a time, and a new process after one that died.

    Args:
        entries: what to try.
        timeout: seconds that one distribution may take.
    """
    by_dist: dict[str, list[Entry]] = {}
    for entry in entries:
        by_dist.setdefault(entry.dist, []).append(entry)
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda group: _examine_dist(group, timeout), by_dist.values())
        return [finding for findings in found for finding in findings]


def examine_hooks(timeout: float) -> list[list[str]]:
    """The rows that the hook plugins report, from a process of their own."""
    lines, ended = _run_probe({"hooks": True}, timeout)
    if lines and "report" in lines[-1]:
        rows: list[list[str]] = lines[-1]["report"]
        return rows
    return [["hooks", *ended]]


def _examine_dist(entries: list[Entry], timeout: float) -> list[Finding]:
    findings: list[Finding] = []
    while len(findings) < len(entries):
        left = entries[len(findings) :]
        lines, (state, detail) = _run_probe({"entries": [(e.group, e.qualified) for e in left]}, timeout)
        tried = [line for line in lines if line["state"] != "trying"]
        findings += [
            Finding(entry, line["state"], line["detail"], line["seconds"], line["report"])
            for entry, line in zip(left, tried, strict=False)
        ]
        if len(tried) < len(left):
            findings.append(Finding(left[len(tried)], state, detail))
    return findings


def _run_probe(request: dict[str, Any], timeout: float) -> tuple[list[dict[str, Any]], tuple[str, str]]:
    """The lines that a probe wrote, and how it ended: a state and a detail."""
    with tempfile.TemporaryDirectory(prefix="rl-doctor-") as folder:
        asked, told = Path(folder, "request.json"), Path(folder, "result.jsonl")
        asked.write_text(json.dumps({"path": sys.path, **request}), encoding="utf-8")
        told.touch()
        command = [sys.executable, "-m", "rl_core.cli.probe", str(asked), str(told)]
        # An empty part of PYTHONPATH would mean the current folder.
        folders = [_core_folder(), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=environment, check=False
            )
            ended = ("crashed", _how_it_ended(done))
        except subprocess.TimeoutExpired:
            ended = ("timed out", f"nothing came back in {timeout:g} s")
        return [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()], ended


def _core_folder() -> str:
    """The folder that holds this very rl_core: the probe must not run another one."""
    return str(Path(__file__).resolve().parents[2])


def _how_it_ended(done: subprocess.CompletedProcess[bytes]) -> str:
    last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    if done.returncode < 0:
        try:
            return f"its process died of {signal.Signals(-done.returncode).name}; last words: {last}"
        except ValueError:
            pass
    return f"its process ended with code {done.returncode}; last words: {last}"


def conflicts_of(dist: str) -> list[str]:
    """The requirements of an installed distribution that what is installed does not meet."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        lines = importlib.metadata.requires(dist) or []
    except Exception as error:  # unreadable metadata raises almost anything, and is a finding
        return [f"the requirements of {dist} cannot be read ({type(error).__name__}: {error})"]
    found: list[str] = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement as error:
            found.append(f"{dist} asks for {line!r}, which is no requirement ({error})")
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found += _unmet(dist, requirement)
    return found


def _unmet(dist: str, requirement: Any) -> list[str]:
    from packaging.version import InvalidVersion, Version

    asked = f"{requirement.name}{requirement.specifier}"
    try:
        version = importlib.metadata.version(requirement.name)
        # As in the handshake, a pre-release counts as the release that it leads to.
        fits = requirement.specifier.contains(Version(version).base_version, prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return [f"{dist} needs {asked}, which is not installed: pip install '{asked}'"]
    except (InvalidVersion, TypeError) as error:
        return [f"{dist} needs {asked}, whose installed version cannot be read ({error})"]
    return [] if fits else [f"{dist} needs {asked}, found {version}: pip install '{asked}'"]
