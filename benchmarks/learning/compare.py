"""Sum up the curves that run.py left: a table of final returns, whether ours keep up, a figure, and all of it as JSON.

    python benchmarks/learning/compare.py [OUT]

The final return of a run is the mean of its evaluations in the last fifth of its frames. Ours keep up with a peer where
the mean of our final returns is not below the mean of theirs minus their standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

HERE = Path(__file__).resolve().parent
LAST = 0.2


@dataclass
class Curve:
    """One run: frames and the mean returns of evaluations."""

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
        """The mean return over the last part of the frames."""
        since = (1 - LAST) * self.frames[-1]
        return mean(value for frames, value in zip(self.frames, self.returns, strict=True) if frames > since)


Curves = dict[str, list[Curve]]
"""The runs of one experiment, by contender."""


def read(folder: Path) -> dict[str, Curves]:
    """All runs, by experiment."""
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


def summary(found: dict[str, Curves], cost: dict[tuple[str, str], float]) -> list[dict[str, object]]:
    """One entry for each experiment and contender, ours first."""
    entries: list[dict[str, object]] = []
    for experiment, curves in sorted(found.items()):
        ours = [curve.final for curve in curves.get("ours", [])]
        for contender in sorted(curves, key=lambda name: (name != "ours", name)):
            finals = [curve.final for curve in curves[contender]]
            compared = contender != "ours" and bool(ours)
            entries.append(
                {
                    "experiment": experiment,
                    "contender": contender,
                    "frames": int(max(curve.frames[-1] for curve in curves[contender])),
                    "final_returns": finals,
                    "mean": mean(finals),
                    "std": spread(finals),
                    "ours_keep_up": mean(ours) >= mean(finals) - spread(finals) if compared else None,
                    "processor_seconds": cost.get((experiment, contender)),
                }
            )
    return entries


def table(entries: list[dict[str, object]]) -> list[str]:
    """Markdown lines."""
    lines = ["| experiment | contender | seeds | frames | final return | ours keep up | CPU s |"]
    lines.append("|---|---|---:|---:|---:|---|---:|")
    for entry in entries:
        finals, verdict, seconds = entry["final_returns"], entry["ours_keep_up"], entry["processor_seconds"]
        assert isinstance(finals, list)
        cells = [str(entry["experiment"]), str(entry["contender"]), str(len(finals)), f"{entry['frames']:,}"]
        cells += [f"{entry['mean']:.1f} ± {entry['std']:.1f}", {None: "-", True: "yes", False: "no"}[verdict]]  # type: ignore[index]
        cells.append("-" if seconds is None else f"{seconds:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def figure(found: dict[str, Curves], file: Path) -> None:
    """A panel per experiment: every run, and the mean over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    fig, axes = pyplot.subplots(rows, columns, figsize=(3.6 * columns, 2.8 * rows), squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (experiment, curves) in zip(axes.flat, sorted(found.items()), strict=False):
        for contender, runs in sorted(curves.items(), key=lambda item: (item[0] != "ours", item[0])):
            length = min(len(run.frames) for run in runs)
            middle = [mean(run.returns[i] for run in runs) for i in range(length)]
            (line,) = axis.plot(runs[0].frames[:length], middle, label=contender)
            for run in runs if len(runs) > 1 else []:
                axis.plot(run.frames, run.returns, color=line.get_color(), alpha=0.25, linewidth=0.8)
        axis.set_title(experiment, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.legend(fontsize=7)
    fig.tight_layout()
    fig.savefig(file, dpi=80)
    print(f"written: {file}")


def main() -> None:
    """Print the table, write it as JSON, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=HERE.parent / "results" / "learning")
    options = parser.parse_args()
    found = read(options.out)
    entries = summary(found, costs(options.out))
    print("\n".join(table(entries)))
    (options.out / "summary.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    figure(found, options.out / "curves.png")


if __name__ == "__main__":
    main()
