"""Datasets by "prefix:name": those of this distribution, those that a process registers, and names that nobody has."""

from __future__ import annotations

import sys
import types

import pytest

import rl_buffers
from rl_buffers import DatasetError, load_dataset, register_dataset
from rl_core import registry
from rl_core.errors import AmbiguousNameError, UnknownNameError


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("d4rl", "D4RLExperienceReplay"),
        ("minari", "MinariExperienceReplay"),
        ("atari_dqn", "AtariDQNExperienceReplay"),
        ("atari", "AtariDQNExperienceReplay"),
        ("lerobot", "LeRobotExperienceReplay"),
    ],
)
def test_the_registry_has_every_kind_of_dataset(prefix, name):
    assert registry.datasets.get(prefix) is getattr(rl_buffers, name)


def test_a_registered_kind_is_imported_when_one_is_loaded(monkeypatch):
    module = types.ModuleType("my_datasets")
    with registry.isolated():
        register_dataset("mine", "my_datasets:Mine")
        register_dataset("mine", "my_datasets:Mine")  # the same again, as when a script runs twice
        with pytest.raises(DatasetError, match="my_datasets:Mine, which cannot be imported"):
            load_dataset("mine:walk:v0")
        module.Mine = lambda name, **kwargs: (name, kwargs)
        monkeypatch.setitem(sys.modules, "my_datasets", module)
        assert load_dataset("mine:walk:v0", batch_size=3) == ("walk:v0", {"batch_size": 3})


def test_a_name_that_is_taken_is_hidden_only_where_said():
    with registry.isolated():
        register_dataset("mine", "a:B")
        with pytest.raises(AmbiguousNameError, match="'mine' exists already"):
            register_dataset("mine", "a:C")
        register_dataset("mine", "a:C", override=True)
        with pytest.raises(AmbiguousNameError, match="'d4rl' exists already"):
            register_dataset("d4rl", "a:C")


def test_an_unknown_prefix_gets_a_close_one_and_all_there_are():
    with pytest.raises(UnknownNameError, match=r"'minary' \(did you mean 'minari'\?\).*installed: .*d4rl.*lerobot"):
        load_dataset("minary:door/human-v0")


@pytest.mark.parametrize("name", ["d4rl", "d4rl:", ":x", "hopper-medium-v2"])
def test_a_name_without_its_two_parts_is_an_error(name):
    with pytest.raises(DatasetError, match=r"'prefix:name'.*Prefixes: .*d4rl"):
        load_dataset(name)


@pytest.mark.parametrize("target", ["no_colon", ":B", "a:", "a:not a name"])
def test_a_target_is_a_module_and_a_name(target):
    with pytest.raises(DatasetError, match="'module:Class'"):
        register_dataset("mine", target)
