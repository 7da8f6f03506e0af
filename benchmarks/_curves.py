"""Learning curves on disk, as the suites' run.py leave them: a CSV of a run, its cost, and the means over seeds."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

__all__ = ["Curve", "Curves", "costs", "read", "spread"]


@dataclass
class Curve:
    """One run: frames and returns."""

    frames: list[float]
    returns: list[float]

    @classmethod
    def read(cls, file: Path) -> Curve:
        """Of a CSV with the columns "frames" and "return"."""
        with file.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        return cls([float(row["frames"]) for row in rows], [float(row["return"]) for row in rows])

    def final(self, part: float) -> float:
        """The mean return over the last part of the frames, e.g. 0.1."""
        return mean(self.between((1 - part) * self.frames[-1], self.frames[-1]))

    def between(self, low: float, high: float) -> list[float]:
        """The returns at frames in (low, high]."""
        pairs = zip(self.frames, self.returns, strict=True)
        return [value for frames, value in pairs if low < frames <= high]


Curves = dict[str, list[Curve]]
"""The runs of one experiment, by contender."""


def read(folder: Path) -> dict[str, Curves]:
    """All runs, by experiment: ``folder/EXPERIMENT/CONTENDER-seedS.csv``."""
    found: dict[str, Curves] = defaultdict(lambda: defaultdict(list))
    for file in sorted(folder.glob("*/*-seed*.csv")):
        found[file.parent.name][file.stem.rpartition("-seed")[0]].append(Curve.read(file))
    if not found:
        raise SystemExit(f"no curves in {folder}; run.py writes them")
    return found


def costs(folder: Path) -> dict[tuple[str, str], float]:
    """The mean processor seconds of a run, by experiment and contender."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    file = folder / "cost.csv"
    for name, value in csv.reader(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else []:
        experiment, _, run = name.partition("/")
        seconds[experiment, run.rpartition("-seed")[0]].append(float(value))
    return {key: mean(values) for key, values in seconds.items()}


def spread(values: list[float]) -> float:
    """Their standard deviation, 0 for a single one."""
    return stdev(values) if len(values) > 1 else 0.0
