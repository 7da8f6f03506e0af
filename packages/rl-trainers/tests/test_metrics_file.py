"""rl_trainers.metrics_file: rows by step, columns that may come late, a file that is whole at any moment."""

import math

import pytest

from rl_trainers import read_metrics
from rl_trainers.metrics_file import MetricsFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.csv"


def test_metrics_of_one_step_share_a_row(path):
    file = MetricsFile(path)
    file.write({"a": 1.0}, step=10)
    file.write({"b": 2.0}, step=10)
    file.write({"a": 3.0}, step=20)
    assert path.read_text() == "step,a,b\n10,1.0,2.0\n20,3.0,\n"


def test_a_late_metric_leaves_earlier_rows_aligned(path):
    file = MetricsFile(path)
    for step in (1, 2):
        file.write({"loss": step / 10}, step)
    file.write({"eval/return": 9.0}, step=2)
    assert path.read_text() == "step,loss,eval/return\n1,0.1,\n2,0.2,9.0\n"


def test_every_call_leaves_a_whole_file(path):
    file = MetricsFile(path)
    for step in range(20):
        for name in ("a", f"late_{step}"):
            file.write({name: float(step)}, step)
            columns = read_metrics(path)
            assert {len(values) for values in columns.values()} == {step + 1}
            assert columns["step"][-1] == step and columns[name][-1] == step


def test_a_shorter_value_written_into_the_same_row_leaves_no_tail(path):
    file = MetricsFile(path)
    file.write({"a": 0.123456789}, step=1)
    file.write({"a": 1.0}, step=1)
    assert path.read_text() == "step,a\n1,1.0\n"


def test_an_existing_file_is_continued(path):
    MetricsFile(path).write({"a": 1.0}, step=1)
    second = MetricsFile(path)
    second.write({"b": 2.0}, step=2)
    assert path.read_text() == "step,a,b\n1,1.0,\n2,,2.0\n"


def test_a_row_cut_off_by_a_killed_process_is_dropped(path):
    path.write_text("step,a,b\n1,1.0,2.0\n2,3.0")
    assert read_metrics(path)["step"] == [1.0]
    MetricsFile(path).write({"a": 5.0}, step=2)
    assert path.read_text() == "step,a,b\n1,1.0,2.0\n2,5.0,\n"


def test_rows_beyond_a_resumed_step_are_dropped(path):
    file = MetricsFile(path)
    for step in (10, 20, 30):
        file.write({"a": float(step)}, step)
    file.drop_after(20)
    file.write({"a": 0.5}, step=30)
    assert path.read_text() == "step,a\n10,10.0\n20,20.0\n30,0.5\n"


def test_not_finite_values_survive(path):
    file = MetricsFile(path)
    file.write({"a": math.nan, "b": -math.inf}, step=1)
    columns = read_metrics(path)
    assert math.isnan(columns["a"][0]) and columns["b"] == [-math.inf]


def test_names_with_commas_are_quoted(path):
    MetricsFile(path).write({"a,b": 1.0}, step=1)
    assert read_metrics(path)["a,b"] == [1.0]


def test_a_foreign_csv_is_refused(path):
    path.write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="no metrics file: its first column is 'x'"):
        MetricsFile(path)
