"""Sum up the curves that run.py left: a table of final returns, whether ours keep up, and a figure.

    python benchmarks/marl_learning/compare.py [OUT] [--png FILE]

The final return of a run is the mean over the last tenth of its frames. Ours keep up with a peer where the mean of our
final returns is not below the mean of theirs minus their standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from _curves import Curve, Curves, costs, read, spread  # noqa: E402 (the folder above)

BINS, LAST = 20, 0.1


def binned(curve: Curve, bins: int) -> list[float]:
    """The mean return of each of so many equal parts of the run; nan where no episode ended."""
    edges = [curve.frames[-1] * i / bins for i in range(bins + 1)]
    parts = [curve.between(low, high) for low, high in pairwise(edges)]
    return [mean(part) if part else float("nan") for part in parts]


def table(found: dict[str, Curves], cost: dict[tuple[str, str], float]) -> list[str]:
    """Markdown lines."""
    lines = ["| task, algorithm | contender | seeds | frames | final return | ours keep up | CPU s |"]
    lines.append("|---|---|---:|---:|---:|---|---:|")
    for experiment, curves in found.items():
        ours = [curve.final(LAST) for curve in curves.get("ours", [])]
        for contender in sorted(curves, key=lambda name: (name != "ours", name)):
            finals = [curve.final(LAST) for curve in curves[contender]]
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
            columns = list(zip(*(binned(run, bins) for run in runs), strict=True))
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
