"""Train ours and the peers at equal frames, one run after the other, and keep each run's curve as a CSV.

    python benchmarks/marl_learning/run.py navigation --python ours=PATH --python peers=PATH --python benchmarl=PATH

Curves go to ``OUT/TASK-ALGORITHM/CONTENDER-seedS.csv`` with the columns ``frames`` and ``return``: the return of an
episode, summed over its steps, as the mean over agents and over the episodes that ended in a batch. What a run cost
in processor seconds goes to ``OUT/cost.csv``. A run whose curve exists is not repeated. ``compare.py OUT`` sums up.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

ENVS = {"navigation": "vmas:navigation", "spread": "pettingzoo:mpe2/simple_spread_v3"}
FRAMES = {"navigation": 60_000, "spread": 100_000}
CONTENDERS = {
    ("navigation", "mappo"): ("ours", "torchrl", "benchmarl"),
    ("navigation", "ippo"): ("ours", "benchmarl"),
    ("spread", "mappo"): ("ours", "benchmarl"),
    ("spread", "qmix"): ("ours", "benchmarl"),
}
ENVIRONMENTS = {"ours": "ours", "torchrl": "peers", "benchmarl": "benchmarl"}
"""Which of the three Pythons a contender runs in."""


@dataclass(frozen=True)
class Run:
    """One training."""

    task: str
    algorithm: str
    contender: str
    seed: int
    frames: int
    out: Path

    @property
    def curve(self) -> Path:
        """Where the curve lies."""
        return self.out / f"{self.task}-{self.algorithm}" / f"{self.contender}-seed{self.seed}.csv"

    def command(self, python: str) -> list[str]:
        """How it is started."""
        amount = ["--frames", str(self.frames), "--seed", str(self.seed)]
        if self.contender == "torchrl":
            return [python, str(HERE / "torchrl_navigation.py"), *amount, "--out", str(self.curve)]
        if self.contender == "benchmarl":
            script = [str(HERE / "benchmarl_run.py"), self.algorithm, self.task]
            return [python, *script, *amount, "--out", str(self.curve)]
        recipe = [str(Path(python).with_name("rl")), "train", self.algorithm, "--env", ENVS[self.task]]
        return [*recipe, *amount, "--no-progress", "--run-dir", str(self.curve.parent), "--name", self.curve.stem]


def take_curve(metrics: Path, curve: Path) -> None:
    """Keep what a curve needs of the ``metrics.csv`` that a run of ours leaves."""
    with metrics.open(newline="", encoding="utf-8") as file:
        rows = [(row["step"], row["train/return"]) for row in csv.DictReader(file) if row.get("train/return")]
    with curve.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("frames", "return"), *rows])


def train(run: Run, python: str) -> None:
    """Do one run and write down what it cost."""
    run.curve.parent.mkdir(parents=True, exist_ok=True)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": ""}
    before = _seconds()
    subprocess.run(run.command(python), check=True, env=one_thread)
    if run.contender == "ours":
        take_curve(run.curve.with_suffix("") / "metrics.csv", run.curve)
    with (run.out / "cost.csv").open("a", newline="", encoding="utf-8") as file:
        name = run.curve.relative_to(run.out).with_suffix("").as_posix()
        csv.writer(file).writerow([name, f"{_seconds() - before:.1f}"])


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def planned(options: argparse.Namespace) -> Iterator[Run]:
    """The runs asked for, ours first."""
    for (task, algorithm), contenders in CONTENDERS.items():
        if task not in options.tasks or (options.algorithm and algorithm not in options.algorithm):
            continue
        frames = options.frames or FRAMES[task]
        for contender in contenders:
            if options.contender and contender not in options.contender:
                continue
            for seed in options.seeds:
                yield Run(task, algorithm, contender, seed, frames, options.out)


def main() -> None:
    """Do what is asked for and not done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=sorted(ENVS))
    parser.add_argument("--python", action="append", default=[], metavar="ENV=PATH", help="ours, peers, benchmarl")
    parser.add_argument("--algorithm", action="append", help="only this one (may be repeated)")
    parser.add_argument("--contender", action="append", choices=sorted(ENVIRONMENTS), help="likewise")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--frames", type=int, default=0, help="default: 60,000 for navigation, 100,000 for spread")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "marl_learning")
    options = parser.parse_args()
    pythons = dict(entry.split("=", 1) for entry in options.python)
    for run in planned(options):
        python = pythons.get(ENVIRONMENTS[run.contender])
        if python is None or run.curve.is_file():
            print(f"skipped: {run.curve} ({'it exists' if python else 'no Python for it'})", flush=True)
            continue
        print(f"training: {run.curve}", flush=True)
        train(run, python)


if __name__ == "__main__":
    main()
