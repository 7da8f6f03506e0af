"""Sum up the curves that run.py left: a table of final returns, whether ours keep up, a figure, and all of it as JSON.

    python benchmarks/learning/compare.py [OUT] [--into FOLDER]

The final return of a run is the mean of its evaluations in the last fifth of its frames. Ours keep up with a peer where
the mean of our final returns is not below the mean of theirs minus their standard deviation over seeds; with fewer than
three seeds on a side nothing is said.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from _curves import Curves, costs, read, spread  # noqa: E402 (the folder above)

LAST = 0.2
ENOUGH = 3


def summary(found: dict[str, Curves], cost: dict[tuple[str, str], float]) -> list[dict[str, object]]:
    """One entry for each experiment and contender, ours first."""
    entries: list[dict[str, object]] = []
    for experiment, curves in sorted(found.items()):
        ours = [curve.final(LAST) for curve in curves.get("ours", [])]
        for contender in sorted(curves, key=lambda name: (name != "ours", name)):
            finals = [curve.final(LAST) for curve in curves[contender]]
            compared = contender != "ours" and min(len(ours), len(finals)) >= ENOUGH
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
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where the summary goes; default: OUT")
    options = parser.parse_args()
    into = options.into or options.out
    into.mkdir(parents=True, exist_ok=True)
    found = read(options.out)
    entries = summary(found, costs(options.out))
    print("\n".join(table(entries)))
    (into / "summary.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    figure(found, into / "curves.png")


if __name__ == "__main__":
    main()
