"""Case C40: broken, outdated, doubled and clashing plugins, each installed beside a good one."""

from __future__ import annotations

import importlib
import shutil
import sys

import pytest

from rl_core import registry
from rl_core.errors import (
    AmbiguousNameError,
    PluginError,
    PluginImportError,
    PluginVersionError,
    UnknownNameError,
    WrongKindError,
)
from rl_core.registry.status import statuses

LOSS = "class Loss:\n    def forward(self, td): ...\n"
WITNESS = "import sys\nsys.modules['ran_the_misfit'] = sys\n"


def state_of(dist: str) -> str:
    [state] = {row.state for row in statuses(registry) if row.entry.dist == dist}
    return state


@pytest.fixture
def good(site):
    site.module("good_mod", LOSS)
    site.dist("good-dist", {"losses": {"good": "good_mod:Loss"}})
    return site


def works() -> bool:
    return registry.losses.get("good").__name__ == "Loss"


def test_a_good_plugin_is_listed_without_being_imported_and_loads(good):
    assert "good" in registry.losses.names()
    assert state_of("good-dist") == "ok"
    assert "good_mod" not in sys.modules
    assert works()


def test_an_import_error_breaks_only_the_call_that_named_it(good):
    good.module("bad_mod", "raise ImportError('no such thing')")
    good.dist("bad-dist", {"losses": {"bad": "bad_mod:Loss"}}, version="3.1")
    with pytest.raises(PluginImportError) as caught:
        registry.losses.get("bad")
    text = str(caught.value)
    for part in (
        "bad-dist 3.1",
        "rl-core",
        "ImportError: no such thing",
        "pip install -U bad-dist",
        "rl doctor bad-dist",
    ):
        assert part in text
    assert isinstance(caught.value.__cause__, ImportError)
    assert works()


def test_an_import_that_fails_is_remembered_and_tried_again(good):
    good.module("mended_mod", "raise ValueError('x')")
    good.dist("mended-dist", {"losses": {"mended": "mended_mod:Loss"}})
    assert "mended-dist/mended" not in registry.losses.failures()
    with pytest.raises(PluginImportError):
        registry.losses.get("mended")
    assert "mended-dist/mended" in registry.losses.failures()
    (good.folder / "mended_mod.py").unlink()
    good.module("mended_mod", LOSS + "# longer, so that no cached bytecode is taken for it")
    shutil.rmtree(good.folder / "__pycache__", ignore_errors=True)
    assert registry.losses.get("mended").__name__ == "Loss"
    assert "mended-dist/mended" not in registry.losses.failures()


def test_a_plugin_that_exits_at_import_does_not_end_the_program(good):
    good.module("exit_mod", "raise SystemExit(3)")
    good.dist("exit-dist", {"losses": {"exit": "exit_mod:Loss"}})
    with pytest.raises(PluginImportError, match="SystemExit"):
        registry.losses.get("exit")


def test_ctrl_c_during_an_import_is_the_users(good):
    good.module("slow_mod", "raise KeyboardInterrupt")
    good.dist("slow-dist", {"losses": {"slow": "slow_mod:Loss"}})
    with pytest.raises(KeyboardInterrupt):
        registry.losses.get("slow")


def test_an_entry_point_to_a_missing_attribute_names_it(good):
    good.dist("gone-dist", {"losses": {"gone": "good_mod:Gone"}})
    with pytest.raises(PluginImportError, match="has no attribute 'Gone'"):
        registry.losses.get("gone")
    assert works()


def test_a_plugin_for_a_newer_core_is_refused_before_its_code_runs(good):
    good.module("newer_mod", WITNESS + LOSS)
    good.dist("newer-dist", {"losses": {"newer": "newer_mod:Loss"}}, requires=("rl-core>=99.1,<100",))
    with pytest.raises(PluginVersionError, match=r"pip install -U 'rl-core>=99\.1,<100'"):
        registry.losses.get("newer")
    assert "ran_the_misfit" not in sys.modules
    assert state_of("newer-dist") == "version mismatch"
    assert "newer" not in registry.losses.names()
    assert works()


def test_a_plugin_for_an_older_core_is_told_to_upgrade_itself(good):
    good.module("older_mod", WITNESS + LOSS)
    good.dist("older-dist", {"losses": {"older": "older_mod:Loss"}}, requires=("rl-core>=0.1,<0.5",))
    with pytest.raises(PluginVersionError, match="pip install -U older-dist"):
        registry.losses.get("older")
    assert "ran_the_misfit" not in sys.modules
    assert state_of("older-dist") == "version mismatch"


def test_a_development_core_satisfies_the_floor_that_it_leads_to(good, monkeypatch):
    monkeypatch.setattr("rl_core.__about__.__version__", "1.3.0.dev4")
    good.dist("floor-dist", {"losses": {"floor": "good_mod:Loss"}}, requires=("rl-core>=1.3,<2",))
    assert registry.losses.get("floor").__name__ == "Loss"


def test_a_requirement_whose_marker_does_not_hold_is_not_asked_for(good):
    requires = (
        "rl-core>=99; python_version < '3'",
        'rl-core>=98; extra == "future"',
        "rl-core-extras>=97",
        "rl_core>=0.1",
    )
    good.dist("marked-dist", {"losses": {"marked": "good_mod:Loss"}}, requires=requires)
    assert registry.losses.get("marked").__name__ == "Loss"


def test_a_native_part_that_does_not_load_fails_only_when_used(good):
    good.module("native_mod", "import ctypes\nctypes.CDLL('/nowhere/libbuilt_for_another_torch.so')")
    good.dist("native-dist", {"samplers": {"native": "native_mod:Sampler"}})
    assert "native" in registry.samplers.names()
    with pytest.raises(PluginImportError, match="OSError") as caught:
        registry.samplers.get("native")
    assert isinstance(caught.value.__cause__, OSError)
    assert works()


def test_the_same_distribution_twice_on_the_path_counts_once_and_the_first_wins(make_site):
    old, new = make_site("wheel"), make_site("editable")
    old.module("twice_mod", "raise ImportError('the old copy')")
    old.dist("twice-dist", {"losses": {"twice": "twice_mod:Loss", "only_old": "twice_mod:Loss"}}, version="1.0")
    new.module("twice_mod", LOSS)
    new.dist("Twice.Dist", {"losses": {"twice": "twice_mod:Loss"}}, version="2.0")
    [row] = [row for row in statuses(registry) if row.entry.name == "twice"]
    assert (row.state, row.entry.version) == ("ok", "2.0")
    assert str(old.folder) in row.detail
    assert registry.losses.get("twice").__name__ == "Loss"
    assert "only_old" not in registry.losses


def test_what_pip_leaves_behind_of_a_distribution_is_not_one(good):
    folder = good.dist("left-dist", {"losses": {"left": "good_mod:Loss"}})
    folder.rename(folder.with_name("~eft_dist-1.0.dist-info"))
    registry.refresh()
    assert "left" not in registry.losses


def test_two_distributions_with_one_name_clash_at_use_naming_both(good):
    good.module("other_mod", "class Other:\n    def forward(self, td): ...\n")
    good.dist("other-dist", {"losses": {"good": "other_mod:Other"}}, version="7.0")
    assert state_of("other-dist") == state_of("good-dist") == "duplicate"
    with pytest.raises(AmbiguousNameError) as caught:
        registry.losses.get("good")
    for part in ("good-dist 1.0", "other-dist 7.0", "'good-dist/good'", "'other-dist/good'"):
        assert part in str(caught.value)
    assert registry.losses.get("other_dist/good").__name__ == "Other"
    assert registry.losses.get("good-dist/good").__name__ == "Loss"


def test_a_clash_ends_when_one_side_is_turned_off(good, monkeypatch):
    good.dist("other-dist", {"losses": {"good": "nowhere:Other"}})
    monkeypatch.setenv("RL_DISABLE_PLUGINS", "other-dist")
    assert works()


@pytest.mark.parametrize(
    "metadata",
    [
        b"\xff\xfe\x00 no text",
        b"",
        b"Metadata-Version: 2.1\nName: unreadable-dist\nVersion: 1\nRequires-Dist: rl-core ==>1\n",
    ],
    ids=["bytes", "empty", "requirement"],
)
def test_unreadable_metadata_is_a_listed_failure_and_stops_nobody(good, metadata):
    good.module("misfit_mod", WITNESS + LOSS)
    good.dist("unreadable-dist", {"losses": {"unreadable": "misfit_mod:Loss"}}, metadata=metadata)
    assert state_of("unreadable-dist") == "unreadable"
    assert "unreadable-dist/unreadable" in registry.losses.failures()
    with pytest.raises(PluginError, match="pip install --force-reinstall --no-deps unreadable-dist"):
        registry.losses.get("unreadable")
    assert "ran_the_misfit" not in sys.modules
    assert works()


def test_a_distribution_without_its_metadata_file_is_a_listed_failure(good):
    (good.dist("bare-dist", {"losses": {"bare": "good_mod:Loss"}}) / "METADATA").unlink()
    assert state_of("bare-dist") == "unreadable"
    assert works()


@pytest.mark.parametrize("text", [b"[rl_core.losses]\nno equals sign\n", b"[rl_core.losses]\nx = \xff\xfe\n"])
def test_an_unreadable_list_of_entry_points_is_a_listed_failure(good, text):
    (good.dist("garbled-dist", {}) / "entry_points.txt").write_bytes(text)
    assert state_of("garbled-dist") == "unreadable"
    assert "garbled-dist" in registry.losses.failures()
    assert works()
    with pytest.raises(UnknownNameError, match="garbled-dist"):
        registry.losses.get("whatever")


def test_a_strangers_unreadable_entry_points_are_not_our_business(good):
    (good.dist("stranger-dist", {}) / "entry_points.txt").write_bytes(b"[console_scripts]\n\xff\n")
    assert registry.problems() == ()


def test_an_object_of_another_kind_is_refused(good):
    good.module("kind_mod", "Config = {'lr': 1}\nclass NoForward: ...\n")
    good.dist("kind-dist", {"losses": {"dict": "kind_mod:Config", "plain": "kind_mod:NoForward"}})
    with pytest.raises(WrongKindError, match="is a dict"):
        registry.losses.get("dict")
    with pytest.raises(WrongKindError, match="without forward"):
        registry.losses.get("plain")


def test_a_group_that_this_core_does_not_have_is_listed_as_such(good):
    good.dist("future-dist", {"teleporters": {"x": "good_mod:Loss"}})
    assert state_of("future-dist") == "unknown group"


def test_loading_every_plugin_for_the_list_shows_the_broken_one_as_broken(good):
    good.module("bad_mod", "raise ImportError('x')")
    good.dist("bad-dist", {"losses": {"bad": "bad_mod:Loss"}})
    states = {
        row.entry.name: row.state
        for row in statuses(registry, load=True)
        if row.entry.dist in ("good-dist", "bad-dist")
    }
    assert states == {"good": "loaded", "bad": "broken"}


def test_a_plugin_installed_while_the_process_runs_is_found(good):
    with pytest.raises(UnknownNameError):
        registry.losses.get("late")
    good.dist("late-dist", {"losses": {"late": "good_mod:Loss"}})
    assert registry.losses.get("late").__name__ == "Loss"


def test_every_other_module_is_still_importable(good):
    good.module("bad_mod", "raise ImportError('x')")
    good.dist("bad-dist", {"losses": {"bad": "bad_mod:Loss"}})
    with pytest.raises(PluginImportError):
        registry.losses.get("bad")
    assert importlib.import_module("good_mod").Loss
