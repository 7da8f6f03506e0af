"""Every error text says what was asked, what was found, and the cure."""

from __future__ import annotations

import pytest

from rl_core.errors import PluginError, RLError
from rl_core.registry import errors_text
from rl_core.registry.entry import Entry

A = Entry("losses", "ppo", "a_mod:PPO", "a-dist", "1.2", requires_core=">=1.4,<2")
B = Entry("losses", "ppo", "b_mod:PPO", "b-dist", "0.3")
CASES = {
    "unknown_name": (
        errors_text.unknown_name("losses", "poo", ["ppo", "sac"], {"x/y": PluginError("too old\nmore")}),
        ["no loss is named 'poo'", "did you mean 'ppo'", "installed: ppo, sac", "x/y (too old)", "rl plugins"],
    ),
    "unknown_name, nothing installed": (errors_text.unknown_name("losses", "x", []), ["no loss is installed"]),
    "known_but_absent": (
        errors_text.known_but_absent("envs", "gym", "rl-envs[gym]"),
        ["environment provider 'gym'", "known but not installed", "pip install 'rl-envs[gym]'"],
    ),
    "missing_extra": (errors_text.missing_extra("h5py", "rl-buffers"), ["h5py", "pip install 'rl-buffers'"]),
    "missing_module": (errors_text.missing_module("the provider 'p'", "x.y"), ["'x.y'", "pip install x", "rl doctor"]),
    "broken_import": (
        errors_text.broken_import(A, OSError("undefined symbol: _ZN\nsecond line"), "1.5"),
        [
            "a-dist 1.2",
            "a_mod:PPO",
            "rl-core 1.5",
            "OSError: undefined symbol: _ZN",
            "pip install -U a-dist",
            "rl doctor a-dist",
        ],
    ),
    "core_too_old": (
        errors_text.core_too_old(A, "1.3"),
        ["a-dist 1.2 needs rl-core>=1.4,<2", "1.3 is older", "-U 'rl-core>=1.4,<2'"],
    ),
    "plugin_too_old": (
        errors_text.plugin_too_old(A, "2.0"),
        ["made for rl-core>=1.4,<2", "2.0 is newer", "pip install -U a-dist"],
    ),
    "ambiguous": (
        errors_text.ambiguous("losses", "ppo", [A, B]),
        ["a-dist 1.2 and b-dist 0.3", "'a-dist/ppo' or 'b-dist/ppo'", "RL_DISABLE_PLUGINS=b-dist"],
    ),
    "name_taken": (
        errors_text.name_taken("losses", "ppo", "a-dist 1.2"),
        ["exists already (a-dist 1.2)", "override=True"],
    ),
    "not_registered": (
        errors_text.not_registered("losses", "x", ["y"]),
        ["not registered in this process", "registered: y"],
    ),
    "wrong_kind": (
        errors_text.wrong_kind("losses", "ppo", "a-dist 1.2", 3),
        ["a-dist 1.2", "is a int", "a class that has forward"],
    ),
    "unknown_id": (
        errors_text.unknown_id("gym", "CartPol-v1", ["CartPole-v1", "Pendulum-v1"], KeyError("CartPol")),
        ["gym has no environment 'CartPol-v1'", "did you mean 'gym:CartPole-v1'", "KeyError"],
    ),
    "malformed_env_id": (errors_text.malformed_env_id("CartPole"), ["'provider:id'", "got 'CartPole'"]),
    "unknown_group": (errors_text.unknown_group("loss"), ["no group is named 'loss'", "did you mean 'losses'"]),
    "disabled": (errors_text.disabled(A, "a-dist"), ["turned off by RL_DISABLE_PLUGINS=a-dist"]),
    "unreadable": (
        errors_text.unreadable("a-dist", "bad bytes", "/x"),
        ["a-dist in /x", "bad bytes", "--force-reinstall"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_has_its_parts_on_one_line(case):
    error, parts = CASES[case]
    assert isinstance(error, RLError)
    assert [part for part in parts if part not in str(error)] == []
    assert "\n" not in str(error)


def test_every_function_of_the_module_is_tested_here():
    functions = {name for name in errors_text.__all__ if name != "close_match"}
    assert functions == {case.partition(",")[0] for case in CASES}


def test_a_long_list_is_cut():
    text = str(errors_text.unknown_name("losses", "zz", [f"n{i}" for i in range(40)]))
    assert "and 28 more" in text
