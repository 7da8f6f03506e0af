"""``RenameTransform``: entries under other names."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tensordict import TensorDictBase

from rl_core import Columns, Composite, RowProgram, Transform
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import END_NAMES, Key, as_key, as_path, leaf_name
from rl_envs.transforms.numpy_rows import entry_program, entry_rows

__all__ = ["RenameTransform"]


class RenameTransform(Transform):
    """Renames entries, outwards (observations, rewards, end flags) and inwards (actions, states).

    Names can be exchanged (``["a", "b"] -> ["b", "a"]``), and a group moves with all that it holds.

    Args:
        in_keys: the names that the environment writes.
        out_keys: the names seen outside of it.
        in_keys_inv: the names that the environment reads.
        out_keys_inv: the names that the policy writes for them.
        create_copy: keep the old names too.

    End flags may move to another group; their last name stays one of done, terminated and truncated.

    Example:
        >>> from tensordict import TensorDict
        >>> sorted(RenameTransform(["a"], ["b"])(TensorDict(a=1, c=2)).keys())
        ['b', 'c']
    """

    invertible = True

    def __init__(
        self,
        in_keys: Key | Iterable[Key],
        out_keys: Key | Iterable[Key],
        in_keys_inv: Key | Iterable[Key] | None = None,
        out_keys_inv: Key | Iterable[Key] | None = None,
        create_copy: bool = False,
    ) -> None:
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.create_copy = create_copy
        pairs = (("", self.in_keys, self.out_keys), ("_inv", self.in_keys_inv, self.out_keys_inv))
        for name, keys, out_keys_ in pairs:
            if len(keys) != len(out_keys_):
                raise ValueError(
                    f"RenameTransform got {len(keys)} in_keys{name} and {len(out_keys_)} out_keys{name}; give one new "
                    "name for each"
                )
            if len(set(out_keys_)) != len(out_keys_):
                raise ValueError(f"RenameTransform got one name twice in out_keys{name}={out_keys_}")

    # ---------------------------------------------------------------- TensorDicts
    def _apply_transform(self, value: object) -> object:  # type: ignore[override]
        return value

    _inv_apply_transform = _apply_transform  # type: ignore[assignment]

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._move(tensordict, self.in_keys, self.out_keys, self._missing_ok)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._move(tensordict, self.out_keys_inv, self.in_keys_inv, False)

    def _move(
        self, tensordict: TensorDictBase, keys: list[Key], new_keys: list[Key], missing_ok: bool
    ) -> TensorDictBase:
        held = []
        for key, new in zip(keys, new_keys, strict=True):
            value = tensordict.get(key, None)
            if value is not None:
                held.append((key, new, value))
            elif not missing_ok:
                raise KeyMissingError(self._missing(key, tensordict))
        if not self.create_copy:
            for key, _, _ in held:
                tensordict.pop(key)
        for _, new, value in held:
            tensordict.set(new, value.copy() if self.create_copy and isinstance(value, TensorDictBase) else value)
        return tensordict

    # ---------------------------------------------------------------- specs
    def _renamed(self, spec: Composite, keys: list[Key], new_keys: list[Key], copy: bool) -> Composite:
        held = [
            (key, new, leaf)
            for key, new in zip(keys, new_keys, strict=True)
            if (leaf := spec.get(key, None)) is not None
        ]
        if not copy:
            for key, _, _ in held:
                spec.pop(key)
        for _, new, leaf in held:
            spec.set(new, leaf.clone())
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Renamed."""
        return self._renamed(observation_spec, self.in_keys, self.out_keys, self.create_copy)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Renamed."""
        return self._renamed(reward_spec, self.in_keys, self.out_keys, self.create_copy)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Renamed, with legal names."""
        for key, new in zip(self.in_keys, self.out_keys, strict=True):
            if key in done_spec and not isinstance(done_spec[key], Composite) and leaf_name(new) not in END_NAMES:
                raise EnvError(
                    f"RenameTransform cannot call the end flag {key!r} {new!r}: an end flag's last name is done, "
                    "terminated or truncated, by which everything else finds it"
                )
        return self._renamed(done_spec, self.in_keys, self.out_keys, self.create_copy)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """What the policy writes."""
        return self._renamed(action_spec, self.in_keys_inv, self.out_keys_inv, False)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """What a step reads: renamed inwards, and outwards what it wrote itself."""
        state_spec = self._renamed(state_spec, self.in_keys_inv, self.out_keys_inv, False)
        lost = [key for key in self.in_keys if key in state_spec and not self.create_copy]
        if lost:
            raise EnvError(
                f"RenameTransform renames {lost[0]!r}, which a step reads back; name it in in_keys_inv too, or keep it "
                "with create_copy=True"
            )
        return state_spec

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Unless names are exchanged or handed on, which rows that share memory cannot do."""
        return not set(self.in_keys) & set(self.out_keys) and not set(self.in_keys_inv) & set(self.out_keys_inv)

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Assignments."""
        outward = [(key, new, _assign) for key, new in _leaf_pairs(self, before, self.in_keys, self.out_keys)]
        inward = [(key, new, _assign) for key, new in _leaf_pairs(self, before, self.in_keys_inv, self.out_keys_inv)]
        return entry_program(self, before, after, outward, inward)


def _leaf_pairs(transform: Transform, columns: Columns, keys: list[Key], new_keys: list[Key]) -> list[tuple[Key, Key]]:
    """(old, new) of every leaf, those of groups included."""
    pairs: list[tuple[Key, Key]] = []
    for key, new in zip(keys, new_keys, strict=True):
        old, size = as_path(key), len(as_path(key))
        found = [leaf for leaf in map(as_path, columns.arrays) if leaf[:size] == old]
        if not found:
            entry_rows(transform, columns, key)
        pairs += [(as_key(leaf), as_key((*as_path(new), *leaf[size:]))) for leaf in found]
    return pairs


def _assign(source: np.ndarray, target: np.ndarray) -> None:
    target[...] = source
