"""Libraries that are not installed: the names can be imported, what needs the library says how to get it."""

import importlib
import sys

import pytest

from rl_core import registry
from rl_core.errors import PluginNotInstalledError


@pytest.fixture(params=["envpool", "pyspiel", "jax", "brax", "jumanji", "mujoco_playground"])
def absent(request, monkeypatch):
    monkeypatch.setitem(sys.modules, request.param, None)
    return request.param


PROVIDERS = {
    "envpool": ("envpool", "CartPole-v1", "envpool"),
    "pyspiel": ("open_spiel", "tic_tac_toe", "open_spiel"),
    "jax": ("brax", "ant", "jax"),
    "brax": ("brax", "ant", "brax"),
    "jumanji": ("jumanji", "Snake-v1", "jumanji"),
    "mujoco_playground": ("mujoco_playground", "CartpoleBalance", "mujoco_playground"),
}


def test_a_provider_without_its_library_names_the_pip_command(absent, monkeypatch):
    provider, id, extra = PROVIDERS[absent]
    for name in ("library", "env", "brax", "jumanji", "playground"):
        monkeypatch.delitem(sys.modules, f"rl_envs.jax_envs.{name}", raising=False)
    # without jax itself nothing of it can be asked, whichever of its libraries is there
    ours = ("jax", "brax", "jumanji", "mujoco_playground")
    alternatives = rf"({'|'.join(ours)})" if absent in ours else extra
    with pytest.raises(PluginNotInstalledError, match=rf"pip install 'rl-envs\[{alternatives}\]'"):
        registry.envs.make(f"{provider}:{id}")


def test_all_public_names_can_be_imported_without_heavy_libraries(monkeypatch):
    for name in ("envpool", "pyspiel", "jax", "brax", "jumanji", "mujoco_playground"):
        monkeypatch.setitem(sys.modules, name, None)
    package = importlib.import_module("rl_envs")
    for name in package.__all__:
        assert getattr(package, name) is not None
