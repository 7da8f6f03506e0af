"""The table of known names agrees with what the packages beside this one offer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_core.registry.groups import GROUPS
from rl_core.registry.known import _KNOWN, requirement_for

PACKAGES = Path(__file__).resolve().parents[3]


def test_every_group_of_the_table_exists():
    assert set(_KNOWN) <= set(GROUPS)


def test_an_unknown_name_has_no_requirement():
    assert requirement_for("losses", "nothing of that name") is None


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in _KNOWN.items() for name in names])
def test_the_distribution_really_offers_the_name(group, name):
    dist = _KNOWN[group][name].partition("[")[0]
    project = PACKAGES / dist / "pyproject.toml"
    if not project.exists():
        pytest.skip(f"{dist} is not in this checkout")
    section = re.search(rf'\[project\.entry-points\."rl_core\.{group}"\]\n((?:.+\n)*)', project.read_text())
    assert section is not None
    assert re.search(rf'^"?{re.escape(name)}"? =', section[1], re.MULTILINE)
