"""What a run shows while it goes: a live bar on a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

__all__ = ["Progress", "number", "summary_table"]


def number(value: float) -> str:
    """A number in a few characters.

    Example:
        >>> [number(v) for v in (475.123, 0.01234, -1234567.0, 3e-5, 20, float("nan"))]
        ['475.1', '0.0123', '-1,234,567', '3e-05', '20', '-']
    """
    if math.isnan(value):
        return "-"
    if value == int(value) if math.isfinite(value) else False:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 10_000 or not math.isfinite(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3g}"


class Progress:
    """Shows frames, frames per second and whatever metrics it is given.

    Args:
        total_frames: the run's budget in frames.
        title: what runs, for example ``"ppo gym:CartPole-v1"``.
        start_frames: frames of an earlier process; they do not count into the rate.
        console: where it is shown; stderr where None.
        interval: seconds between two lines where the console is no terminal.
        clock: seconds, ever growing.
    """

    def __init__(
        self,
        total_frames: int,
        title: str,
        *,
        start_frames: int = 0,
        console: Console | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = Console(stderr=True) if console is None else console
        self._total, self._title, self._interval, self._clock = total_frames, title, interval, clock
        self._start_frames, self._start = start_frames, clock()
        self._frames = start_frames
        self._metrics: dict[str, float] = {}
        self._next_line = self._start
        self._shown_frames: int | None = None
        self._live: Live | None = None
        if self.console.is_terminal:
            self._bar = _bar(self.console)
            self._task = self._bar.add_task(title, total=total_frames, completed=start_frames, text="")
            self._live = Live(self._render(), console=self.console, refresh_per_second=8)
            self._live.start()

    @property
    def frames_per_second(self) -> float:
        """The mean rate of this process, in frames per second."""
        elapsed = self._clock() - self._start
        return (self._frames - self._start_frames) / elapsed if elapsed > 0 else math.nan

    def update(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Show a new state.

        Args:
            frames: frames so far, those of earlier processes included.
            metrics: labels to numbers; labels not given keep their last number.
        """
        self._frames = frames
        self._metrics.update({label: value for label, value in metrics.items() if not math.isnan(value)})
        if self._live is not None:
            text = f"{frames:,}/{self._total:,} · {self.frames_per_second:,.0f} frames/s"
            self._bar.update(self._task, completed=min(frames, self._total), text=text)
            self._live.update(self._render())
        elif self._clock() >= self._next_line:
            self._print_line()

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
            self._live.stop()
            self._live = None
        elif self._shown_frames != self._frames:
            self._print_line()

    def _print_line(self) -> None:
        parts = [
            f"{self._title} {100 * self._frames / self._total:3.0f}%",
            f"{self._frames:,}/{self._total:,} frames",
            f"{self.frames_per_second:,.0f} frames/s",
            *(f"{label} {number(value)}" for label, value in self._metrics.items()),
        ]
        self.console.print(" · ".join(parts), soft_wrap=True, highlight=False, markup=False)
        self._next_line = self._clock() + self._interval
        self._shown_frames = self._frames

    def _render(self) -> Group:
        cells = [Text.assemble((f"{label} ", "dim"), (number(value), "bold")) for label, value in self._metrics.items()]
        line = Text("   ").join(cells)
        return Group(self._bar, line)


def _bar(console: Console) -> Bar:
    return Bar(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=12),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        auto_refresh=False,
    )


def summary_table(title: str, rows: Mapping[str, str | Path]) -> Table:
    """A table of two columns for the end of a run; paths are shown relative to here where they lie below.

    Args:
        title: the table's title.
        rows: labels to texts or files.
    """
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, value in rows.items():
        table.add_row(label, Text(str(_short(value)) if isinstance(value, Path) else value))
    return table


def _short(path: Path) -> Path:
    try:
        return path.resolve().relative_to(Path.cwd())
    except ValueError:
        return path
