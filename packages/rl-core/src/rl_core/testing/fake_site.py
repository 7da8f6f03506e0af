"""FakeSite: a folder of made-up distributions, to test how plugins are found, refused and isolated."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["FakeSite"]


class FakeSite:
    """A folder for ``sys.path``: distributions as an installer leaves them (``*.dist-info``), and modules.

    Args:
        folder: where to write; created if absent.

    Example:
        >>> import tempfile
        >>> site = FakeSite(Path(tempfile.mkdtemp()))
        >>> site.module("my_losses", "class Mine: ...")
        >>> site.dist("my-dist", {"losses": {"mine": "my_losses:Mine"}}).name
        'my_dist-1.0.dist-info'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def module(self, name: str, source: str) -> None:
        """Write a module."""
        (self.folder / f"{name}.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()

    def dist(
        self,
        name: str,
        offers: dict[str, dict[str, str]],
        version: str = "1.0",
        requires: Sequence[str] = ("rl-core>=0.9.0.dev0,<2",),
        metadata: bytes | None = None,
    ) -> Path:
        """Write a distribution's metadata.

        Args:
            name: the distribution.
            offers: ``{group: {name: "module:attribute"}}``, groups without the prefix ``rl_core.``.
            version: its version.
            requires: its requirements.
            metadata: the whole METADATA file, in place of one made from the other arguments.

        Returns:
            The ``*.dist-info`` folder.
        """
        folder = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Summary: made up"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (folder / "METADATA").write_bytes("\n".join([*lines, ""]).encode() if metadata is None else metadata)
        sections = [
            f"[rl_core.{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
            for group, names in offers.items()
        ]
        (folder / "entry_points.txt").write_text("\n".join(sections), encoding="utf-8")
        importlib.invalidate_caches()
        return folder
