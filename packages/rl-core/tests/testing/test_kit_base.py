"""The base of the kits: a check newer than a plugin's floor is expected to fail, an override needs a reason."""

from __future__ import annotations

import pytest
from packaging.version import Version

from rl_core.errors import RLError
from rl_core.testing import Kit, LossKit, StorageKit, overrides_check, since
from rl_core.testing.kit import core_floor

METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nRequires-Dist: rl-core{asked}\nRequires-Dist: numpy>=9\n"


class ToyKit(Kit):
    subject = 1

    def test_old(self):
        assert self.subject == 1

    @since("1.3")
    def test_new(self, expected=1):
        """New in 1.3."""
        assert self.subject == expected

    @since("1.3")
    def test_new_by_pytest(self):
        if self.subject != 1:
            pytest.fail("wrong subject")


class Wrong(ToyKit):
    subject = 2


@pytest.fixture
def floor(monkeypatch, tmp_path):
    """Installs a distribution that asks for a version of the core, and calls it the tested one."""
    monkeypatch.delenv("RL_KIT_DISTRIBUTION", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(asked):
        info = tmp_path / "toy_dist-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(METADATA.format(name="toy-dist", asked=asked))
        monkeypatch.setattr(ToyKit, "distribution", "toy-dist")

    return install


@pytest.mark.parametrize("asked", [">=1.2,<2", "<2,>=1.2.5", "~=1.1"])
def test_a_newer_check_that_fails_is_expected_to_where_the_floor_is_older(floor, asked):
    floor(asked)
    for check in (Wrong().test_new, Wrong().test_new_by_pytest):
        with pytest.raises(pytest.xfail.Exception, match=r"new in rl-core 1\.3; toy-dist asks for rl-core>=1\."):
            check()


@pytest.mark.parametrize("asked", [">=1.3,<2", ">=1.3.0.dev0", ">=1.4", "<2"])
def test_it_fails_where_the_floor_has_it_or_there_is_no_floor(floor, asked):
    floor(asked)
    with pytest.raises(AssertionError):
        Wrong().test_new()


def test_a_newer_check_that_passes_passes(floor):
    floor(">=1.2")
    ToyKit().test_new()
    ToyKit().test_new_by_pytest()


def test_a_check_without_a_mark_always_counts(floor):
    floor(">=1.2")
    with pytest.raises(AssertionError):
        Wrong().test_old()


def test_without_a_distribution_every_check_counts():
    assert Wrong().floor() is None
    with pytest.raises(AssertionError):
        Wrong().test_new()


def test_the_environment_names_the_distribution_where_the_kit_does_not(floor, monkeypatch):
    floor(">=1.2")
    monkeypatch.setattr(ToyKit, "distribution", None)
    monkeypatch.setenv("RL_KIT_DISTRIBUTION", "toy-dist")
    assert ToyKit().floor() == Version("1.2")
    with pytest.raises(pytest.xfail.Exception):
        Wrong().test_new()


def test_a_marked_check_keeps_its_name_documentation_and_arguments(floor):
    floor(">=1.2")
    assert (ToyKit.test_new.__name__, ToyKit.test_new.__doc__) == ("test_new", "New in 1.3.")
    with pytest.raises(pytest.xfail.Exception):
        ToyKit().test_new(expected=5)


def test_an_unknown_distribution_has_no_floor():
    assert core_floor("no-such-distribution") is None


@pytest.mark.parametrize("kit", [ToyKit, StorageKit, LossKit])
def test_replacing_a_check_without_a_reason_is_an_error(kit):
    check = next(name for name in dir(kit) if name.startswith("test_"))
    with pytest.raises(RLError, match=f"Careless.{check} replaces a check of {kit.__name__} without a reason"):
        type("Careless", (kit,), {check: lambda self: None})
    with pytest.raises(RLError, match="without a reason"):
        type("Disabled", (kit,), {check: None})


def test_replacing_a_check_with_a_reason_works():
    class Honest(ToyKit):
        @overrides_check(reason="there is no old")
        def test_old(self):
            return "replaced"

        def test_more(self):
            return "added"

    assert Honest().test_old() == "replaced"


@pytest.mark.parametrize("reason", ["", "  ", None])
def test_a_reason_is_words(reason):
    with pytest.raises(RLError, match="say in words"):
        overrides_check(reason=reason)


def test_pytest_takes_nothing_of_the_base_for_a_check():
    assert [name for name in dir(Kit) if name.startswith("test")] == []
