"""The specs of an environment: what it reads, what it writes, and the keys that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rl_core.envs.ends import EndGroup, end_groups
from rl_core.errors import SpecError
from rl_core.keys import Key, as_key, as_path
from rl_core.specs import Categorical, Composite, StackedComposite, TensorSpec, Unbounded

__all__ = ["EnvSpecs", "leaf_specs"]

_KINDS = ("observation", "action", "reward", "done", "state")


def leaf_specs(spec: Composite) -> dict[Key, TensorSpec]:
    """Every leaf of a Composite, by its shortest key."""
    return {as_key(as_path(key)): leaf for key, leaf in spec.items(True, True)}


def _single(kind: str, spec: Composite) -> tuple[Key, TensorSpec]:
    leaves = leaf_specs(spec)
    if len(leaves) != 1:
        raise KeyError(
            f"this environment has {len(leaves)} {kind} keys ({', '.join(map(repr, leaves)) or 'none'}), not one; "
            f"use {kind}_keys and full_{kind}_spec"
        )
    return next(iter(leaves.items()))


class EnvSpecs:
    """Spec attributes of an environment, with the environment's batch size as a prefix of every shape.

    ``observation_spec``, ``state_spec`` and ``done_spec`` are Composites. ``action_spec`` and ``reward_spec`` are the
    leaf where there is one, else a Composite; ``full_action_spec`` and ``full_reward_spec`` are always Composites.
    Assigning a leaf to ``action_spec`` names it "action", to ``reward_spec`` "reward", to ``done_spec`` "done".
    """

    batch_size: torch.Size
    device: torch.device | None

    def _init_specs(self) -> None:
        self._specs: dict[str, Composite] = {}
        self._derived: dict[str, Any] = {}
        self._version = 0

    # ---------------------------------------------------------------- storing
    def _spec(self, kind: str) -> Composite:
        if kind not in self._specs:
            self._specs[kind] = self._default_spec(kind)
        return self._specs[kind]

    def _default_spec(self, kind: str) -> Composite:
        batch = self.batch_size
        if kind == "reward":
            return self._own(Composite({"reward": Unbounded(shape=(*batch, 1), dtype=torch.float32)}, shape=batch))
        if kind == "done":
            return self._complete_done(Composite({}, shape=batch))
        return self._own(Composite({}, shape=batch))

    def _set_spec(self, kind: str, value: TensorSpec, name: str) -> None:
        batch = self.batch_size
        if not isinstance(value, Composite):
            if kind in ("observation", "state"):
                raise SpecError(
                    f"{type(self).__name__}.{kind}_spec must be a Composite, got {type(value).__name__}; "
                    f"write Composite(observation=spec, shape={tuple(batch)})"
                )
            if kind in ("reward", "done") and value.ndim <= len(batch):
                raise SpecError(
                    f"{type(self).__name__}.{kind}_spec has shape {tuple(value.shape)}; it needs one dimension beyond "
                    f"the batch size {tuple(batch)}: {(*batch, 1)}"
                )
            value = Composite({name: value}, shape=batch)
        elif tuple(value.shape) != tuple(batch):
            if tuple(value.shape) != tuple(batch)[: len(value.shape)]:
                raise SpecError(
                    f"{type(self).__name__}.{kind}_spec has shape {tuple(value.shape)}, the environment's batch size "
                    f"is {tuple(batch)}, which every shape begins with: spec.expand({(*batch, *value.shape)})"
                )
            value = Composite(dict(value.items()), shape=batch)
        self._specs[kind] = self._complete_done(value) if kind == "done" else self._own(value)
        self.specs_changed()

    def _own(self, spec: Composite) -> Composite:
        spec = spec.clone()
        if self.device is not None:
            spec = spec.to(self.device)
        return spec

    def _complete_done(self, spec: Composite) -> Composite:
        """``done`` and ``terminated`` in every group; ``truncated`` only where it is declared."""
        spec = self._own(spec)
        leaves = leaf_specs(spec)
        if not leaves:
            flag = Categorical(2, shape=(*self.batch_size, 1), dtype=torch.bool)
            spec.set("done", flag)
            spec.set("terminated", flag.clone())
            return self._own(spec)
        for group in end_groups({key: leaf.shape for key, leaf in leaves.items()}):
            like = next(leaf for key, leaf in leaves.items() if as_path(key)[:-1] == group.prefix)
            for key in (group.done, group.terminated):
                if key not in leaves:
                    spec.set(key, like.clone())
        return spec

    def specs_changed(self) -> None:
        """Forget whatever was derived from the specs; called by every setter."""
        self._version += 1
        self._derived.clear()

    def empty_cache(self) -> None:
        """Derive specs and keys anew, after something that they follow from was changed by hand."""
        self.specs_changed()

    @property
    def specs_version(self) -> int:
        """Moves whenever a spec may have changed."""
        return self._version

    def _derive(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]

    # ---------------------------------------------------------------- full specs
    @property
    def observation_spec(self) -> Composite:
        """What ``reset`` and ``step`` write for the policy to read."""
        return self._spec("observation")

    @observation_spec.setter
    def observation_spec(self, value: Composite) -> None:
        self._set_spec("observation", value, "observation")

    full_observation_spec = observation_spec

    @property
    def state_spec(self) -> Composite:
        """What ``step`` reads beside the action (stateless environments)."""
        return self._spec("state")

    @state_spec.setter
    def state_spec(self, value: Composite) -> None:
        self._set_spec("state", value, "state")

    full_state_spec = state_spec

    @property
    def full_action_spec(self) -> Composite:
        """Every action, a Composite."""
        return self._spec("action")

    @full_action_spec.setter
    def full_action_spec(self, value: Composite) -> None:
        self._set_spec("action", value, "action")

    @property
    def full_reward_spec(self) -> Composite:
        """Every reward, a Composite."""
        return self._spec("reward")

    @full_reward_spec.setter
    def full_reward_spec(self, value: Composite) -> None:
        self._set_spec("reward", value, "reward")

    @property
    def full_done_spec(self) -> Composite:
        """Every end flag, a Composite."""
        return self._spec("done")

    @full_done_spec.setter
    def full_done_spec(self, value: TensorSpec) -> None:
        self._set_spec("done", value, "done")

    @property
    def done_spec(self) -> Composite:
        """Every end flag, a Composite."""
        return self.full_done_spec

    @done_spec.setter
    def done_spec(self, value: TensorSpec) -> None:
        self._set_spec("done", value, "done")

    @property
    def action_spec(self) -> TensorSpec:
        """The action's spec: the leaf where there is one action, else a Composite."""
        leaves = leaf_specs(self.full_action_spec)
        return next(iter(leaves.values())) if len(leaves) == 1 else self.full_action_spec

    @action_spec.setter
    def action_spec(self, value: TensorSpec) -> None:
        self._set_spec("action", value, "action")

    @property
    def reward_spec(self) -> TensorSpec:
        """The reward's spec: the leaf where there is one reward, else a Composite."""
        leaves = leaf_specs(self.full_reward_spec)
        return next(iter(leaves.values())) if len(leaves) == 1 else self.full_reward_spec

    @reward_spec.setter
    def reward_spec(self, value: TensorSpec) -> None:
        self._set_spec("reward", value, "reward")

    @property
    def input_spec(self) -> Composite:
        """What the environment reads: ``full_action_spec`` and ``full_state_spec``."""
        return Composite(
            {"full_action_spec": self.full_action_spec, "full_state_spec": self.full_state_spec}, shape=self.batch_size
        )

    @property
    def output_spec(self) -> Composite:
        """What the environment writes: observations, rewards, end flags."""
        return Composite(
            {
                "full_observation_spec": self.full_observation_spec,
                "full_reward_spec": self.full_reward_spec,
                "full_done_spec": self.full_done_spec,
            },
            shape=self.batch_size,
        )

    # ---------------------------------------------------------------- without the batch
    def _unbatched(self, spec: TensorSpec) -> TensorSpec:
        return spec[(0,) * len(self.batch_size)] if len(self.batch_size) else spec

    @property
    def observation_spec_unbatched(self) -> TensorSpec:
        """``observation_spec`` of one environment of the batch."""
        return self._unbatched(self.observation_spec)

    @property
    def action_spec_unbatched(self) -> TensorSpec:
        """``action_spec`` of one environment of the batch."""
        return self._unbatched(self.action_spec)

    @property
    def full_action_spec_unbatched(self) -> TensorSpec:
        """``full_action_spec`` of one environment of the batch."""
        return self._unbatched(self.full_action_spec)

    @property
    def reward_spec_unbatched(self) -> TensorSpec:
        """``reward_spec`` of one environment of the batch."""
        return self._unbatched(self.reward_spec)

    @property
    def full_reward_spec_unbatched(self) -> TensorSpec:
        """``full_reward_spec`` of one environment of the batch."""
        return self._unbatched(self.full_reward_spec)

    @property
    def done_spec_unbatched(self) -> TensorSpec:
        """``done_spec`` of one environment of the batch."""
        return self._unbatched(self.done_spec)

    @property
    def state_spec_unbatched(self) -> TensorSpec:
        """``state_spec`` of one environment of the batch."""
        return self._unbatched(self.state_spec)

    # ---------------------------------------------------------------- rows that differ
    @property
    def row_specs(self) -> list[EnvSpecs] | None:
        """The specs of each row, where environments of different shapes stand side by side; else None."""
        return self._derive("row_specs", self._row_specs)

    def _row_specs(self) -> list[EnvSpecs] | None:
        stacks = [spec for kind in _KINDS if isinstance(spec := self._spec(kind), StackedComposite)]
        if not any(spec.stack_dim == 0 for spec in stacks):
            return None
        return [_RowSpecs(self, index) for index in range(self.batch_size[0])]

    # ---------------------------------------------------------------- keys
    @property
    def observation_keys(self) -> list[Key]:
        """Keys of the observations."""
        return self._derive("observation_keys", lambda: list(leaf_specs(self.observation_spec)))

    @property
    def state_keys(self) -> list[Key]:
        """Keys of the states that ``step`` reads."""
        return self._derive("state_keys", lambda: list(leaf_specs(self.state_spec)))

    @property
    def action_keys(self) -> list[Key]:
        """Keys of the actions."""
        return self._derive("action_keys", lambda: list(leaf_specs(self.full_action_spec)))

    @property
    def reward_keys(self) -> list[Key]:
        """Keys of the rewards."""
        return self._derive("reward_keys", lambda: list(leaf_specs(self.full_reward_spec)))

    @property
    def done_keys(self) -> list[Key]:
        """Keys of the end flags."""
        return self._derive("done_keys", lambda: list(leaf_specs(self.full_done_spec)))

    @property
    def end_groups(self) -> list[EndGroup]:
        """The end flags by group, the root's first."""
        return self._derive("end_groups", self._end_groups)

    def _end_groups(self) -> list[EndGroup]:
        return end_groups({key: leaf.shape for key, leaf in leaf_specs(self.full_done_spec).items()})

    @property
    def reset_keys(self) -> list[Key]:
        """One ``_reset`` key for each group of end flags."""
        return [group.reset for group in self.end_groups]

    @property
    def action_key(self) -> Key:
        """The key of the action, where there is one."""
        return _single("action", self.full_action_spec)[0]

    @property
    def reward_key(self) -> Key:
        """The key of the reward, where there is one."""
        return _single("reward", self.full_reward_spec)[0]


class _RowSpecs(EnvSpecs):
    """The specs of one row of an environment."""

    def __init__(self, env: EnvSpecs, index: int) -> None:
        self.batch_size, self.device = env.batch_size[1:], env.device
        self._init_specs()
        self._specs = {kind: env._spec(kind)[index] for kind in _KINDS}
