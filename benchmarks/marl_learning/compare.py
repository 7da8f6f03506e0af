"""Sum up the curves that run.py left: a table of final returns, whether ours keep up, and a figure.

    python benchmarks/marl_learning/compare.py [OUT] [--png FILE]

The final return of a run is the mean over the last tenth of its frames. Ours keep up with a peer where the mean of our
final returns is not below the mean of theirs minus their standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).resolve().parent
BINS = 20


@dataclass
class Curve:
    """One run: frames and returns."""

    frames: list[float]
    returns: list[float]

    @classmethod
    def read(cls, file: Path) -> Curve:
        """Of a CSV."""
        with file.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        return cls([float(row["frames"]) for row in rows], [float(row["return"]) for row in rows])

    @property
    def final(self) -> float:
        """The mean return over the last tenth of the frames."""
        return mean(self._between(0.9 * self.frames[-1], self.frames[-1]))

    def binned(self, bins: int) -> list[float]:
        """The mean return of each of so many equal parts of the run; nan where no episode ended."""
        edges = [self.frames[-1] * i / bins for i in range(bins + 1)]
        parts = [self._between(low, high) for low, high in pairwise(edges)]
        return [mean(part) if part else float("nan") for part in parts]

    def _between(self, low: float, high: float) -> list[float]:
        pairs = zip(self.frames, self.returns, strict=True)
        return [value for frames, value in pairs if low < frames <= high]


Curves = dict[str, list[Curve]]
"""The runs of one task and algorithm, by contender."""


def read(folder: Path) -> dict[str, Curves]:
    """All runs, by "TASK-ALGORITHM"."""
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


def table(found: dict[str, Curves], cost: dict[tuple[str, str], float]) -> list[str]:
    """Markdown lines."""
    lines = ["| task, algorithm | contender | seeds | frames | final return | ours keep up | CPU s |"]
    lines.append("|---|---|---:|---:|---:|---|---:|")
    for experiment, curves in found.items():
        ours = [curve.final for curve in curves.get("ours", [])]
        for contender in sorted(curves, key=lambda name: (name != "ours", name)):
            finals = [curve.final for curve in curves[contender]]
            verdict = "-"
            if contender != "ours" and ours:
                verdict = "yes" if mean(ours) >= mean(finals) - spread(finals) else "no"
            frames = int(max(curve.frames[-1] for curve in curves[contender]))
            seconds = cost.get((experiment, contender))
            cells = [experiment.replace("-", ", "), contender, str(len(finals)), f"{frames:,}"]
            cells += [f"{mean(finals):.2f} ± {spread(finals):.2f}", verdict, f"{seconds:.0f}" if seconds else "-"]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def figure(found: dict[str, Curves], file: Path) -> None:
    """A panel per task and algorithm: the mean over seeds, and one standard deviation to either side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(1, len(found), figsize=(4 * len(found), 3.2), squeeze=False)
    for axis, (experiment, curves) in zip(axes[0], found.items(), strict=True):
        for contender, runs in sorted(curves.items(), key=lambda item: (item[0] != "ours", item[0])):
            bins = min(BINS, min(len(run.frames) for run in runs))
            columns = list(zip(*(run.binned(bins) for run in runs), strict=True))
            end = max(run.frames[-1] for run in runs)
            x = [end * (i + 1) / bins for i in range(bins)]
            middle, width = [mean(column) for column in columns], [spread(list(column)) for column in columns]
            (line,) = axis.plot(x, middle, label=contender)
            low = [m - w for m, w in zip(middle, width, strict=True)]
            high = [m + w for m, w in zip(middle, width, strict=True)]
            axis.fill_between(x, low, high, alpha=0.2, color=line.get_color())
        axis.set(title=experiment.replace("-", ", "), xlabel="frames", ylabel="mean return of an agent")
        axis.legend()
    fig.tight_layout()
    fig.savefig(file, dpi=80)
    print(f"written: {file}")


def main() -> None:
    """Print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE.parent / "results" / "marl_learning")
    parser.add_argument("--png", type=Path, help="the figure (default: curves.png beside the runs)")
    options = parser.parse_args()
    found = read(options.out)
    print("\n".join(table(found, costs(options.out))))
    figure(found, options.png or options.out / "curves.png")


if __name__ == "__main__":
    main()
