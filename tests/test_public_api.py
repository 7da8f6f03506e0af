"""A public API as text: what is listed, which changes break callers, and that api.txt is held to it."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from types import ModuleType

import pytest

OLD = "p.f(a, b=1, *, c, d=2)"


def faults(tool, old: str, new: str) -> list[str]:
    return tool("api_diff").broken(old.splitlines(), new.splitlines())


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        "p.f(a, b=3, *, c, d=...)",
        "p.f(a, b=1, e=5, *, c, d=2)",
        "p.f(a, b=1, *, c, d=2, e=5)",
        "p.f(a=0, b=1, *, c=0, d=2)",
        "p.f(a, b=1, c=None, d=2)",
        "p.f(a, b=1, *args, c, d=2, **kwargs)",
        "p.f(a, b=1, *, c, **kwargs)",
        "p.f(a, b=1, *, c, d=2)\np.g(x)\np.F.x",
    ],
)
def test_what_adds_or_loosens_breaks_nothing(tool, new):
    assert faults(tool, OLD, new) == []


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ("p.g(a)", "p.f disappeared"),
        ("p.f", "p.f can no longer be called"),
        ("p.f(a, *, c, d=2)", "lost or renamed its parameter 'b'"),
        ("p.f(a, b=1, *, c)", "lost or renamed its parameter 'd'"),
        ("p.f(a, beta=1, *, c, d=2)", "lost or renamed its parameter 'b'"),
        ("p.f(a, *args, c, d=2, **kwargs)", "lost or renamed its parameter 'b'"),
        ("p.f(a, b, *, c, d=2)", "needs 'b' now"),
        ("p.f(a, b=1, *, c, d)", "needs 'd' now"),
        ("p.f(a, b=1, *, c, e, d=2)", "needs 'e' now"),
        ("p.f(a, *, b=1, c, d=2)", "takes 'b' by keyword only"),
        ("p.f(a, e=0, b=1, *, c, d=2)", "has another parameter, 'e', in the place of 'b'"),
        ("p.f(b, a, *, c, d=2)", "has another parameter, 'b', in the place of 'a'"),
    ],
)
def test_what_takes_something_from_callers_breaks_and_is_said(tool, new, words):
    found = faults(tool, OLD, new)
    assert any(words in fault for fault in found), found


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("p.f(*args)", "p.f(a=1)", "takes no other positional"),
        ("p.f(**kwargs)", "p.f(a=1)", "takes no other keywords"),
        ("p.f(a, b, /)", "p.f(a, /)", "lost its positional parameter 'b'"),
        ("p.f(a, /)", "p.f(a, b, /)", "needs 'b' now"),
        ("p.C.x\np.C.y", "p.C.x", "p.C.y disappeared"),
    ],
)
def test_open_and_positional_parameters_and_attributes_count_too(tool, old, new, words):
    (fault,) = faults(tool, old, new)
    assert words in fault


def test_a_positional_only_parameter_may_be_renamed(tool):
    assert faults(tool, "p.f(a, /, *, k=1)", "p.f(b, /, *, k=1)") == []
    assert faults(tool, "p.f(a, /)", "p.f(b)") == []


def test_a_fault_shows_both_signatures(tool):
    (fault,) = faults(tool, "p.f(a)", "p.f(a, b)")
    assert fault == "p.f needs 'b' now, which callers could leave out; it was p.f(a) and is p.f(a, b)"


def test_new_names_are_found(tool):
    assert tool("api_diff").added(["# p 1.0", "p.f(a)"], ["p.f(a, b)", "p.g()"]) == ["p.g"]


def sample() -> ModuleType:
    """A package ``toy`` as its author would write it."""
    source = """
import dataclasses, enum, collections

class Base:
    limit: int = 3
    def inherited(self, x, *, y=None): ...
    def _private(self): ...
    def test_check(self): ...

class Thing(Base):
    def __init__(self, size, device=object()): ...
    @property
    def shape(self): ...
    @classmethod
    def make(cls, n=1): ...
    @staticmethod
    def tell(n): ...

class Foreign(collections.OrderedDict):
    def own(self, key): ...

class Colour(enum.Enum):
    RED = 1
    BLUE = 2

@dataclasses.dataclass(frozen=True)
class Config:
    lr: float
    names: list = dataclasses.field(default_factory=list)

def function(a: "int", *rest, b: str = "x") -> None: ...

thing = Thing(1)
"""
    module = ModuleType("toy")
    exec(compile(source, "toy.py", "exec", dont_inherit=True), vars(module))
    return module


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("function", ["toy.function(a, *rest, b='x')"]),
        (
            "Thing",
            [
                "toy.Thing(size, device=...)",
                "toy.Thing.inherited(x, *, y=None)",
                "toy.Thing.limit",
                "toy.Thing.make(n=1)",
                "toy.Thing.shape",
                "toy.Thing.tell(n)",
            ],
        ),
        ("Colour", ["toy.Colour", "toy.Colour.BLUE", "toy.Colour.RED"]),
        ("Config", ["toy.Config(lr, names=...)", "toy.Config.lr", "toy.Config.names"]),
        (
            "thing",
            [
                "toy.thing",
                "toy.thing.inherited(x, *, y=None)",
                "toy.thing.limit",
                "toy.thing.make(n=1)",
                "toy.thing.shape",
                "toy.thing.tell(n)",
            ],
        ),
    ],
)
def test_a_name_is_listed_with_its_signature_and_its_members(tool, name, expected):
    lines = tool("api").described(f"toy.{name}", getattr(sample(), name), "toy")
    assert sorted(lines) == expected


def test_of_a_class_that_inherits_from_a_third_party_only_our_part_is_listed(tool):
    lines = sorted(tool("api").described("toy.Foreign", sample().Foreign, "toy"))
    assert lines[1:] == ["toy.Foreign.own(key)"]


def test_what_a_third_party_defines_is_a_bare_name(tool):
    described = tool("api").described
    assert list(described("toy.Path", Path, "toy")) == ["toy.Path"]
    assert list(described("toy.replace", dataclasses.replace, "toy")) == ["toy.replace"]
    assert list(described("toy.Enum", enum.Enum, "toy")) == ["toy.Enum"]


@pytest.fixture
def api(tool, tmp_path, monkeypatch):
    """The command on a package "toy-dist" whose lines the test chooses; gives (exit code, api.txt)."""
    module = tool("api")
    (tmp_path / "toy-dist").mkdir()
    file = tmp_path / "toy-dist" / "api.txt"
    monkeypatch.setattr(module, "PACKAGES", tmp_path)

    def run(lines: list[str], *options: str) -> tuple[int, str]:
        monkeypatch.setattr(module, "api_lines", lambda dist: lines)
        code = module.main([*options, "toy-dist"])
        return code, file.read_text() if file.is_file() else ""

    return run


def test_an_update_records_the_version_and_the_lines(api):
    assert api(["toy.f(a)"], "--update", "--version", "1.2") == (0, "# Public API of toy-dist 1.2\ntoy.f(a)\n")


def test_a_loss_within_a_major_fails_and_is_not_recorded(api, capsys):
    _, before = api(["toy.f(a)", "toy.g()"], "--update", "--version", "1.2")
    for options in ([], ["--update"]):
        assert api(["toy.f(a)"], *options, "--version", "1.9") == (1, before)
        assert "toy.g disappeared" in capsys.readouterr().out


def test_a_new_major_may_lose_names_and_so_may_who_says_so(api):
    api(["toy.f(a)", "toy.g()"], "--update", "--version", "1.2")
    assert api(["toy.f(a)"], "--version", "2.0.0.dev0")[0] == 0
    assert api(["toy.f(a)"], "--update", "--breaking", "--version", "1.3")[1].endswith("1.3\ntoy.f(a)\n")


def test_more_names_do_not_fail(api, capsys):
    _, before = api(["toy.f(a)"], "--update", "--version", "1.2")
    assert api(["toy.f(a)", "toy.g()"], "--version", "1.3") == (0, before)
    assert "1 new since 1.2, 0 broken" in capsys.readouterr().out
