"""The table of names in rl-core is what the packages' entry points say."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("known_names", ROOT / "tools" / "known_names.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_up_to_date(tool):
    source = tool.TABLE.read_text(encoding="utf-8")
    assert tool.updated(source) == source, "run python tools/known_names.py"


def test_an_outdated_table_is_noticed(tool):
    source = tool.TABLE.read_text(encoding="utf-8")
    assert tool.updated(source.replace("egreedy ", "", 1)) == source


def test_a_table_is_written_whole_and_nothing_is_left_beside_it(tool, tmp_path):
    table, source = tmp_path / "known.py", tool.TABLE.read_text(encoding="utf-8")
    table.write_text(source.replace("egreedy ", "", 1), encoding="utf-8")
    table.chmod(0o600)
    with table.open(encoding="utf-8") as reading:  # whoever reads it meanwhile goes on with the old one
        tool.write(table)
        assert reading.read() == source.replace("egreedy ", "", 1)
    assert table.read_text(encoding="utf-8") == source
    assert list(tmp_path.iterdir()) == [table] and table.stat().st_mode & 0o777 == 0o600
