"""Groups: names, registration in process, isolation, environments by id."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from rl_core import registry
from rl_core.errors import (
    AmbiguousNameError,
    PluginImportError,
    PluginNotInstalledError,
    UnknownNameError,
    WrongKindError,
)
from rl_core.registry import Entry, EnvProvider, missing_extra


class NameNotFound(Exception):  # noqa: N818
    """As gymnasium's."""


class Rooms:
    """A provider of rooms.

    More words.
    """

    def make(self, id, **kwargs):
        if id == "needs-gym":
            raise missing_extra("gymnasium", "rl-envs", "gym")
        if id == "needs-module":
            raise ModuleNotFoundError("No module named 'zzz'", name="zzz")
        if id not in self.ids():
            raise NameNotFound(f"{id} doesn't exist")
        if "bad" in kwargs:
            raise TypeError("bad is no argument")
        return (id, kwargs)

    def ids(self):
        return ["Small-v0", "Large-v0", "ns/Odd:Name-v1"]

    def describe(self, id):
        return {"Small-v0": {"size": 3}}[id]


@pytest.fixture
def rooms():
    with registry.isolated(entry_points=[]):
        registry.envs.register("rooms", Rooms)
        yield


class Loss:
    """One loss.

    Long story.
    """

    def __init__(self, actor, gamma: float = 0.99):
        pass

    def forward(self, td): ...


@pytest.fixture
def empty():
    with registry.isolated(entry_points=[]):
        yield


def test_the_module_speaks_for_the_registry_with_all_its_public_names():
    import rl_core
    from rl_core.registry import Registry

    assert rl_core.registry is registry
    public = {name for name in [*vars(Registry), *vars(Registry())] if not name.startswith("_")}
    assert not {name for name in public if not hasattr(registry, name)}


def test_there_are_seventeen_groups():
    parts = ["envs", "transforms", "modules", "losses", "estimators", "collectors", "storages", "samplers", "writers"]
    whole = ["buffers", "target_updates", "datasets", "recipes", "loggers", "weight_syncs", "hooks", "commands"]
    assert list(registry.groups()) == parts + whole


def test_an_unknown_group_suggests_a_close_one():
    with pytest.raises(UnknownNameError, match="did you mean 'losses'"):
        registry.group("loses")


def test_a_registered_object_is_offered_until_it_is_unregistered(empty):
    registry.losses.register("mine", Loss)
    assert registry.losses.get("mine") is Loss
    assert registry.losses.names() == ["mine"]
    registry.losses.unregister("mine")
    with pytest.raises(UnknownNameError):
        registry.losses.get("mine")


def test_a_registration_never_shadows_silently(empty):
    registry.losses.register("mine", Loss)
    registry.losses.register("mine", Loss)  # the same object again is no harm
    with pytest.raises(AmbiguousNameError, match="override=True"):
        registry.losses.register("mine", print)
    registry.losses.register("mine", print, override=True)
    assert registry.losses.get("mine") is print


def test_a_registration_never_shadows_an_installed_name_silently():
    with registry.isolated(entry_points=[Entry("losses", "root", "math:sqrt", "my-dist", "1.0")]):
        with pytest.raises(AmbiguousNameError, match=r"my-dist 1\.0"):
            registry.losses.register("root", print)
        registry.losses.register("root", print, override=True)
        assert registry.losses.get("root") is print
        assert registry.losses.get("my-dist/root")(4.0) == 2.0


@pytest.mark.parametrize("name", ["", "a/b", "a:b"])
def test_a_registered_name_holds_no_separator(empty, name):
    with pytest.raises(ValueError, match="neither '/' nor ':'"):
        registry.losses.register(name, Loss)


@pytest.mark.parametrize(
    ("group", "thing"), [("losses", 3), ("losses", object), ("envs", print), ("recipes", print), ("commands", object())]
)
def test_a_registration_of_another_kind_is_refused(empty, group, thing):
    with pytest.raises(WrongKindError, match=f"the group rl_core.{group} holds"):
        registry.group(group).register("x", thing)


def test_unregistering_what_was_not_registered_says_so(empty):
    with pytest.raises(UnknownNameError, match="not registered in this process"):
        registry.losses.unregister("mine")


def test_isolation_forgets_registrations_and_entry_points():
    with registry.isolated(entry_points=[EntryPoint("root", "math:sqrt", "rl_core.losses")]):
        registry.losses.register("mine", Loss)
        assert registry.losses.names() == ["mine", "root"]
        with registry.isolated():
            registry.losses.register("inner", Loss)
            assert registry.losses.names() == ["inner", "mine", "root"]
        assert registry.losses.names() == ["mine", "root"]
    assert "mine" not in registry.losses.names()


def test_isolation_can_keep_what_is_installed():
    installed = set(registry.envs.names())
    with registry.isolated(entry_points=[Entry("envs", "zzz", "a:b", "d")], keep_installed=True):
        assert set(registry.envs.names()) == installed | {"zzz"}


def test_isolation_ends_after_an_error_too():
    with pytest.raises(RuntimeError, match="inside"), registry.isolated(entry_points=[]):
        registry.losses.register("mine", Loss)
        raise RuntimeError("inside")
    assert "mine" not in registry.losses.names()


def test_a_known_name_that_is_not_installed_gives_the_command(empty):
    with pytest.raises(PluginNotInstalledError, match=r"pip install 'rl-envs\[gym\]'"):
        registry.envs.make("gym:CartPole-v1")
    with pytest.raises(PluginNotInstalledError, match="pip install 'rl-objectives'"):
        registry.losses.get("ppo")


def test_a_known_name_that_the_installed_version_lacks_gives_the_upgrade():
    with (
        registry.isolated(entry_points=[Entry("losses", "other", "math:sqrt", "rl-objectives", "0.0.1")]),
        pytest.raises(PluginNotInstalledError, match="pip install -U 'rl-objectives'"),
    ):
        registry.losses.get("ppo")


def test_an_unknown_name_shows_a_close_match_and_what_is_installed(empty):
    registry.losses.register("clip", Loss)
    with pytest.raises(UnknownNameError, match=r"'clp' \(did you mean 'clip'\?\); installed: clip"):
        registry.losses.get("clp")


def test_a_description_has_signature_summary_and_owner(empty):
    registry.losses.register("mine", Loss)
    text = str(registry.losses.describe("mine"))
    for part in ("losses mine", "this process", "(actor, gamma: float = 0.99)", "One loss."):
        assert part in text
    assert "Long story" not in text


def test_make_splits_at_the_first_colon_and_forwards_the_arguments(rooms):
    assert registry.envs.make("rooms:Small-v0", size=3) == ("Small-v0", {"size": 3})
    assert registry.envs.make("rooms:ns/Odd:Name-v1") == ("ns/Odd:Name-v1", {})


def test_a_qualified_provider_chooses_between_two_distributions(make_site):
    site = make_site("site")
    for letter in "ab":
        site.module(
            f"prov_{letter}",
            f"class P:\n    def make(self, id, **k): return '{letter}', id\n"
            "    def ids(self): return []\n    def describe(self, id): return ''\n",
        )
        site.dist(f"dist-{letter}", {"envs": {"both": f"prov_{letter}:P"}})
    with pytest.raises(AmbiguousNameError, match="'dist-a/both:ID'"):
        registry.envs.make("both:x-v0")
    assert registry.envs.make("dist-b/both:ns/x-v0") == ("b", "ns/x-v0")


def test_a_provider_class_is_built_once(make_site):
    site = make_site("site")
    site.module(
        "counted",
        "built = []\nclass P:\n    def __init__(self): built.append(1)\n    def make(self, id): return len(built)\n"
        "    def ids(self): return []\n    def describe(self, id): return ''\n",
    )
    site.dist("counted-dist", {"envs": {"counted": "counted:P"}})
    assert [registry.envs.make("counted:x"), registry.envs.make("counted:y")] == [1, 1]


def test_a_provider_that_cannot_be_built_is_a_broken_plugin(make_site):
    site = make_site("site")
    site.module("unbuilt", "class P:\n    def __init__(self, x): ...\n    make = ids = describe = None\n")
    site.dist("unbuilt-dist", {"envs": {"unbuilt": "unbuilt:P"}})
    with pytest.raises(PluginImportError, match="unbuilt-dist"):
        registry.envs.make("unbuilt:x")


def test_an_unknown_id_shows_a_close_one(rooms):
    with pytest.raises(UnknownNameError, match=r"did you mean 'rooms:Small-v0'\?") as caught:
        registry.envs.make("rooms:smal-v0")
    assert isinstance(caught.value.__cause__, NameNotFound)


def test_a_bad_argument_of_a_known_id_stays_the_providers_own_error(rooms):
    with pytest.raises(TypeError, match="bad is no argument"):
        registry.envs.make("rooms:Small-v0", bad=1)


def test_an_absent_library_gives_the_extra_that_brings_it(rooms):
    with pytest.raises(PluginNotInstalledError, match=r"gymnasium .* pip install 'rl-envs\[gym\]'"):
        registry.envs.make("rooms:needs-gym")


def test_a_module_that_is_missing_when_the_env_is_made_is_named(rooms):
    with pytest.raises(PluginImportError, match="needs the module 'zzz'"):
        registry.envs.make("rooms:needs-module")


@pytest.mark.parametrize("text", ["CartPole-v1", "rooms:", ":Small-v0", ""])
def test_a_name_without_provider_or_id_is_explained(rooms, text):
    with pytest.raises(UnknownNameError, match="'provider:id'"):
        registry.envs.make(text)


def test_ids_and_descriptions_come_from_the_provider(rooms):
    assert registry.envs.ids("rooms")[0] == "Small-v0"
    assert registry.envs.describe("rooms:Small-v0") == {"size": 3}
    assert "A provider of rooms." in str(registry.envs.describe("rooms"))
    with pytest.raises(UnknownNameError, match="did you mean 'rooms:Large-v0'"):
        registry.envs.describe("rooms:Lage-v0")


def test_a_provider_is_recognised_by_its_methods():
    assert isinstance(Rooms(), EnvProvider)
    assert not isinstance(object(), EnvProvider)
