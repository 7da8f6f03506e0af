"""Named components to a folder and back: ``manifest.json`` (format 1) and ``tensors.bin``.

A save writes a second folder and then swaps the names, so a crash leaves the old checkpoint or the new one, never half
of one. A load first checks that every wanted component is there and then fills them all.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch

from rl_core.errors import CheckpointError
from rl_core.training.stateful import Stateful
from rl_trainers.checkpoint.tree import TreeReader, TreeWriter

__all__ = ["Checkpoint", "CheckpointLoadResult"]

FORMAT = 1
_MANIFEST = "manifest.json"
_TENSORS = "tensors.bin"
_FIELDS = {"format", "components", "metadata", "tensors", "written_by"}


@dataclass(frozen=True, kw_only=True)
class CheckpointLoadResult:
    """What a load did."""

    loaded: tuple[str, ...]
    """Components that were filled."""
    missing: tuple[str, ...] = ()
    """Components wanted but absent from the file (only where ``strict=False``)."""
    unexpected: tuple[str, ...] = ()
    """Components in the file that nobody asked for."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """The metadata given to ``save``."""


class Checkpoint:
    """Saves and loads the state of named components.

    Args:
        **components: objects with ``state_dict`` and ``load_state_dict``: modules, optimisers, schedules, collectors,
            buffers, counters, :class:`GlobalRNGState`.

    Raises:
        CheckpointError: a component lacks those methods.

    Example:
        >>> import tempfile
        >>> net = torch.nn.Linear(2, 1)
        >>> path = Checkpoint(net=net).save(Path(tempfile.mkdtemp()) / "checkpoint")
        >>> other = torch.nn.Linear(2, 1)
        >>> Checkpoint(net=other).load(path).loaded
        ('net',)
        >>> torch.equal(net.weight, other.weight)
        True
    """

    def __init__(self, **components: Stateful) -> None:
        self._components: dict[str, Stateful] = {}
        for name, component in components.items():
            self.register(name, component)

    @property
    def components(self) -> Mapping[str, Stateful]:
        """The components by name."""
        return dict(self._components)

    def register(self, name: str, component: Stateful) -> None:
        """Add a component."""
        if name in self._components:
            raise CheckpointError(f"the checkpoint has a component {name!r} already")
        if not isinstance(component, Stateful):
            raise CheckpointError(
                f"component {name!r} is a {type(component).__qualname__} without state_dict() and load_state_dict(); "
                "a checkpoint could not restore it"
            )
        self._components[name] = component

    def save(self, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> Path:
        """Write every component into the folder ``path``, replacing an older checkpoint there in one step.

        Args:
            path: the checkpoint's folder; its parents are created.
            metadata: JSON values that :meth:`load` and :meth:`manifest` give back.

        Raises:
            CheckpointError: a state holds something else than data, or the folder is no checkpoint and not empty.
        """
        path = Path(path)
        if path.exists() and not self.is_checkpoint(path) and (not path.is_dir() or any(path.iterdir())):
            raise CheckpointError(f"{path} exists and is no checkpoint; it will not be overwritten")
        draft = path.with_name(f".{path.name}.draft")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        with (draft / _TENSORS).open("wb") as file:
            writer = TreeWriter(file)
            trees = {name: writer.encode(c.state_dict(), name) for name, c in self._components.items()}
            size = file.tell()
            _to_disk(file)
        manifest = {
            "format": FORMAT,
            "written_by": {"torch": torch.__version__, "numpy": numpy.__version__},
            "metadata": dict(metadata or {}),
            "tensors": {"file": _TENSORS, "bytes": size, "crc32": zlib.crc32((draft / _TENSORS).read_bytes())},
            "components": trees,
        }
        with (draft / _MANIFEST).open("w", encoding="utf-8") as text:
            json.dump(manifest, text, allow_nan=False)
            _to_disk(text)
        _swap(draft, path)
        return path

    def load(
        self,
        path: str | Path,
        *,
        components: Iterable[str] | None = None,
        map_location: Any = None,
        strict: bool = True,
    ) -> CheckpointLoadResult:
        """Fill the components from a folder that :meth:`save` wrote.

        Args:
            path: the checkpoint's folder.
            components: only these; all where None.
            map_location: the device on which tensors are handed to the components; CPU where None.
            strict: False leaves components that the file lacks as they are instead of raising.

        Raises:
            CheckpointError: no checkpoint there, a newer format, a cut-off file, a missing component (named), or a
                component that refuses its state.
        """
        path = _existing(Path(path))
        manifest = _read_manifest(path)
        wanted = tuple(self._components if components is None else components)
        unknown = [name for name in wanted if name not in self._components]
        if unknown:
            raise CheckpointError(f"no component {unknown[0]!r}; registered are {_listed(self._components)}")
        stored = manifest["components"]
        missing = tuple(name for name in wanted if name not in stored)
        if missing and strict:
            raise CheckpointError(
                f"the checkpoint {path} has no component {_listed(missing)}; it holds {_listed(stored)}. "
                "Load it with strict=False to leave those as they are"
            )
        unexpected = tuple(name for name in stored if name not in self._components)
        if unexpected:
            _warn(f"the checkpoint {path} also holds {_listed(unexpected)}, which nobody asked for: left out")
        reader = TreeReader(_tensor_bytes(path, manifest), map_location)
        loaded = tuple(name for name in wanted if name in stored)
        states = {name: reader.decode(stored[name]) for name in loaded}
        for name, state in states.items():
            try:
                self._components[name].load_state_dict(state)
            except Exception as error:
                raise CheckpointError(
                    f"component {name!r} ({type(self._components[name]).__qualname__}) refuses its state in {path}: "
                    f"{type(error).__name__}: {error}. Was it built with the same configuration?"
                ) from error
        return CheckpointLoadResult(
            loaded=loaded, missing=missing, unexpected=unexpected, metadata=manifest.get("metadata", {})
        )

    @staticmethod
    def is_checkpoint(path: str | Path) -> bool:
        """Whether a folder holds a checkpoint of this kind."""
        return (Path(path) / _MANIFEST).is_file()

    @staticmethod
    def metadata(path: str | Path) -> dict[str, Any]:
        """The metadata of a checkpoint, without its tensors."""
        return dict(_read_manifest(_existing(Path(path))).get("metadata", {}))


def _swap(draft: Path, path: Path) -> None:
    backup = path.with_name(f".{path.name}.old")
    shutil.rmtree(backup, ignore_errors=True)
    if path.exists():
        path.rename(backup)
    draft.rename(path)
    shutil.rmtree(backup, ignore_errors=True)


def _existing(path: Path) -> Path:
    backup = path.with_name(f".{path.name}.old")  # a crash between the two renames of _swap leaves only this one
    found = next((folder for folder in (path, backup) if Checkpoint.is_checkpoint(folder)), None)
    if found is None:
        raise CheckpointError(f"{path} holds no checkpoint: there is no {_MANIFEST} in it")
    return found


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        version = int(manifest["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / _MANIFEST} is damaged: {error}") from error
    if version > FORMAT:
        raise CheckpointError(
            f"the checkpoint {path} has format {version}; this version reads up to {FORMAT}. "
            "Upgrade with: python -m pip install -U rl-trainers"
        )
    unknown = sorted(set(manifest) - _FIELDS)
    if unknown:
        _warn(f"the checkpoint {path} has unknown fields {_listed(unknown)}: left out")
    return manifest


def _tensor_bytes(path: Path, manifest: Mapping[str, Any]) -> bytes:
    expected = manifest["tensors"]
    blob: bytes = (path / expected["file"]).read_bytes()
    if len(blob) != expected["bytes"] or zlib.crc32(blob) != expected["crc32"]:
        raise CheckpointError(
            f"{path / expected['file']} is damaged: {len(blob)} bytes (of {expected['bytes']}), another checksum"
        )
    return blob


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "nothing"


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=3)
