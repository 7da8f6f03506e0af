"""The rl command: listing, describing, training, further commands, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from rl_core import hookimpl, hooks, registry
from rl_core.cli import main
from rl_core.errors import UnknownNameError

RECIPES = '''
import dataclasses
from rl_core.errors import EnvError

@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain:
    """Trains nothing, plainly."""
    env: str = "gym:CartPole-v1"
    frames: int = 10
    fast: bool = False
    def run(self):
        print("ran", self.env, self.frames, self.fast)

class Own:
    @classmethod
    def from_argv(cls, argv):
        recipe = cls(); recipe.argv = argv
        return recipe
    def run(self):
        print("own", self.argv)

class Failing:
    def run(self):
        raise EnvError("the env fell over")

class Interrupted:
    def run(self):
        raise KeyboardInterrupt
'''


@pytest.fixture
def recipes(site):
    site.module("recipes_mod", RECIPES)
    names = {"plain": "Plain", "own": "Own", "failing": "Failing", "interrupted": "Interrupted"}
    site.dist("recipe-dist", {"recipes": {name: f"recipes_mod:{cls}" for name, cls in names.items()}})
    return site


def test_without_arguments_it_lists_its_commands(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("plugins", "doctor", "describe", "train"))


def test_the_version_is_the_cores(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rl-core ")


def test_an_unknown_command_is_one_line_on_stderr_and_code_2(capsys):
    assert main(["trian"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "did you mean 'train'" in err


def test_the_debug_switch_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("RL_DEBUG", "1")
    with pytest.raises(UnknownNameError):
        main(["trian"])


def test_the_list_shows_every_state_and_imports_nothing(site, capsys, monkeypatch):
    site.module("one_mod", "raise RuntimeError('imported')")
    site.dist("one-dist", {"losses": {"one": "one_mod:A"}})
    site.dist("new-dist", {"losses": {"two": "one_mod:A"}}, requires=("rl-core>=99",))
    site.dist("off-dist", {"losses": {"three": "one_mod:A"}})
    site.dist("torn-dist", {"losses": {"four": "one_mod:A"}}, metadata=b"\xff")
    site.dist("dup-dist", {"losses": {"one": "one_mod:B"}})
    monkeypatch.setenv("RL_DISABLE_PLUGINS", "off-dist")
    assert main(["plugins", "losses", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["plugins"]
    states = {row["dist"]: row["state"] for row in rows if row["dist"].endswith("-dist")}
    assert states == {
        "one-dist": "duplicate", "dup-dist": "duplicate", "new-dist": "version mismatch", "off-dist": "disabled",
        "torn-dist": "unreadable",
    }  # fmt: skip
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "needs rl-core>=99" in out
    assert "say 'one-dist/one'" in out


def test_the_list_with_load_finds_what_fails_at_import(site, capsys):
    site.module("bad_mod", "raise RuntimeError('at import')")
    site.dist("bad-dist", {"weight_syncs": {"bad": "bad_mod:A"}})
    assert main(["plugins", "weight_syncs", "--load"]) == 1
    out = capsys.readouterr().out
    assert "broken" in out
    assert "RuntimeError: at import" in out


def test_an_empty_list_says_how_to_begin(capsys):
    with registry.isolated(entry_points=[]):
        main(["plugins"])
    assert "pip install" in capsys.readouterr().out


def test_a_misspelt_switch_is_noted(capsys, monkeypatch):
    monkeypatch.setenv("RL_DISABLE_PLUGINS", "no-such-dist")
    main(["plugins"])
    assert "RL_DISABLE_PLUGINS=no-such-dist turns nothing off" in capsys.readouterr().err


def test_training_without_a_recipe_lists_them(recipes, capsys):
    assert main(["train"]) == 0
    assert "plain" in capsys.readouterr().out
    assert "recipes_mod" not in sys.modules


def test_a_recipe_reads_its_own_command_line(recipes, capsys):
    assert main(["train", "own", "--env", "gym:CartPole-v1", "-h", "x"]) == 0
    assert capsys.readouterr().out == "own ['--env', 'gym:CartPole-v1', '-h', 'x']\n"


def test_a_plain_recipe_gets_an_option_for_each_field(recipes, capsys):
    assert main(["train", "plain", "--frames", "7", "--fast", "--env", "mine:x"]) == 0
    assert capsys.readouterr().out == "ran mine:x 7 True\n"


def test_a_plain_recipe_refuses_an_unknown_option(recipes, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["train", "plain", "--frame", "7"])
    assert caught.value.code == 2


def test_an_unknown_recipe_suggests_a_close_one(recipes, capsys):
    assert main(["train", "plane"]) == 2
    assert "did you mean 'plain'" in capsys.readouterr().err


def test_options_before_the_recipe_are_explained(recipes, capsys):
    assert main(["train", "--frames", "7", "plain"]) == 2
    assert "the recipe comes first" in capsys.readouterr().err


def test_an_error_of_the_library_is_one_line_without_a_traceback(recipes, capsys):
    assert main(["train", "failing"]) == 2
    assert capsys.readouterr().err == "error: the env fell over\n"


def test_an_interrupted_run_ends_with_130(recipes, capsys):
    assert main(["train", "interrupted"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_describe_tells_signature_and_owner(recipes, capsys):
    assert main(["describe", "recipes", "plain"]) == 0
    out = capsys.readouterr().out
    for part in ("recipe-dist 1.0", "frames: int = 10", "Trains nothing, plainly."):
        assert part in out


def test_describe_asks_the_provider_of_an_environment(site, capsys):
    site.module(
        "prov_mod",
        "class P:\n    def make(self, id): ...\n    def ids(self): return ['x-v0']\n"
        "    def describe(self, id): return {'id': id, 'actions': 2}\n",
    )
    site.dist("prov-dist", {"envs": {"prov": "prov_mod:P"}})
    assert main(["describe", "prov:x-v0"]) == 0
    assert capsys.readouterr().out == "id       x-v0\nactions  2\n"


def test_describe_explains_its_two_forms(capsys):
    assert main(["describe", "ppo"]) == 2
    assert "rl describe losses ppo" in capsys.readouterr().err


COMMAND = """
class Hello:
    help = "Say hello."
    def add_arguments(self, parser):
        parser.add_argument("--name", default="world")
    def run(self, args):
        print("hello", args.name)
        return 3
"""


def test_a_command_from_an_entry_point_is_listed_lazily_and_run(site, capsys):
    site.module("hello_mod", COMMAND)
    site.dist("hello-dist", {"commands": {"hello": "hello_mod:Hello"}})
    main([])
    assert "hello-dist 1.0" in capsys.readouterr().out
    assert "hello_mod" not in sys.modules
    assert main(["hello", "--name", "you"]) == 3
    assert capsys.readouterr().out == "hello you\n"


def test_a_broken_command_fails_for_who_asks_for_it(site, capsys):
    site.dist("broken-dist", {"commands": {"broken": "not_there:X"}})
    assert main(["broken"]) == 2
    assert "broken-dist" in capsys.readouterr().err
    assert main(["plugins"]) == 0


def test_a_command_that_is_turned_off_says_so(site, capsys, monkeypatch):
    site.dist("off-dist", {"commands": {"offcommand": "not_there:X"}})
    monkeypatch.setenv("RL_DISABLE_PLUGINS", "off-dist")
    assert main(["offcommand"]) == 2
    assert "turned off" in capsys.readouterr().err


class CommandPlugin:
    def __init__(self):
        self.configured = []

    @hookimpl
    def add_arguments(self, command, parser):
        if command == "train":
            parser.add_argument("--project")

    @hookimpl
    def configure(self, command, args):
        self.configured.append((command, args.project if command == "train" else None))

    @hookimpl
    def commands(self):
        class Bye:
            help = "Say bye."

            def add_arguments(self, parser): ...

            def run(self, args):
                print("bye")

        return {"bye": Bye()}


def test_a_hook_plugin_adds_options_and_commands(recipes, capsys):
    plugin = CommandPlugin()
    hooks.load().register(plugin)
    assert main(["train", "own", "--project", "p", "--rest", "r"]) == 0
    assert capsys.readouterr().out == "own ['--rest', 'r']\n"
    assert plugin.configured == [("train", "p")]
    assert main(["bye"]) == 0
    assert capsys.readouterr().out == "bye\n"


def test_a_reader_that_goes_away_is_no_traceback():
    command = f"{sys.executable} -m rl_core.cli plugins --json | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert "Traceback" not in done.stderr
