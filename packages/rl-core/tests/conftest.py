"""Fixtures for the plugin system's tests: made-up distributions in front of ``sys.path``, forgotten afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl_core import registry
from rl_core.testing.fake_site import FakeSite


@pytest.fixture
def make_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], FakeSite]]:
    """From a name to a FakeSite in front of ``sys.path``: the last one made comes first on the path."""
    for switch in ("RL_DISABLE_PLUGINS", "RL_STRICT_PLUGINS", "RL_DEBUG"):
        monkeypatch.delenv(switch, raising=False)
    before = set(sys.modules)

    def make(name: str) -> FakeSite:
        site = FakeSite(tmp_path / name)
        monkeypatch.syspath_prepend(str(site.folder))
        return site

    with registry.isolated():
        yield make
    for module in set(sys.modules) - before:
        if str(getattr(sys.modules[module], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[module]


@pytest.fixture
def site(make_site: Callable[[str], FakeSite]) -> FakeSite:
    """One FakeSite."""
    return make_site("site")
