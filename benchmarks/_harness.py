"""Paired measurement: contenders from different environments take turns in one run, and ratios come from the turns.

    python benchmarks/_harness.py collect --python ours=PATH --python peers=PATH [--rounds 7] [--processes 3]

A suite is a folder with ``suite.json`` (title, contenders, cases) and one file per contender. For every case the
contenders' workers (``_worker.py``) are started ``--processes`` times; in each of ``--rounds`` rounds every worker does
one repetition, in an order that is rotated from round to round, while the others wait. The table has the median, the
fastest and the slowest repetition, and the median over all rounds of (contender / first contender of the same round),
so that a machine that slows down for everyone leaves the ratios alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass
class Contender:
    """One file of a suite, the environment it runs in, and arguments of its ``build`` beside the case's."""

    file: str
    env: str
    label: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class Case:
    """Arguments of ``build`` of its contenders (default: all); ``repeats`` calls in a row make one repetition."""

    name: str
    arguments: dict[str, Any]
    repeats: int = 1
    contenders: list[str] = field(default_factory=list)


@dataclass
class Suite:
    """What ``suite.json`` says."""

    name: str
    title: str
    contenders: list[Contender]
    cases: list[Case]

    @classmethod
    def load(cls, name: str) -> Suite:
        """Read a suite by the name of its folder."""
        file = HERE / name / "suite.json"
        if not file.is_file():
            known = ", ".join(sorted(path.parent.name for path in HERE.glob("*/suite.json")))
            raise SystemExit(f"unknown suite {name!r}: there is no {file}. Suites: {known}")
        text = json.loads(file.read_text(encoding="utf-8"))
        contenders = [Contender(**entry) for entry in text["contenders"]]
        return cls(name, text["title"], contenders, [Case(**entry) for entry in text["cases"]])


class Worker:
    """A contender's process."""

    def __init__(self, python: str, suite: str, contender: Contender, case: Case) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
        script = HERE / suite / contender.file
        self.label = contender.label
        self.process = subprocess.Popen(
            [
                python,
                str(HERE / "_worker.py"),
                str(script),
                json.dumps({**case.arguments, **contender.arguments}),
                str(case.repeats),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def wait_until_ready(self) -> dict[str, str]:
        """The versions of the libraries in it, as soon as its work is built."""
        versions: dict[str, str] = self._answer()["versions"]
        return versions

    def run(self) -> float:
        """Seconds of one repetition."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"the worker of {self.label!r} ended (exit code {self.process.wait()}); its message is above"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Result:
    """All repetitions of one case: ``seconds[label][i]`` was measured in round ``i``, beside the others."""

    case: Case
    seconds: dict[str, list[float]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def rows(self) -> list[list[str]]:
        """The case's rows of the table."""
        first = next(iter(self.seconds.values()))
        return [
            [
                self.case.name,
                label,
                *(f"{1e3 * pick(times):.3f}" for pick in (median, min, max)),
                f"{median(t / base for t, base in zip(times, first, strict=True)):.2f}",
            ]
            for label, times in self.seconds.items()
        ]


def measure(suite: Suite, case: Case, pythons: dict[str, str], rounds: int, processes: int) -> Result:
    """Let the contenders of one case take turns."""
    result = Result(case)
    names = case.contenders or [contender.label for contender in suite.contenders]
    contenders = [each for each in suite.contenders if each.env in pythons and each.label in names]
    if not contenders:
        raise SystemExit(f"no contender of {suite.name} runs in {', '.join(pythons)}: name their Pythons with --python")
    for _ in range(processes):
        with contextlib.ExitStack() as stack:
            workers = []
            for contender in contenders:
                workers.append(Worker(pythons[contender.env], suite.name, contender, case))
                stack.callback(workers[-1].close)
            for worker in workers:
                result.versions[worker.label] = worker.wait_until_ready()
            for worker in workers:
                worker.run()  # warm-up
            for turn in range(rounds):
                start = turn % len(workers)
                seconds = {worker.label: worker.run() for worker in workers[start:] + workers[:start]}
                for worker in workers:
                    result.seconds.setdefault(worker.label, []).append(seconds[worker.label])
    return result


HEADER = ["case", "contender", "median ms", "min ms", "max ms", "ratio"]


def markdown(suite: Suite, results: list[Result], rounds: int, processes: int) -> str:
    """The table of a run with its machine and versions."""
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---|---:|---:|---:|---:|"]
    lines += ["| " + " | ".join(row) + " |" for result in results for row in result.rows()]
    versions: dict[str, dict[str, str]] = {}
    for result in results:
        versions.update(result.versions)
    lines += ["", f"{date.today()}, {machine()}; {processes} processes x {rounds} rounds, one thread each.", ""]
    lines += [f"- {label}: " + ", ".join(f"{k} {v}" for k, v in found.items()) for label, found in versions.items()]
    return f"### {suite.title}\n\n" + "\n".join(lines) + "\n"


def machine() -> str:
    """Processor, number of cores and system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return f"{model or platform.machine()}, {os.cpu_count()} cores, {platform.system()}"


def show(suite: Suite, results: list[Result]) -> None:
    """Print the table, with rich where it is installed."""
    rows = [row for result in results for row in result.rows()]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print("\n".join("\t".join(row) for row in [HEADER, *rows]))
        return
    table = Table(title=suite.title)
    for column in HEADER:
        table.add_column(column, justify="left" if column in HEADER[:2] else "right")
    for result in results:
        for row in result.rows():
            table.add_row(*row)
        table.add_section()
    Console().print(table)


def main() -> None:
    """Measure a suite, print the table, leave JSON and Markdown in ``benchmarks/results/``."""
    parser = argparse.ArgumentParser(description="Measure a suite of benchmarks, contenders taking turns.")
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="a folder of benchmarks/ that has a suite.json")
    parser.add_argument(
        "--python", action="append", default=[], metavar="ENV=PATH", help="the Python of an environment"
    )
    parser.add_argument("--case", action="append", metavar="NAME", help="only this case (may be repeated)")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds per process (default: 7)")
    parser.add_argument("--processes", type=int, default=3, help="how often each worker is started anew (default: 3)")
    options = parser.parse_args()
    pythons = dict(entry.split("=", 1) for entry in options.python) or {"ours": sys.executable}
    for name in options.suites:
        suite = Suite.load(name)
        cases = [case for case in suite.cases if not options.case or case.name in options.case]
        if not cases:
            raise SystemExit(f"no such case in {name}: its cases are {', '.join(case.name for case in suite.cases)}")
        results = [measure(suite, case, pythons, options.rounds, options.processes) for case in cases]
        show(suite, results)
        _write(suite, results, markdown(suite, results, options.rounds, options.processes))


def _write(suite: Suite, results: list[Result], table: str) -> None:
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    raw = [{"case": r.case.name, "seconds": r.seconds, "versions": r.versions} for r in results]
    content = {"suite": suite.name, "date": str(date.today()), "machine": machine(), "results": raw}
    (folder / f"{suite.name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / f"{suite.name}.md").write_text(table, encoding="utf-8")
    print(f"written: benchmarks/results/{suite.name}.json, benchmarks/results/{suite.name}.md")


if __name__ == "__main__":
    main()
