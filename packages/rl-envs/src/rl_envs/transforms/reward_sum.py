"""``RewardSum``: the return of the episode so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from tensordict import TensorDictBase

from rl_core import Columns, Composite, RowProgram, TensorSpec, Transform, Unbounded
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_keys, join, leaf_name, parent_path, sibling
from rl_envs.transforms.end_groups import ends_along_time, governing_group, specs_seen
from rl_envs.transforms.number_rows import number_rows

__all__ = ["RewardSum"]


class RewardSum(Transform):
    """Sums rewards from reset to reset: under "next" the sum includes the reward beside it, at the root it does not.

    Args:
        in_keys: the rewards; default: every reward of the environment.
        out_keys: the sums; default: ``"episode_"`` and the reward's name, beside it.
        reset_keys: for each reward the ``_reset`` entry whose group ends its episodes (only stored steps need it);
            default: the innermost group around the reward.
        reward_spec: declare the sums as rewards rather than observations.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(length=3), RewardSum())  # rewards 1, 2, 3
        >>> env.rollout(5)["next", "episode_reward"].flatten()
        tensor([1., 3., 6.])
    """

    def __init__(
        self,
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        reset_keys: Key | Iterable[Key] | None = None,
        *,
        reward_spec: bool = False,
    ) -> None:
        given = None if in_keys is None else as_keys(in_keys)
        sums = None if out_keys is None else as_keys(out_keys)
        if sums is not None and given is not None and len(sums) != len(given):
            raise ValueError(
                f"RewardSum got {len(given)} in_keys and {len(sums)} out_keys; give one out key for each reward"
            )
        super().__init__()
        self._given, self._sums = given, sums
        self.reset_keys = None if reset_keys is None else as_keys(reset_keys)
        self.reward_spec = reward_spec
        self._pairs: list[tuple[Key, Key]] = []
        self._seen: int | None = None

    # ---------------------------------------------------------------- keys
    def set_container(self, owner: object) -> None:
        """Take an owner; its rewards are read at the first use."""
        super().set_container(owner)
        self._pairs, self._seen = [], None

    def pairs(self) -> list[tuple[Key, Key]]:
        """``(reward, sum)`` keys."""
        seen = specs_seen(self)
        if not self._pairs or (seen is not None and seen != self._seen):
            rewards = self._given
            if rewards is None:
                parent = self.parent
                rewards = ["reward"] if parent is None else parent.reward_keys
            sums = self._sums or [sibling(key, f"episode_{leaf_name(key)}") for key in rewards]
            if len(sums) != len(rewards):
                raise EnvError(
                    f"RewardSum has the out_keys {sums} for the rewards {rewards}; name the rewards too: in_keys=[...]"
                )
            if self.reset_keys is not None and len(self.reset_keys) != len(rewards):
                raise EnvError(
                    f"RewardSum has the reset_keys {self.reset_keys} for the rewards {rewards}; give one for each "
                    "reward"
                )
            self._pairs, self._seen = list(zip(rewards, sums, strict=True)), seen
        return self._pairs

    # ---------------------------------------------------------------- specs
    def _sum_specs(self) -> dict[Key, TensorSpec]:
        parent = self.parent
        if parent is None:
            raise EnvError(
                "RewardSum needs an environment to know its rewards' shapes; use TransformedEnv(env, RewardSum())"
            )
        full = parent.full_reward_spec
        specs: dict[Key, TensorSpec] = {}
        for reward, total in self.pairs():
            leaf = full.get(reward, None)
            if leaf is None:
                raise KeyMissingError(
                    f"RewardSum needs the reward {reward!r}; the environment has "
                    f"{', '.join(map(repr, parent.reward_keys))}. Name it with in_keys=[...]"
                )
            specs[total] = Unbounded(shape=leaf.shape, dtype=leaf.dtype, device=leaf.device)
        return specs

    def _add(self, spec: Composite) -> Composite:
        for key, leaf in self._sum_specs().items():
            spec.set(key, leaf)
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the sums."""
        return observation_spec if self.reward_spec else self._add(observation_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """Adds the sums where they are declared as rewards."""
        return self._add(reward_spec) if self.reward_spec else reward_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """A step reads the sums."""
        return self._add(state_spec)

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self.parent
        if parent is not None:
            lead = tensordict_reset.batch_size if not parent.batch_locked else torch.Size([])
            for key, spec in self._sum_specs().items():
                zero = spec.zero(lead)
                tensordict_reset.set(key, zero if tensordict_reset.device is None else zero.to(tensordict_reset.device))
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, total in self.pairs():
            reward, before = next_tensordict.get(key, None), tensordict.get(total, None)
            if reward is None:
                raise KeyMissingError(self._missing(key, next_tensordict))
            if before is None:
                raise KeyMissingError(
                    f"RewardSum needs {total!r} at the root; reset through the TransformedEnv that has the RewardSum "
                    "(td = env.reset(), or env.reset(td)), or keep the key in what is stepped"
                )
            next_tensordict.set(total, before + reward)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sum along "time" in stored steps, afresh after every end; goes on from a sum at the first step."""
        ends = {prefix: (done, dim) for prefix, done, dim in ends_along_time(tensordict, type(self).__name__)}
        for place, (key, total) in enumerate(self.pairs()):
            reward = tensordict.get(join("next", key), None)
            if reward is None:
                raise KeyMissingError(self._missing(join("next", key), tensordict))
            group = parent_path(self.reset_keys[place]) if self.reset_keys else governing_group(key, list(ends))
            if group not in ends:
                raise KeyMissingError(
                    f"RewardSum needs {join('next', *group, 'done')!r} to know where the episodes of {key!r} end; the "
                    f"data has it in {[join('next', *prefix, 'done') for prefix in ends]}. Set reset_keys=[...]"
                )
            ended, dim = ends[group]
            start = tensordict.get(total, None)
            running = torch.zeros_like(reward.select(dim, 0)) if start is None else start.select(dim, 0)
            root, nxt = [], []
            for gain, over in zip(reward.unbind(dim), ended.unbind(dim), strict=True):
                root.append(running)
                after = running + gain
                nxt.append(after)
                running = torch.where(over.reshape(*over.shape, *(1,) * (after.ndim - over.ndim)), 0, after)
            tensordict.set(total, torch.stack(root, dim))
            tensordict.set(join("next", total), torch.stack(nxt, dim))
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Where the sums are observations, which have a row for the root."""
        return not self.reward_spec

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Add reward row t to sum row t."""
        steps = [_sum_step(before[key], after[total]) for key, total in self.pairs()]
        sums = [after[total] for _, total in self.pairs()]

        def step(t: int) -> None:
            for part in steps:
                part(t)

        def reset(t: int, mask: np.ndarray | None) -> None:
            for array in sums:
                if mask is None:
                    array[t] = 0
                else:
                    array[t][mask] = 0

        return RowProgram(steps[0] if len(steps) == 1 else step, reset)


def _sum_step(reward: np.ndarray, total: np.ndarray) -> Callable[[int], None]:
    rewards, sums = number_rows(reward), number_rows(total)
    if rewards is not None and sums is not None:

        def scalar_step(t: int) -> None:
            sums[t + 1] = sums[t] + rewards[t]

        return scalar_step
    add = np.add

    def step(t: int) -> None:
        add(total[t], reward[t], total[t + 1])

    return step
