"""`nox -s tests` installs the plugin as its users do and tests what was installed."""

from __future__ import annotations

import os

import nox


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; `RL_CORE=...` (a requirement, or a folder) chooses the core to test with."""
    core = os.environ.get("RL_CORE")
    session.install(*([core] if core else []), ".[test]")
    session.run("python", "-m", "pytest", *session.posargs)
