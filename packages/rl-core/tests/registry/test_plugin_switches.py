"""RL_DISABLE_PLUGINS."""

from __future__ import annotations

import pytest

from rl_core import registry
from rl_core.errors import PluginError
from rl_core.registry import Entry
from rl_core.registry.status import statuses
from rl_core.registry.switches import unused_switches

POINTS = [Entry("losses", "root", "math:sqrt", "my-dist", "1.0"), Entry("losses", "exp", "math:exp", "my-dist", "1.0")]


@pytest.mark.parametrize("switch", ["my-dist", "My_Dist", "other, my-dist", "losses:root", "rl_core.losses:root"])
def test_a_name_that_is_turned_off_says_so(monkeypatch, switch):
    with registry.isolated(entry_points=POINTS):
        monkeypatch.setenv("RL_DISABLE_PLUGINS", switch)
        assert "root" not in registry.losses.names()
        with pytest.raises(PluginError, match="turned off by RL_DISABLE_PLUGINS="):
            registry.losses.get("root")
        assert next(row for row in statuses(registry) if row.entry.name == "root").state == "disabled"


def test_turning_one_name_off_leaves_its_siblings_on(monkeypatch):
    monkeypatch.setenv("RL_DISABLE_PLUGINS", "losses:root")
    with registry.isolated(entry_points=POINTS):
        assert registry.losses.names() == ["exp"]


def test_a_switch_that_turns_nothing_off_is_noticed(monkeypatch):
    monkeypatch.setenv("RL_DISABLE_PLUGINS", "my-dist,my-dost")
    with registry.isolated(entry_points=POINTS):
        assert unused_switches(registry.entries()) == ["my-dost"]
