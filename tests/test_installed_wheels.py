"""Case C40 with real wheels: good, broken, outdated, doubled and clashing plugins in throw-away environments.

Every row is a virtual environment of its own over two shared folders: the wheels of rl-core and rl-gridworld, and links
to the third parties of the environment that runs the tests (whose own rl-* distributions are left out).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
GRIDWORLD = ROOT / "examples" / "plugins" / "rl-gridworld"
LOSS = "class Loss:\n    def forward(self, td): ...\n"
GRID = "class Provider:\n    def make(self, id): ...\n    def ids(self): return []\n    def describe(self, id): ...\n"

# What a program without torch sees: the modules after the import and after listing, the list, and each asked name.
LOOK = """
import contextlib, io, json, sys
import rl_core
from rl_core import registry
from rl_core.cli import main
from rl_core.errors import PluginError

listed = io.StringIO()
with contextlib.redirect_stdout(listed):
    main(["plugins", "--json"])
seen = {"path": sys.path, "core": rl_core.__file__, "modules": sorted(sys.modules)}
seen["plugins"] = json.loads(listed.getvalue())["plugins"]
seen["errors"] = {}
for group, name in json.loads(sys.argv[1]):
    try:
        registry.group(group).get(name)
    except PluginError as error:
        seen["errors"][name] = [type(error).__name__, str(error), type(error.__cause__).__name__]
seen["ids"] = registry.envs.ids("rl-gridworld/gridworld")
seen["ran"] = [name for name in sys.modules if name.startswith(("misfit", "rl_gridworld"))]
print(json.dumps(seen))
"""

# What a program with torch can use, for many environments in one process: torch is imported once.
USE = """
import json, sys, traceback

def use(envs):
    from rl_core import registry
    from rl_core.registry.status import statuses
    from torch import nn
    with registry.isolated():
        data = {}
        for name in envs:
            data[name] = registry.envs.make(name, batch_size=[2]).rollout(5, break_when_any_done=False)
        td = data[envs[0]].reshape(-1)
        actor = TensorDictModule(nn.Linear(16, 4), in_keys=["observation"], out_keys=["logits"])
        draw = ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Categorical)
        critic = TensorDictModule(nn.Linear(16, 1), in_keys=["observation"], out_keys=["state_value"])
        loss = registry.losses.get("gridworld_reinforce")(ProbabilisticTensorDictSequential(actor, draw), critic)
        losses = loss(td.set("returns", td["next", "reward"]))
        loaded = [[status.entry.dist, status.state] for status in statuses(registry, load=True)]
    finite = all(bool(value.isfinite()) for value in losses.values())
    where = sys.modules["rl_gridworld"].__file__
    shapes = [list(rollout.shape) for rollout in data.values()]
    return {"shapes": shapes, "finite": finite, "where": where, "loaded": loaded}

rows = json.loads(sys.argv[1])
sys.path[:] = rows["good"]["path"]
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch.distributions import Categorical

found = {}
for name, row in rows.items():
    sys.path[:] = row["path"]
    for module in [m for m in sys.modules if m.startswith(("rl_gridworld", "rl_demo", "misfit"))]:
        del sys.modules[module]
    try:
        found[name] = use(row["envs"])
    except Exception:
        found[name] = {"error": traceback.format_exc()}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Misfit:
    """A plugin of one module ``misfit_<name>``, made as a wheel without a build backend."""

    name: str
    source: str = LOSS
    target: str = "Loss"
    group: str = "losses"
    offers: str = ""
    requires: str = "rl-core>=0.9,<2"
    files: dict[str, bytes] = field(default_factory=dict, hash=False)
    damaged: bool = False

    @property
    def module(self) -> str:
        return f"misfit_{self.name}"

    @property
    def dist(self) -> str:
        return f"misfit-{self.name}"

    @property
    def info(self) -> str:
        return f"{self.module}-1.5.dist-info"

    def wheel(self, folder: Path) -> Path:
        """Write the wheel."""
        head = f"Metadata-Version: 2.1\nName: {self.dist}\nVersion: 1.5\nRequires-Dist: {self.requires}\n"
        entry = f"[rl_core.{self.group}]\n{self.offers or self.name} = {self.module}:{self.target}\n"
        files = {
            f"{self.module}/__init__.py": self.source.encode(),
            **{f"{self.module}/{name}": content for name, content in self.files.items()},
            f"{self.info}/METADATA": head.encode(),
            f"{self.info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{self.info}/entry_points.txt": entry.encode(),
        }
        path = folder / f"{self.module}-1.5-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
            record = [f"{name},{_hash(content)},{len(content)}" for name, content in files.items()]
            archive.writestr(f"{self.info}/RECORD", "\n".join([*record, f"{self.info}/RECORD,,", ""]))
        return path


def _hash(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


NATIVE = "import ctypes, pathlib\nctypes.CDLL(str(pathlib.Path(__file__).with_name('_kernels.so')))\n" + LOSS
MISFITS = [
    Misfit("import", source="raise ImportError('cannot import name _private from rl_core')"),
    Misfit("attribute", target="Renamed"),
    Misfit("newer", requires="rl-core>=99.1,<100"),
    Misfit("older", requires="rl-core>=0.1,<0.5"),
    Misfit("native", source=NATIVE, files={"_kernels.so": b"\x7fELF built for another torch"}),
    Misfit("clash", group="envs", offers="gridworld", source=GRID, target="Provider"),
    Misfit("metadata", damaged=True),
]
BY_NAME = {misfit.name: misfit for misfit in MISFITS}

ERRORS = {
    "import": ("PluginImportError", "ImportError: cannot import name _private", "pip install -U misfit-import"),
    "attribute": ("PluginImportError", "has no attribute 'Renamed'", "rl doctor misfit-attribute"),
    "newer": ("PluginVersionError", "its code was not run", "pip install -U 'rl-core>=99.1,<100'"),
    "older": ("PluginVersionError", "its code was not run", "pip install -U misfit-older"),
    "native": ("PluginImportError", "OSError", "_kernels.so", "rl doctor misfit-native"),
    "gridworld": ("AmbiguousNameError", "misfit-clash 1.5", "rl-gridworld 0.1.0", "'rl-gridworld/gridworld:ID'"),
    "metadata": ("PluginError", "cannot be read", "pip install --force-reinstall --no-deps misfit-metadata"),
}
"""What asking for a name says: the error's class, and parts of its text."""

STATES = {
    "import": "ok",
    "attribute": "ok",
    "newer": "version mismatch",
    "older": "version mismatch",
    "native": "ok",
    "clash": "duplicate",
    "metadata": "unreadable",
}
"""What `rl plugins` says of each misfit; it imports nothing, so one that cannot be imported is fine by its looks."""
LOADED = STATES | dict.fromkeys(("import", "attribute", "native"), "broken")
"""What `rl plugins --load` says of them."""

ROWS: dict[str, tuple[list[Misfit], list[str]]] = {
    "good": ([], []),
    **{misfit.name: ([misfit], []) for misfit in MISFITS},
    "wheel and editable": ([], ["rl-gridworld"]),
    "sibling editable": ([], ["rl-demo"]),
    "everything": (MISFITS, ["rl-gridworld", "rl-demo"]),
}
"""What is installed in each environment beside the wheels of rl-core and rl-gridworld: misfits, and editables."""


class Lab:
    """Wheels and environments, each made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("RL_", "PYTHON"))}
        self.variables = {**inherited, "OMP_NUM_THREADS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        self.third = folder / "third-party"
        self.base = folder / "base"
        _link_third_parties(self.third)
        wheels = self.build(ROOT / "packages" / "rl-core", GRIDWORLD)
        self.pip("install", "--target", str(self.base), *map(str, wheels))
        self.demo = folder / "rl-demo"
        self.python(self.environment("core"), "-m", "rl_core.cli", "new", "plugin", "rl-demo", *DEMO, cwd=folder)

    def run(self, *command: str, cwd: Path | None = None) -> str:
        done = subprocess.run(command, cwd=cwd, env=self.variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command[:8])}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def python(self, env: Path, *arguments: str, cwd: Path | None = None) -> str:
        """Run an environment's Python, which sees nothing of the caller's."""
        return self.run(str(_python(env)), "-I", *arguments, cwd=cwd)

    def pip(self, *arguments: str, env: Path | None = None) -> None:
        into = () if env is None else ("--python", str(_python(env)))
        options = ("--quiet", "--no-deps", "--no-index")
        self.run(sys.executable, "-m", "pip", *into, arguments[0], *options, *arguments[1:])

    def build(self, *projects: Path) -> list[Path]:
        """The wheels of projects, built by their backend."""
        target = self.folder / "wheels" / projects[-1].name
        self.pip("wheel", "--no-build-isolation", "--wheel-dir", str(target), *map(str, projects))
        return sorted(target.glob("*.whl"))

    def environment(self, name: str, misfits: tuple[Misfit, ...] = (), editables: tuple[str, ...] = ()) -> Path:
        """A new virtual environment with these installed."""
        env = self.folder / "environments" / name.replace(" ", "-")
        venv.create(env, symlinks=os.name != "nt")
        site = next(env.glob("lib/python*/site-packages")) if os.name != "nt" else env / "Lib" / "site-packages"
        wheels = [str(misfit.wheel(self.folder)) for misfit in misfits]
        sources = [str({"rl-gridworld": GRIDWORLD, "rl-demo": self.demo}[name]) for name in editables]
        # Editables are built where pip runs: the new environment has no build backend until it sees third parties.
        (site / "third_party.pth").write_text(f"{self.third}\n", encoding="utf-8")
        if wheels or sources:
            editable = [part for source in sources for part in ("--editable", source)]
            self.pip("install", "--no-build-isolation", *wheels, *editable, env=env)
        for misfit in misfits:
            if misfit.damaged:
                (site / misfit.info / "METADATA").write_bytes(b"\xff\xfe\x00 no text")
        # After what is installed here, so that an editable hides the wheel of the same distribution.
        (site / "zz_base.pth").write_text(f"{self.base}\n", encoding="utf-8")
        return env

    @cache  # noqa: B019  (one lab a run)
    def look(self, row: str) -> dict[str, Any]:
        """What a program without torch sees in a row's environment."""
        misfits, editables = ROWS[row]
        asked = [(misfit.group, misfit.offers or misfit.name) for misfit in misfits]
        asked += [("hooks", "demo")] if "rl-demo" in editables else []
        env = self.environment(row, tuple(misfits), tuple(editables))
        return json.loads(self.python(env, "-c", LOOK, json.dumps(asked)).splitlines()[-1])

    @cache  # noqa: B019
    def use(self) -> dict[str, Any]:
        """What the good plugins do in every row's environment."""
        rows = {}
        for row, (misfits, editables) in ROWS.items():
            grid = "rl-gridworld/gridworld:4x4" if BY_NAME["clash"] in misfits else "gridworld:4x4"
            envs = [grid, *(["demo:countdown"] if "rl-demo" in editables else [])]
            rows[row] = {"path": self.look(row)["path"], "envs": envs}
        return json.loads(self.python(self.environment("use"), "-c", USE, json.dumps(rows)).splitlines()[-1])


DEMO = ("--env", "--loss", "--hooks")


def _python(env: Path) -> Path:
    return env / "Scripts" / "python.exe" if os.name == "nt" else env / "bin" / "python"


def _link_third_parties(target: Path) -> None:
    """Link what is installed in the running environment, without distributions named rl-* and start-up files."""
    target.mkdir()
    for folder in map(Path, sys.path):
        if not (folder.is_dir() and any(folder.glob("*.dist-info"))):
            continue
        for entry in folder.iterdir():
            ours = entry.name.startswith(("rl_", "_rl_", "__editable__"))
            link = target / entry.name
            if not ours and entry.suffix != ".pth" and entry.name != "__pycache__" and not link.exists():
                link.symlink_to(entry, target_is_directory=entry.is_dir())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(tmp_path_factory.mktemp("wheels"))


def states(seen: dict[str, Any], dist: str) -> set[str]:
    return {plugin["state"] for plugin in seen["plugins"] if plugin["dist"] == dist}


@pytest.mark.parametrize("row", ROWS)
def test_importing_the_core_and_listing_import_no_plugin_and_no_torch(lab: Lab, row: str) -> None:
    seen = lab.look(row)
    assert Path(seen["core"]).is_relative_to(lab.base), "another rl_core than the wheel's was imported"
    top = {module.partition(".")[0] for module in seen["modules"]}
    heavy = {"torch", "tensordict", "numpy"}
    assert {name for name in top if name in heavy or name.startswith(("rl_", "misfit"))} == {"rl_core"}


@pytest.mark.parametrize("row", ROWS)
def test_the_list_shows_every_distribution_with_its_state(lab: Lab, row: str) -> None:
    seen = lab.look(row)
    misfits, editables = ROWS[row]
    assert {dist: states(seen, dist) for dist in (misfit.dist for misfit in misfits)} == {
        misfit.dist: {STATES[misfit.name]} for misfit in misfits
    }
    clash = BY_NAME["clash"] in misfits
    assert states(seen, "rl-gridworld") == ({"ok", "duplicate"} if clash else {"ok"})
    assert states(seen, "rl-demo") == ({"ok"} if "rl-demo" in editables else set())


@pytest.mark.parametrize("row", ROWS)
def test_a_bad_plugin_gives_its_one_clear_error_and_no_other_does(lab: Lab, row: str) -> None:
    errors = lab.look(row)["errors"]
    assert set(errors) == {misfit.offers or misfit.name for misfit in ROWS[row][0]}
    for name, (kind, text, _) in errors.items():
        expected, *parts = ERRORS[name]
        assert kind == expected
        assert [part for part in parts if part not in text] == [], text


@pytest.mark.parametrize("row", ["import", "attribute", "native"])
def test_a_broken_import_has_its_cause_chained(lab: Lab, row: str) -> None:
    causes = {"import": "ImportError", "attribute": "AttributeError", "native": "OSError"}
    assert lab.look(row)["errors"][row][2] == causes[row]


@pytest.mark.parametrize("row", ["newer", "older", "metadata", "clash", "everything"])
def test_the_code_of_what_is_refused_never_runs(lab: Lab, row: str) -> None:
    ran = lab.look(row)["ran"]
    assert [module for module in ran if module in ("misfit_newer", "misfit_older", "misfit_metadata")] == []
    assert "misfit_clash" not in ran


@pytest.mark.parametrize("row", ROWS)
def test_the_good_plugins_work_by_name(lab: Lab, row: str) -> None:
    assert lab.look(row)["ids"] == ["4x4", "8x8", "16x16"]
    used = lab.use()[row]
    assert "error" not in used, used["error"]
    assert used["shapes"] == [[2, 5]] * (2 if "rl-demo" in ROWS[row][1] else 1)
    assert used["finite"]


@pytest.mark.parametrize("row", ROWS)
def test_the_list_with_every_import_tried_shows_which_are_broken(lab: Lab, row: str) -> None:
    misfits, editables = ROWS[row]
    good = {"rl-gridworld": {"loaded"}} | ({"rl-demo": {"loaded"}} if "rl-demo" in editables else {})
    if BY_NAME["clash"] in misfits:
        good["rl-gridworld"] = {"loaded", "duplicate"}
    found: dict[str, set[str]] = {}
    for dist, state in lab.use()[row]["loaded"]:
        found.setdefault(dist, set()).add(state)
    assert found == good | {misfit.dist: {LOADED[misfit.name]} for misfit in misfits}


def test_a_wheel_and_an_editable_of_one_distribution_count_once_and_the_first_on_the_path_is_used(lab: Lab) -> None:
    plugins = [plugin for plugin in lab.look("wheel and editable")["plugins"] if plugin["dist"] == "rl-gridworld"]
    assert [plugin["group"] for plugin in plugins] == ["envs", "losses"]
    assert all(str(lab.base) in plugin["detail"] for plugin in plugins)
    assert Path(lab.use()["wheel and editable"]["where"]).is_relative_to(GRIDWORLD)
    assert Path(lab.use()["good"]["where"]).is_relative_to(lab.base)


def test_the_scaffolded_plugin_and_the_example_pass_their_own_tests_as_wheels(lab: Lab) -> None:
    env = lab.environment("plugins")
    (wheel,) = lab.build(lab.demo)
    lab.pip("install", str(wheel), env=env)
    tests = [str(lab.demo / "tests"), str(GRIDWORLD / "tests")]
    options = ("-c", str(lab.demo / "pyproject.toml"), "--rootdir", str(lab.folder), "-p", "no:cacheprovider", "-q")
    assert " passed" in lab.python(env, "-m", "pytest", *options, *tests)


def test_the_examples_readme_is_true(lab: Lab, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (GRIDWORLD / "README.md").read_text("utf-8"), re.M | re.S)
    learned = "assert batch['next', 'done'].sum() > 3 * rollout['next', 'done'].sum()\n"  # episodes became shorter
    lab.python(lab.environment("readme"), "-c", "".join([*blocks, learned]), cwd=tmp_path)
