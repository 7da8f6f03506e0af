"""The registry, the hooks and the first screens of ``rl`` load neither torch nor a plugin."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "tensordict", "numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import rl_core; rl_core.registry.losses.names(); rl_core.EnvRef('gym:x')",
        "from rl_core import registry; [g.names() for g in registry.groups().values()]",
        "from rl_core import hooks; hooks.load(); hooks.call('on_batch', run=None, batch=None)",
        "from rl_core.cli import main; main(['plugins'])",
        "from rl_core.cli import main; main(['plugins', '--json'])",
        "from rl_core.cli import main; main(['train'])",
        "from rl_core.cli import main; main(['--help'])",
        "from rl_core.cli import main; main(['describe', 'losses'])",
    ],
)
def test_nothing_heavy_is_imported(code):
    program = f"{code}\nimport sys, json; print(); print(json.dumps([m for m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    assert [m for m in modules if m in HEAVY or (m.startswith("rl_") and not m.startswith("rl_core"))] == []
