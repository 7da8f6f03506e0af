"""Converted rows on disk: written in pieces, replaced in one step, made anew where damaged, never left half-written."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
from pathlib import Path

import pytest
import torch

from rl_buffers import DatasetError
from rl_buffers.datasets.cache import Source, converted, default_root
from rl_buffers.datasets.report import DatasetReport, Tally
from rl_buffers.datasets.row_files import FORMAT, RowWriter, read_rows


def test_pieces_of_leaves_come_back_end_to_end(tmp_path):
    with RowWriter(tmp_path / "rows") as writer:
        writer.append({("a",): torch.arange(3), ("next", "b.c"): torch.ones(3, 2, dtype=torch.bool)})
        writer.append({("a",): torch.arange(3, 5)})
        writer.append({("empty",): torch.zeros(2, 0)})
        writer.commit({"hello": [1]})
    leaves, note = read_rows(tmp_path / "rows")
    assert leaves["a",].tolist() == [0, 1, 2, 3, 4] and leaves["next", "b.c"].tolist() == [[True, True]] * 3
    assert leaves["empty",].shape == (2, 0) and note == {"hello": [1]}
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


def test_a_change_of_the_rows_does_not_reach_the_files(tmp_path):
    with RowWriter(tmp_path / "rows") as writer:
        writer.append({("a",): torch.arange(3)})
        writer.commit({})
    read_rows(tmp_path / "rows")[0]["a",].fill_(7)
    assert read_rows(tmp_path / "rows")[0]["a",].tolist() == [0, 1, 2]


def test_a_later_piece_of_another_dtype_or_shape_is_an_error_and_leaves_nothing(tmp_path):
    for odd in (torch.ones(2), torch.ones(2, 3, dtype=torch.int64)):
        with (
            pytest.raises(DatasetError, match=r"a is .* per row here and int64"),
            RowWriter(tmp_path / "rows") as writer,
        ):
            writer.append({("a",): torch.arange(3)})
            writer.append({("a",): odd})
        assert not list(tmp_path.iterdir())


def test_rows_do_not_replace_a_folder_of_something_else(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DatasetError, match="exists and holds no rows"):
        RowWriter(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"file/root/rows cannot be written.*root="):
        RowWriter(tmp_path / "file" / "root" / "rows")


def full_disk(folder: Path) -> None:
    """Files may not grow beyond 64 KiB in this process, which the kernel answers as it answers a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    with pytest.raises(DatasetError, match=r"cannot be written after 0.4 MiB.*make room"), RowWriter(folder) as writer:
        writer.append({("a",): torch.zeros(100_000)})
        writer.append({("a",): torch.zeros(100_000)})
        writer.commit({})


def test_a_full_disk_is_an_error_and_leaves_the_rows_that_were_there(tmp_path):
    with RowWriter(tmp_path / "rows") as writer:
        writer.append({("a",): torch.arange(3)})
        writer.commit({})
    process = multiprocessing.get_context("fork").Process(target=full_disk, args=(tmp_path / "rows",))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
    assert read_rows(tmp_path / "rows")[0]["a",].tolist() == [0, 1, 2]


# ---------------------------------------------------------------------------------------------------- conversions
class Conversion:
    """Writes a row per byte of a file, and counts how often."""

    def __init__(self, folder: Path, **options) -> None:
        self.path = folder / "source.bin"
        self.root = folder / "root"
        self.options = options
        self.times = 0

    def __call__(self, writer: RowWriter) -> tuple[DatasetReport, dict]:
        self.times += 1
        rows = torch.tensor(list(self.path.read_bytes()), dtype=torch.uint8)
        writer.append({("x",): rows})
        return DatasetReport.of("bytes", Tally(transitions=len(rows), episodes=1, cut=1)), {"author": "me"}

    def rows(self, again: bool = False):
        source = Source("test", "source", self.options, self.path, [self.path])
        return converted(self.root, source, self, again)


@pytest.fixture
def conversion(tmp_path) -> Conversion:
    (tmp_path / "source.bin").write_bytes(b"abc")
    return Conversion(tmp_path)


def test_a_source_is_converted_once(conversion):
    first, second = conversion.rows(), conversion.rows()
    assert conversion.times == 1 and (first.origin, second.origin) == ("files", "cache")
    assert second.report == first.report and second.metadata == {"author": "me"}
    assert second.leaves["x",].tolist() == [97, 98, 99]


def test_a_changed_file_is_converted_again_and_old_rows_stay_valid_for_who_has_them(conversion):
    old = conversion.rows()
    conversion.path.write_bytes(b"zy")
    assert conversion.rows().leaves["x",].tolist() == [122, 121] and old.leaves["x",].tolist() == [97, 98, 99]
    assert len(list((conversion.root / "converted").iterdir())) == 1


def test_a_touched_file_of_equal_size_is_converted_again(conversion):
    conversion.rows()
    conversion.path.write_bytes(b"xyz")
    os.utime(conversion.path, ns=(1, 1))
    assert conversion.rows().leaves["x",].tolist() == [120, 121, 122]


def test_it_is_converted_again_where_asked(conversion):
    conversion.rows()
    assert conversion.rows(again=True).origin == "files" and conversion.times == 2


def convert_often(conversion: Conversion) -> None:
    for _ in range(20):
        assert conversion.rows(again=True).leaves["x",].tolist() == [97, 98, 99]


def test_processes_that_convert_at_the_same_time_do_not_disturb_each_other(conversion):
    processes = [multiprocessing.get_context("fork").Process(target=convert_often, args=(conversion,)) for _ in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert [path.name for path in conversion.root.iterdir()] == ["converted"]
    assert len(list((conversion.root / "converted").iterdir())) == 1


def convert_once(conversion: Conversion, counts) -> None:
    conversion.rows()
    counts.put(conversion.times)


def test_of_processes_that_need_the_same_rows_one_converts_and_the_others_wait(conversion):
    context = multiprocessing.get_context("fork")
    counts = context.SimpleQueue()
    processes = [context.Process(target=convert_once, args=(conversion, counts)) for _ in "abcd"]
    for process in processes:
        process.start()
    assert sorted(counts.get() for _ in processes) == [0, 0, 0, 1]
    for process in processes:
        process.join(60)


def test_a_cache_that_cannot_be_made_is_an_error_that_names_it(conversion):
    conversion.root.write_text("a file")
    with pytest.raises(DatasetError, match=r"root cannot hold the rows of source.*root="):
        conversion.rows()


def damage(kind: str, folder: Path) -> None:
    note = json.loads((folder / "rows.json").read_text())
    if kind == "another format":
        note["format"] = FORMAT + 1
    elif kind == "no note":
        del note["note"]["report"]
    elif kind == "short file":
        (folder / "x.bin").write_bytes(b"a")
    elif kind == "no file":
        (folder / "x.bin").unlink()
    text = "{" if kind == "no json" else json.dumps(note)
    (folder / "rows.json").write_text(text)


@pytest.mark.parametrize("kind", ["another format", "no note", "short file", "no file", "no json"])
def test_a_damaged_conversion_is_made_again(conversion, kind):
    conversion.rows()
    (folder,) = (conversion.root / "converted").iterdir()
    damage(kind, folder)
    assert conversion.rows().leaves["x",].tolist() == [97, 98, 99] and conversion.times == 2
    assert conversion.rows().origin == "cache"


def test_an_error_in_between_leaves_nothing(conversion):
    conversion.path.write_bytes(b"")
    with pytest.raises(DatasetError, match="no transition is left of source"):
        conversion.rows()
    assert not list((conversion.root / "converted").iterdir())


def test_the_default_place_is_the_users_cache(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_root("d4rl") == Path("/somewhere/rl-buffers/d4rl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_root("d4rl") == Path("/home/me/.cache/rl-buffers/d4rl")


def test_reports_go_to_json_and_back():
    report = DatasetReport(
        source="x", transitions=3, episodes=1, terminated=0, truncated=0, cut=1, dropped={"why": 2}, notes=("n",)
    )
    assert DatasetReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report
    assert "dropped 2 rows: why" in str(report) and "note: n" in str(report)
