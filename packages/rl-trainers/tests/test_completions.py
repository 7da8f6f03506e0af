"""The table of completions."""

import io

import pytest
from rich.console import Console

from rl_trainers.completions import completions_table


def shown(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


def cells(table):
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_each_prompt_comes_once_with_its_first_completion():
    table = completions_table(["a", "a", "b"], ["1", "2", "3"], [0.0, 1.0, 0.25])
    assert cells(table) == [["a", "b"], ["1", "3"], ["0", "0.25"]]


def test_no_more_rows_than_asked_for():
    assert cells(completions_table(list("abc"), list("xyz"), [0.0] * 3, rows=2))[0] == ["a", "b"]


def test_markup_and_control_characters_are_text():
    text = shown(completions_table(["[red]hi[/red]"], ["a\nb\x1b[31m"], [1.0], title="t"))
    assert "[red]hi[/red]" in text and r"a\nb\x1b[31m" in text and "\x1b" not in text


def test_long_texts_are_cut():
    assert cells(completions_table(["p"], ["x" * 100], [1.0], width=5))[1] == ["xxxx…"]


def test_further_columns_stand_behind():
    table = completions_table(["p"], ["c"], [1.0], columns={"advantage": [-0.5], "end": ["cut"]})
    assert [column.header for column in table.columns] == ["prompt", "completion", "reward", "advantage", "end"]
    assert cells(table)[3:] == [["-0.5"], ["cut"]]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        completions_table(["p"], ["c", "d"], [1.0])


def test_no_completions_make_an_empty_table():
    assert cells(completions_table([], [], [])) == [[], [], []]
