"""PluginKit: what a distribution of plugins must get right, whatever it offers.

A plugin's test file subclasses it::

    class TestMyPlugin(PluginKit):
        dist = "rl-gridworld"
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from importlib.metadata import Distribution
from typing import Any, ClassVar

from packaging.requirements import Requirement
from packaging.specifiers import Specifier
from packaging.version import Version

from rl_core.errors import PluginError
from rl_core.registry import Registry
from rl_core.registry.entry import Entry, normalized
from rl_core.registry.groups import GROUPS
from rl_core.registry.loading import fault
from rl_core.testing.kit import Kit

__all__ = ["PluginKit"]

_FIELDS = ("Name", "Version", "Summary", "Requires-Python")

_SIDE_EFFECTS = """
import builtins, importlib, json, multiprocessing, random, sys, warnings
import numpy, tensordict, torch

modules = json.loads(sys.argv[1])
sys.path[:] = json.loads(sys.argv[2])
own = {module.partition(".")[0] for module in modules}
changed = {}
own_filters = []

def is_own(namespace):
    return (namespace or {}).get("__name__", "").partition(".")[0] in own

def state():
    return {
        "torch default dtype": str(torch.get_default_dtype()),
        "torch default device": str(torch.get_default_device()),
        "torch random state": hash(torch.get_rng_state().numpy().tobytes()),
        "numpy random state": hash(numpy.random.get_state()[1].tobytes()),
        "python random state": hash(random.getstate()),
        "torch threads": torch.get_num_threads(),
        "torch gradient mode": torch.is_grad_enabled(),
        "torch.cuda is initialized": torch.cuda.is_initialized(),
        "multiprocessing start method": str(multiprocessing.get_start_method(allow_none=True)),
    }

def note_changes():
    now = state()
    changed.update({name: [str(base[name]), str(now[name])] for name in base if base[name] != now[name]})

def import_watched(name, globals=None, locals=None, fromlist=(), level=0):
    # What a third party does while it is imported (rich draws random numbers) is not the plugin's doing.
    global base
    foreign = level == 0 and name.partition(".")[0] not in own and name not in sys.modules and is_own(globals)
    if foreign:
        note_changes()
    try:
        return import_plain(name, globals, locals, fromlist, level)
    finally:
        if foreign:
            base = state()

def watch_filters(name):
    set_filter = getattr(warnings, name)
    def watched(*args, **kwargs):
        before = list(warnings.filters)
        set_filter(*args, **kwargs)
        if is_own(sys._getframe(1).f_globals):
            own_filters.extend(f for f in warnings.filters if f not in before)
    setattr(warnings, name, watched)

watch_filters("filterwarnings")
watch_filters("simplefilter")
base = state()
import_plain, builtins.__import__ = builtins.__import__, import_watched
for module in modules:
    importlib.import_module(module)
note_changes()
left = [str(f) for f in own_filters if f in warnings.filters]
print()
print(json.dumps({**changed, **({"warning filters": ["", left]} if left else {})}))
"""


class PluginKit(Kit):
    """Checks of one installed distribution; each also runs on its own, as ``PluginKit.of("my-dist").test_...()``.

    Attributes:
        dist: the distribution's name.
        timeout: seconds for the import in a process of its own.
    """

    dist: ClassVar[str]
    timeout: ClassVar[float] = 120.0

    @classmethod
    def of(cls, dist: str) -> PluginKit:
        """The kit for a distribution, without a class of your own."""
        kit: type[PluginKit] = type("PluginKitOf", (cls,), {"dist": dist})
        return kit()

    def owning_distribution(self) -> str:
        return self.dist

    def test_offers_something(self) -> None:
        """At least one entry point stands in a group that the core has."""
        unknown = sorted({entry.group for entry in self._entries() if entry.group not in GROUPS})
        assert not unknown, (
            f"{self.dist} offers names in groups that rl-core does not have: {unknown}; it has {list(GROUPS)}"
        )
        assert self._entries(), f"{self.dist} has no entry point in any group rl_core.*, or is not installed"

    def test_requires_core_with_a_floor_and_a_cap_on_its_major_only(self) -> None:
        """``rl-core>=1.N,<2``: a floor it is tested on, a cap on the next major, nothing else."""
        requirement = self._core_requirement()
        floors = [spec for spec in requirement.specifier if spec.operator in (">=", ">")]
        caps = [spec for spec in requirement.specifier if spec.operator in ("<", "<=")]
        others = [str(spec) for spec in requirement.specifier if spec not in floors and spec not in caps]
        form = f"{self.dist} requires {requirement}; the form is rl-core>=1.N,<2"
        assert not others, f"{form}: {', '.join(others)} would tie it to single releases"
        assert len(floors) == 1, f"{form}: it needs one floor, the oldest core that it is tested on"
        assert len(caps) == 1 and _is_next_major(caps[0]), f"{form}: it needs one cap, on the core's major"

    def test_fits_the_installed_core(self) -> None:
        """The handshake of the registry lets it in."""
        faults = {entry.qualified: str(error) for entry in self._entries() if (error := fault(entry)) is not None}
        assert not faults, f"not usable under the installed rl-core: {faults}"

    def test_metadata_is_complete(self) -> None:
        """Name, version, summary, supported Pythons, and a license."""
        metadata: Any = self._distribution().metadata
        missing = [field for field in _FIELDS if not metadata.get(field)]
        if not (metadata.get("License-Expression") or metadata.get("License") or metadata.get("License-File")):
            missing.append("License-Expression")
        assert not missing, f"the metadata of {self.dist} lacks {missing}: add them to [project] in its pyproject.toml"

    def test_every_entry_point_loads(self) -> None:
        """Each name can be imported and is of its group's kind."""
        registry = Registry()
        failed: dict[str, str] = {}
        for entry in self._entries():
            try:
                registry.group(entry.group).get(entry.qualified)
            except PluginError as error:
                failed[f"{entry.group}:{entry.name}"] = str(error)
        assert not failed, f"names of {self.dist} that cannot be used: {failed}"

    def test_listing_does_not_import_it(self) -> None:
        """Names are known from metadata alone."""
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[2])\n"
            "from rl_core import registry; [group.names() for group in registry.groups().values()]\n"
            "print(json.dumps([module for module in json.loads(sys.argv[1]) if module in sys.modules]))"
        )
        imported = self._in_a_process(code)
        assert imported == [], f"asking for names has imported {imported}; is a .pth file importing it at start-up?"

    def test_import_has_no_side_effect(self) -> None:
        """No default, random state, start method, thread count or warning filter is changed by importing it."""
        changed = self._in_a_process(_SIDE_EFFECTS)
        assert not changed, f"importing {self.dist} has changed (before, after): {changed}"

    def _distribution(self) -> Distribution:
        return importlib.metadata.distribution(self.dist)

    def _entries(self) -> list[Entry]:
        return [entry for entry in Registry().entries() if normalized(entry.dist) == normalized(self.dist)]

    def _core_requirement(self) -> Requirement:
        found = [Requirement(line) for line in self._distribution().requires or ()]
        ours = [requirement for requirement in found if normalized(requirement.name) == "rl-core"]
        assert ours, f"{self.dist} does not require rl-core: add rl-core>=1.N,<2 to its dependencies"
        return ours[0]

    def _in_a_process(self, code: str) -> Any:
        modules = sorted({entry.value.partition(":")[0] for entry in self._entries()})
        command = [sys.executable, "-c", code, json.dumps(modules), json.dumps(sys.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout, check=False)
        assert done.returncode == 0, f"importing {self.dist} in a process of its own failed:\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])


def _is_next_major(cap: Specifier) -> bool:
    """Whether the cap is ``<N`` with a bare major."""
    version = Version(cap.version)
    return cap.operator == "<" and version == Version(str(version.major))
