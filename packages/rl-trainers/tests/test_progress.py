"""rl_trainers.progress: live on a terminal, a few lines elsewhere."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from rl_trainers.progress import Progress, number, summary_table


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def make(terminal, **kwargs):
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, force_terminal=terminal, width=120)
    return Progress(1000, "ppo toy", console=console, clock=clock, **kwargs), text, clock


def test_without_a_terminal_it_writes_a_line_each_interval_and_a_last_one():
    progress, text, clock = make(terminal=False, interval=5.0)
    for frames in range(10, 1001, 10):
        clock.now += 0.2
        progress.update(frames, {"return": frames / 2})
    progress.close()
    lines = text.getvalue().splitlines()
    assert len(lines) == 5  # at 0.2 s, then every 5 s of the 20 s, and the end
    assert lines[-1] == "ppo toy 100% · 1,000/1,000 frames · 50 frames/s · return 500"


def test_the_last_line_is_not_written_twice():
    progress, text, clock = make(terminal=False)
    clock.now = 1.0
    progress.update(1000, {})
    progress.close()
    assert len(text.getvalue().splitlines()) == 1


def test_a_metric_that_is_absent_or_nan_keeps_its_last_value():
    progress, text, clock = make(terminal=False, interval=0.0)
    for metrics in ({"return": 3.0}, {}, {"return": float("nan")}):
        clock.now += 1
        progress.update(10, metrics)
    assert all("return 3" in line for line in text.getvalue().splitlines())


def test_frames_of_an_earlier_process_do_not_count_into_the_rate():
    progress, _, clock = make(terminal=False, start_frames=500)
    clock.now = 10.0
    progress.update(600, {})
    assert progress.frames_per_second == 10


def test_on_a_terminal_it_draws_a_bar_with_the_metrics():
    progress, text, clock = make(terminal=True)
    clock.now = 1.0
    progress.update(250, {"return": 12.5})
    progress.close()
    drawn = text.getvalue()
    for part in ("ppo toy", " 25%", "250/1,000 · 250 frames/s", "return", "12.5"):
        assert part in drawn


def test_the_bar_fits_a_terminal_of_80_columns():
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, force_terminal=True, color_system=None, width=80)
    progress = Progress(100_000, "ppo gym:CartPole-v1", console=console, clock=clock)
    clock.now = 1.0
    progress.update(12_345, {})
    progress.close()
    last = [line for line in text.getvalue().splitlines() if "frames/s" in line][-1]
    assert last.rstrip().endswith("left") and "12,345/100,000 · 12,345 frames/s" in last


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (1e9, "1,000,000,000"), (float("inf"), "inf"), (-0.5, "-0.5")])
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_the_summary_shows_files_relative_to_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = io.StringIO()
    Console(file=text, width=80).print(
        summary_table("ppo", {"return": "500 [mean]", "video": Path("runs/a.mp4").resolve()})
    )
    assert "500 [mean]" in text.getvalue() and "│ runs/a.mp4" in text.getvalue()
