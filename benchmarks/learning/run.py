"""Train ours and the peers at equal frames, one run after the other, and keep each run's curve as a CSV.

    python benchmarks/learning/run.py --python ours=PATH --python peers=PATH [EXPERIMENT ...]

Curves go to ``OUT/EXPERIMENT/CONTENDER-seedS.csv`` with the columns ``frames`` and ``return``: the mean return of the
episodes of a deterministic evaluation. What a run cost in processor seconds goes to ``OUT/cost.csv``. A run whose curve
exists is not repeated, so a queue that was stopped goes on by the same command. ``compare.py OUT`` sums up.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from experiments import EXPERIMENTS, Experiment  # noqa: E402 (a folder of scripts)


@dataclass(frozen=True)
class Run:
    """One training."""

    name: str
    experiment: Experiment
    contender: str
    seed: int
    out: Path

    @property
    def curve(self) -> Path:
        """Where the curve lies."""
        return self.out / self.name / f"{self.contender}-seed{self.seed}.csv"

    @property
    def folder(self) -> Path:
        """Where a run of ours lies."""
        return self.curve.with_suffix("")

    def command(self, python: str) -> list[str]:
        """How it is started."""
        if self.contender != "ours":
            script = [str(HERE / "sb3_run.py"), self.name, "--contender", self.contender]
            return [python, *script, "--seed", str(self.seed), "--out", str(self.curve)]
        task = self.experiment
        given = {
            "env": task.env,
            "frames": task.frames,
            "seed": self.seed,
            "eval_every": task.frames // task.evaluations,
            "eval_episodes": task.eval_episodes,
            "progress": False,
            "run_dir": self.out / self.name,
            "name": self.folder.name,
            **({"video": False} if task.films else {}),
            **({"data": self.data} if task.data_frames else {}),
            **task.ours,
        }
        return [rl(python), "train", task.recipe, *_as_options(given)]

    @property
    def data(self) -> Path:
        """The steps that an offline experiment learns from."""
        return self.out / "data" / f"{self.experiment.env.rpartition(':')[2]}-{self.experiment.data_frames}"

    def data_command(self, python: str) -> list[str]:
        """How they are made."""
        script = [str(HERE / "behaviour.py"), str(self.data), self.experiment.env]
        return [python, *script, "--frames", str(self.experiment.data_frames)]


def rl(python: str) -> str:
    """The command beside a Python."""
    return str(Path(python).with_name("rl"))


def _as_options(given: dict[str, object]) -> Iterator[str]:
    for name, value in given.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        else:
            yield f"--{option}"
            yield from map(str, value) if isinstance(value, (tuple, list)) else [str(value)]


def take_curve(metrics: Path, curve: Path) -> None:
    """Keep what a curve needs of the ``metrics.csv`` that a run of ours leaves."""
    with metrics.open(newline="", encoding="utf-8") as file:
        rows = [(row["step"], row["eval/return_mean"]) for row in csv.DictReader(file) if row.get("eval/return_mean")]
    with curve.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("frames", "return"), *rows])


def train(run: Run, python: str) -> None:
    """Do one run, at low priority with one thread, and write down what it cost."""
    run.curve.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(run.folder, ignore_errors=True)  # of a run that was cut off
    # The folder is on the path for gymnasium, which imports the module that an id names: "tasks:PongRam-v0".
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    if run.experiment.data_frames and not (run.data / "state.json").exists():
        shutil.rmtree(run.data.with_name(f"{run.data.name}-run"), ignore_errors=True)
        subprocess.run(["nice", "-n", "10", *run.data_command(python)], check=True, env=one_thread)
    before = _seconds()
    subprocess.run(["nice", "-n", "10", *run.command(python)], check=True, env=one_thread)
    if run.contender == "ours":
        take_curve(run.folder / "metrics.csv", run.curve)
        shutil.rmtree(run.folder / "checkpoint", ignore_errors=True)  # replay buffers are large
    with (run.out / "cost.csv").open("a", newline="", encoding="utf-8") as file:
        name = run.curve.relative_to(run.out).with_suffix("").as_posix()
        csv.writer(file).writerow([name, f"{_seconds() - before:.1f}"])


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def planned(options: argparse.Namespace) -> Iterator[Run]:
    """The runs asked for: one seed after the other, of each ours first."""
    chosen = {name: EXPERIMENTS[name] for name in options.experiments or EXPERIMENTS}
    for seed in options.seeds:
        for peers in (False, True):
            for name, experiment in chosen.items():
                for contender in list(experiment.peers) if peers else ["ours"]:
                    if not options.contender or contender in options.contender:
                        yield Run(name, experiment, contender, seed, options.out)


def main() -> None:
    """Do what is asked for and not done; a run that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"of: {', '.join(EXPERIMENTS)}")
    parser.add_argument("--python", action="append", default=[], metavar="ENV=PATH", help="ours, peers")
    parser.add_argument("--contender", action="append", help="only this one (may be repeated)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "learning")
    options = parser.parse_args()
    unknown = set(options.experiments) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"no experiment {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    pythons = dict(entry.split("=", 1) for entry in options.python)
    failed = []
    for run in planned(options):
        python = pythons.get("ours" if run.contender == "ours" else "peers")
        if python is None or run.curve.is_file():
            print(f"skipped: {run.curve} ({'it exists' if python else 'no Python for it'})", flush=True)
            continue
        print(f"training: {run.curve}", flush=True)
        try:
            train(run, python)
        except subprocess.CalledProcessError as error:
            failed.append(f"{run.curve} (exit code {error.returncode})")
    if failed:
        raise SystemExit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
