"""``ExcludeTransform``, ``SelectTransform`` and ``RemoveEmptySpecs``: which entries leave the environment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tensordict import TensorDictBase

from rl_core import Columns, Composite, RowProgram, Transform
from rl_core.envs.entries import is_group
from rl_core.errors import EnvError
from rl_core.keys import END_NAMES, Key, as_key, as_keys, as_path, leaf_name
from rl_envs.transforms.end_groups import specs_seen

__all__ = ["ExcludeTransform", "RemoveEmptySpecs", "SelectTransform"]


class _Keys(Transform):
    """Entries are left out and none is changed, so rows need no code."""

    def __init__(self) -> None:
        super().__init__()
        self._known: tuple[int, set[tuple[str, ...]], set[Key]] | None = None

    def set_container(self, owner: object) -> None:
        """Take an owner; its keys are looked at at the first use."""
        super().set_container(owner)
        self._known = None

    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Nothing to do: an entry left out has no column after this transform."""

        def step(t: int) -> None:
            """Nothing."""

        def reset(t: int, mask: np.ndarray | None) -> None:
            """Nothing."""

        return RowProgram(step, reset)

    def _look(self) -> tuple[set[tuple[str, ...]], set[Key] | None]:
        """What a step of the environment before reads, and its rewards; None without an environment."""
        seen = specs_seen(self)
        if seen is None:
            return set(), None
        if self._known is None or self._known[0] != seen:
            parent = self.parent
            assert parent is not None  # specs_seen says so
            self._known = (seen, {as_path(key) for key in parent.state_keys}, set(parent.reward_keys))
        return self._known[1:]


class ExcludeTransform(_Keys):
    """Leaves entries (or whole groups) out of what resets and steps write.

    In stored data they are left out of the root and of "next"; ``("next", "observation")`` names one place only.

    Args:
        *excluded_keys: the entries.
        inverse: leave them out on the way into a buffer (``inv``) instead, and nothing on the way out.

    Example:
        >>> from tensordict import TensorDict
        >>> sorted(ExcludeTransform("pixels")(TensorDict(pixels=1, state=2)).keys())
        ['state']
    """

    def __init__(self, *excluded_keys: Key, inverse: bool = False) -> None:
        super().__init__()
        self.excluded_keys = as_keys(list(excluded_keys))
        self.inverse = inverse
        if not self.excluded_keys:
            raise ValueError("ExcludeTransform needs the entries to leave out: ExcludeTransform('pixels')")

    def _without(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.exclude(*self.excluded_keys)

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict if self.inverse else self._without(tensordict)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data without the entries."""
        return tensordict if self.inverse else self._everywhere(tensordict)

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Data to be stored, without the entries where ``inverse=True``."""
        return self._everywhere(tensordict.copy()) if self.inverse else tensordict

    def _everywhere(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = self._without(tensordict)
        nxt = tensordict.get("next", None)
        return tensordict if nxt is None else tensordict.set("next", self._without(nxt))

    def _is_out(self, key: Key) -> bool:
        path = as_path(key)
        return any(path[: len(as_path(out))] == as_path(out) for out in self.excluded_keys)

    def _spec(self, spec: Composite) -> Composite:
        return spec if self.inverse else _filtered(spec, lambda key: not self._is_out(key))

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        self._check_states()
        return self._call(tensordict_reset)

    def _check_states(self) -> None:
        read = [key for key in self._look()[0] if self._is_out(as_key(key))]
        if read and not self.inverse:
            raise EnvError(
                f"ExcludeTransform leaves out {as_key(read[0])!r}, which a step reads back; keep it in the "
                "environment, and leave it out of what a buffer stores: "
                f"ExcludeTransform({as_key(read[0])!r}, inverse=True)"
            )

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Without the entries."""
        self._check_states()
        return self._spec(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Without the entries."""
        return self._spec(reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """End flags stay."""
        if not self.inverse and any(self._is_out(as_key(as_path(key))) for key in done_spec.keys(True, True)):
            raise EnvError(
                f"ExcludeTransform({', '.join(map(repr, self.excluded_keys))}) would leave out end flags, without "
                "which an environment has no episodes"
            )
        return done_spec


class SelectTransform(_Keys):
    """Keeps some entries (or whole groups) of what resets and steps write, and leaves the others out.

    What a step reads back (such as a step count) stays.

    Args:
        *selected_keys: the entries. One that begins with "next" says that the keys are those of stored data, root and
            "next", as they are.
        keep_rewards: keep the rewards, selected or not.
        keep_dones: keep the end flags, selected or not; an environment needs them.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(), lambda td: td.set("twice", td["observation"] * 2))
        >>> sorted(env.append_transform(SelectTransform("twice")).reset().keys())
        ['done', 'terminated', 'twice']
    """

    def __init__(self, *selected_keys: Key, keep_rewards: bool = True, keep_dones: bool = True) -> None:
        super().__init__()
        self.selected_keys = as_keys(list(selected_keys))
        self.keep_rewards, self.keep_dones = keep_rewards, keep_dones

    def _is_in(self, key: Key) -> bool:
        path = as_path(key)
        return any(path[: len(as_path(kept))] == as_path(kept) for kept in self.selected_keys)

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        states, rewards = self._look()

        def kept(key: Key) -> bool:
            return (
                self._is_in(key)
                or (self.keep_rewards and (leaf_name(key) == "reward" if rewards is None else key in rewards))
                or (self.keep_dones and leaf_name(key) in END_NAMES)
                or as_path(key) in states
            )

        keys = [as_key(as_path(key)) for key in tensordict.keys(True, True)]
        return tensordict.select(*[key for key in keys if kept(key)])

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: the entries of the root and, unless keys begin with "next", those of the same names under it."""
        if any(as_path(key)[0] == "next" for key in self.selected_keys):
            return tensordict.select(*self.selected_keys, strict=False)
        nxt = tensordict.get("next", None)
        tensordict = self._call(tensordict.exclude("next"))
        return tensordict if nxt is None else tensordict.set("next", self._call(nxt))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Only what is kept."""
        states = self._look()[0]
        return _filtered(observation_spec, lambda key: self._is_in(key) or as_path(key) in states)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Only what is kept."""
        return reward_spec if self.keep_rewards else _filtered(reward_spec, self._is_in)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """End flags stay."""
        if not self.keep_dones and not all(self._is_in(as_key(as_path(key))) for key in done_spec.keys(True, True)):
            raise EnvError("an environment needs its end flags: SelectTransform(..., keep_dones=True)")
        return done_spec


class RemoveEmptySpecs(_Keys):
    """Leaves out groups that hold nothing, of specs and of data."""

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for name, value in list(tensordict.items()):
            if is_group(value, tensordict.batch_dims):
                value = self._call(value)
                if value.is_empty():
                    tensordict.pop(name)
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Without empty groups."""
        return _filtered(observation_spec, lambda key: True)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Without empty groups."""
        return _filtered(reward_spec, lambda key: True)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """Without empty groups."""
        return _filtered(done_spec, lambda key: True)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """Without empty groups."""
        return _filtered(action_spec, lambda key: True)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """Without empty groups."""
        return _filtered(state_spec, lambda key: True)


def _filtered(spec: Composite, keep: Callable[[Key], bool], around: tuple[str, ...] = ()) -> Composite:
    """The spec without entries that are not kept, and without groups that are then empty; in place."""
    for name, leaf in list(spec.items()):
        path = (*around, name)
        if isinstance(leaf, Composite):
            _filtered(leaf, keep, path)
            if leaf.is_empty():
                spec.pop(name)
        elif not keep(as_key(path)):
            spec.pop(name)
    return spec
