"""What a buffer's state is, and how it is written to a folder and read back without ever leaving half of it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from rl_buffers.io import load_tree, save_tree
from rl_buffers.shareable import Shareable
from rl_core.errors import CheckpointError, RLError

if TYPE_CHECKING:
    from rl_buffers.episodes.in_buffer import EpisodeTables
    from rl_core.buffers import Sampler, Storage, Writer
    from rl_core.transforms import Compose

__all__ = ["Saved"]

_KIND = "ReplayBuffer"

Hook = Callable[[dict[str, Any]], "dict[str, Any] | None"]


class Saved(Shareable):
    """The part of :class:`~rl_buffers.ReplayBuffer` that is about its state."""

    storage: Storage
    sampler: Sampler
    writer: Writer
    transform: Compose
    generator: torch.Generator | None
    _episodes: EpisodeTables
    _iterator: Any
    _save_hooks: list[Hook]
    _load_hooks: list[Hook]

    if TYPE_CHECKING:

        def set_rng(self, generator: torch.Generator | None) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Rows, positions, transforms and generator as plain data; row tensors share memory with the storage.

        The state of torch's global generator belongs to the process and is not included.
        """
        with self._lock:
            return {
                "storage": self.storage.state_dict(),
                "sampler": {"kind": _kind(self.sampler), "state": self.sampler.state_dict()},
                "writer": {"kind": _kind(self.writer), "state": self.writer.state_dict()},
                "transform": dict(self.transform.state_dict()),
                "episodes": self._episodes.state_dict(),
                "generator": None if self.generator is None else self.generator.get_state(),
            }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Take over such a state as copies; the buffer must be built from the same parts.

        Raises:
            CheckpointError: the state is damaged, of other parts, or of another capacity; the buffer is as it was.
        """
        with self._replacing():
            before = copy.deepcopy(self._small_parts())
            try:
                self._check_kinds(state_dict)
                self._load_small_parts(state_dict)
                self.storage.load_state_dict(state_dict["storage"])  # the rows last: it checks all, then copies
            except BaseException as error:
                self._load_small_parts(before)
                if isinstance(error, (LookupError, TypeError, ValueError, AttributeError)) and not isinstance(
                    error, RLError
                ):
                    raise CheckpointError(
                        f"the state cannot be loaded, it is damaged or of another kind: {error!r}"
                    ) from error
                raise
            self._episodes.load_state_dict(state_dict.get("episodes"), self.storage, self.writer)
            self._iterator = None

    def _small_parts(self) -> dict[str, Any]:
        return {
            "sampler": {"state": self.sampler.state_dict()},
            "writer": {"state": self.writer.state_dict()},
            "transform": dict(self.transform.state_dict()),
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def _load_small_parts(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"]["state"])
        self.writer.load_state_dict(state["writer"]["state"])
        self.transform.load_state_dict(state["transform"])
        if state["generator"] is not None:
            if self.generator is None:
                self.set_rng(torch.Generator())
            assert self.generator is not None
            self.generator.set_state(state["generator"].clone())

    def _check_kinds(self, state: Mapping[str, Any]) -> None:
        for name, part in (("sampler", self.sampler), ("writer", self.writer)):
            if state[name]["kind"] != _kind(part):
                raise CheckpointError(
                    f"the state has a {state[name]['kind']} as {name}, this buffer a {_kind(part)}: "
                    "build it with the same parts"
                )

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write the state into folder `path` (see :mod:`rl_buffers.io`): filled rows only, no pickle, in one step.

        Raises:
            CheckpointError: a row holds something else than tensors and JSON values, or the disk refuses.
        """
        with self._lock:
            save_tree(path, _through(self._save_hooks, self.state_dict()), _KIND)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Read what :meth:`dumps` wrote; the folder may be deleted afterwards.

        Raises:
            CheckpointError: the folder is damaged, or was written by a buffer of other parts; the buffer is as it was.
        """
        self.load_state_dict(_through(self._load_hooks, load_tree(path, _KIND)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """The same as :meth:`dumps`."""
        self.dumps(path)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """The same as :meth:`dumps`."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """The same as :meth:`loads`."""
        self.loads(path)

    def register_save_hook(self, hook: Hook) -> None:
        """Have `hook` see each state before it is written.

        Args:
            hook: takes the dict of :meth:`state_dict`, whose row tensors are the storage's own memory and must not be
                changed in place; returns the dict to be written, or ``None`` for the one it got.
        """
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Hook) -> None:
        """Have `hook` see each state that was read, before it is taken over; hooks run in the order they came."""
        self._load_hooks.append(hook)


def _through(hooks: list[Hook], state: dict[str, Any]) -> dict[str, Any]:
    for hook in hooks:
        changed = hook(state)
        state = state if changed is None else changed
    return state


def _kind(part: Any) -> str:
    """The name of a part's class; the TensorDict variants differ in nothing that is saved."""
    return type(part).__name__.removeprefix("TensorDict")
