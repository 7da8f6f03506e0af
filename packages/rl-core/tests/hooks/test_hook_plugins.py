"""Hooks: everyone may react, and a broken plugin stops nobody."""

from __future__ import annotations

import warnings

import pytest

from rl_core import hookimpl, hooks, registry
from rl_core.errors import PluginError, PluginImportError, PluginVersionError, WrongKindError
from rl_core.hooks import CommandHooks, DoctorHooks, PluginWarning, RunHooks

GOOD = """
from rl_core import hookimpl
seen = []
@hookimpl
def on_batch(run, batch):
    seen.append(batch)
    return "good"
"""


class Recorder:
    def __init__(self, answer="recorded"):
        self.seen = []
        self.answer = answer

    @hookimpl
    def on_batch(self, batch):
        self.seen.append(batch)
        return self.answer


class Faulty:
    calls = 0

    @hookimpl
    def on_batch(self):
        self.calls += 1
        raise ValueError("out of paper")


@pytest.fixture
def no_plugins(monkeypatch):
    monkeypatch.delenv("RL_STRICT_PLUGINS", raising=False)
    with registry.isolated(entry_points=[]):
        yield


def test_the_hooks_of_a_run_come_per_batch_and_update_never_per_step():
    names = {name for name in vars(RunHooks) if name.startswith("on_")}
    assert names == {"on_run_start", "on_batch", "on_update", "on_evaluation", "on_checkpoint", "on_run_end"}
    assert {"add_arguments", "configure", "commands"} <= set(vars(CommandHooks))
    assert "doctor_report" in vars(DoctorHooks)


def test_a_firing_without_plugins_gives_nothing(no_plugins):
    assert hooks.call("on_batch", run=None, batch=1) == []


def test_the_manager_is_loaded_once(no_plugins):
    assert hooks.load() is hooks.load()


def test_isolation_has_a_manager_of_its_own(no_plugins):
    outer = hooks.load()
    outer.register(Recorder(), "outer")
    with registry.isolated():
        assert hooks.load() is not outer
        assert hooks.call("on_batch", run=None, batch=1) == []
    assert hooks.load() is outer


def test_every_plugin_is_called_the_last_registered_first(no_plugins):
    first, last = Recorder("first"), Recorder("last")
    hooks.load().register(first)
    hooks.load().register(last)
    assert hooks.call("on_batch", run=None, batch=3) == ["last", "first"]
    assert (first.seen, last.seen) == ([3], [3])


def test_an_unknown_hook_suggests_a_close_one(no_plugins):
    with pytest.raises(PluginError, match="did you mean 'on_batch'"):
        hooks.call("on_bach", run=None, batch=1)


def test_a_firing_without_an_argument_that_a_plugin_asks_for_names_it(no_plugins):
    hooks.load().register(Recorder())
    with pytest.raises(PluginError, match="without its argument 'batch'"):
        hooks.call("on_batch", run=None)


def test_a_plugin_that_raises_is_left_out_with_one_warning_and_the_others_go_on(no_plugins):
    recorder, faulty = Recorder(), Faulty()
    hooks.load().register(recorder, "recorder")
    hooks.load().register(faulty, "their-dist/faulty")
    with pytest.warns(
        PluginWarning, match=r"their-dist/faulty .* ValueError: out of paper.*rl doctor their-dist"
    ) as caught:
        for batch in range(3):
            hooks.call("on_batch", run=None, batch=batch)
    assert len(caught) == 1
    assert faulty.calls == 1
    assert recorder.seen == [0, 1, 2]
    assert "their-dist/faulty" in hooks.load().failures


def test_a_plugin_that_raises_is_an_error_in_strict_mode(no_plugins, monkeypatch):
    monkeypatch.setenv("RL_STRICT_PLUGINS", "1")
    hooks.load().register(Faulty(), "faulty")
    with pytest.raises(PluginError, match="out of paper") as caught:
        hooks.call("on_batch", run=None, batch=1)
    assert isinstance(caught.value.__cause__, ValueError)


def test_ctrl_c_in_a_hook_passes(no_plugins):
    class Interrupting:
        @hookimpl
        def on_batch(self):
            raise KeyboardInterrupt

    hooks.load().register(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        hooks.call("on_batch", run=None, batch=1)


def test_a_hook_that_does_not_exist_is_not_silently_ignored(no_plugins):
    class Misspelt:
        @hookimpl
        def on_bach(self): ...

    with pytest.raises(WrongKindError, match=r"'on_bach' \(did you mean 'on_batch'\?\)"):
        hooks.load().register(Misspelt(), "misspelt")
    assert not hooks.load().has_plugin("misspelt")


def test_a_hook_of_a_newer_core_may_be_marked_optional(no_plugins):
    class Ahead(Recorder):
        @hookimpl(optionalhook=True)
        def on_the_moon(self): ...

    hooks.load().register(Ahead(), "ahead")
    assert hooks.call("on_batch", run=None, batch=1) == ["recorded"]


def test_an_argument_that_the_hook_does_not_have_is_refused(no_plugins):
    class Greedy:
        @hookimpl
        def on_batch(self, weather): ...

    with pytest.raises(PluginError, match="weather"):
        hooks.load().register(Greedy(), "greedy")
    assert hooks.call("on_batch", run=None, batch=1) == []


def test_an_object_without_any_hook_is_refused(no_plugins):
    with pytest.raises(WrongKindError, match="hookimpl"):
        hooks.load().register(object(), "nothing")


def test_a_wrapper_is_refused(no_plugins):
    class Wrapper:
        @hookimpl(wrapper=True)
        def on_batch(self):
            return (yield)

    with pytest.raises(WrongKindError, match="wrapper"):
        hooks.load().register(Wrapper(), "wrapper")


@pytest.mark.parametrize("load_first", [True, False])
def test_what_is_registered_in_the_registry_reaches_the_hooks(no_plugins, load_first):
    if load_first:
        hooks.load()
    registry.hooks.register("mine", Recorder())
    assert hooks.call("on_batch", run=None, batch=1) == ["recorded"]
    registry.hooks.register("mine", Recorder("other"), override=True)
    assert hooks.call("on_batch", run=None, batch=1) == ["other"]
    registry.hooks.unregister("mine")
    assert hooks.call("on_batch", run=None, batch=1) == []


@pytest.fixture
def broken_beside_good(site):
    site.module("good_hooks", GOOD)
    site.dist("good-dist", {"hooks": {"it": "good_hooks"}})
    site.module("bad_hooks", "raise ImportError('no logger')")
    site.dist("bad-dist", {"hooks": {"it": "bad_hooks"}})
    return site


def test_an_installed_module_is_a_plugin_and_a_broken_one_is_left_out_with_one_warning(broken_beside_good):
    with pytest.warns(PluginWarning) as caught:
        assert hooks.call("on_batch", run=None, batch=1) == ["good"]
        assert hooks.call("on_batch", run=None, batch=2) == ["good"]
    [warning] = caught
    for part in ("bad-dist/it", "ImportError: no logger", "rl doctor bad-dist", "RL_DISABLE_PLUGINS=bad-dist"):
        assert part in str(warning.message)
    assert isinstance(hooks.load().failures["bad-dist/it"], PluginImportError)


def test_strict_mode_makes_a_broken_plugin_an_error_every_time(broken_beside_good, monkeypatch):
    monkeypatch.setenv("RL_STRICT_PLUGINS", "1")
    for _ in range(2):
        with pytest.raises(PluginImportError, match="no logger"):
            hooks.call("on_batch", run=None, batch=1)


def test_a_plugin_that_is_turned_off_is_silent(broken_beside_good, monkeypatch):
    monkeypatch.setenv("RL_DISABLE_PLUGINS", "bad-dist")
    monkeypatch.setenv("RL_STRICT_PLUGINS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hooks.call("on_batch", run=None, batch=1) == ["good"]


def test_a_plugin_for_another_core_is_left_out_before_its_code_runs(site):
    site.module("future_hooks", "raise SystemExit('it ran')")
    site.dist("future-dist", {"hooks": {"f": "future_hooks"}}, requires=("rl-core>=99",))
    with pytest.warns(PluginWarning, match="needs rl-core>=99"):
        manager = hooks.load()
    assert isinstance(manager.failures["future-dist/f"], PluginVersionError)


def test_a_class_is_built_and_registered(site):
    site.module(
        "class_hooks",
        "from rl_core import hookimpl\nclass P:\n    @hookimpl\n    def on_run_end(self, error): return repr(error)\n",
    )
    site.dist("class-dist", {"hooks": {"c": "class_hooks:P"}})
    assert hooks.call("on_run_end", run=None, error=None) == ["None"]


def test_an_installed_plugin_with_a_misspelt_hook_is_left_out_with_a_warning(site):
    site.module("misspelt_hooks", "from rl_core import hookimpl\n@hookimpl\ndef on_updat(metrics): ...\n")
    site.dist("misspelt-dist", {"hooks": {"m": "misspelt_hooks"}})
    with pytest.warns(PluginWarning, match="did you mean 'on_update'"):
        hooks.load()
