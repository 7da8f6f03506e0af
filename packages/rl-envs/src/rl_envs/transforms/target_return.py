"""``TargetReturn``: the return that a return-conditioned policy is asked for, less what it has earned."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, Composite, RowProgram, TensorSpec, Transform, Unbounded
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_key, as_path, join, parent_path
from rl_envs.transforms.end_groups import ends_along_time, governing_group
from rl_envs.transforms.numpy_rows import entry_rows

__all__ = ["TargetReturn"]


class TargetReturn(Transform):
    """Writes a target at every reset, ``g_0 = target_return``, and keeps it up to date.

    ``mode="reduce"``: ``g_{t+1} = g_t - r_t``, what is still to be earned (Chen et al. 2021, "Decision Transformer",
    arXiv 2106.01345, section 3). ``mode="constant"``: ``g_{t+1} = g_t``.

    Args:
        target_return: g_0.
        mode: "reduce" or "constant".
        in_keys: rewards; default ``["reward"]``.
        out_keys: the targets; default ``["target_return"]``.
        reset_key: the ``_reset`` entry of the rewards' episodes; it tells their group of end flags in stored data.
            Default: the innermost group around the reward.

    Example:
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> TransformedEnv(CountingEnv(length=3), TargetReturn(10.0)).rollout(5)["target_return"].flatten()
        tensor([10.,  9.,  7.])
    """

    def __init__(
        self,
        target_return: float,
        mode: str = "reduce",
        in_keys: Key | Iterable[Key] | None = None,
        out_keys: Key | Iterable[Key] | None = None,
        reset_key: Key | None = None,
    ) -> None:
        if mode not in ("reduce", "constant"):
            raise ValueError(f'TargetReturn got mode={mode!r}; wanted "reduce" or "constant"')
        super().__init__(
            ["reward"] if in_keys is None else in_keys, ["target_return"] if out_keys is None else out_keys
        )
        self.target_return, self.mode = float(target_return), mode
        self.reset_key = None if reset_key is None else as_key(as_path(reset_key))

    # ---------------------------------------------------------------- specs
    def _targets(self) -> dict[Key, TensorSpec]:
        parent = self.parent
        if parent is None:
            raise EnvError(
                "TargetReturn needs an environment to know its rewards' shapes; use "
                "TransformedEnv(env, TargetReturn(...))"
            )
        specs: dict[Key, TensorSpec] = {}
        for key, target in zip(self.in_keys, self.out_keys, strict=True):
            leaf = parent.full_reward_spec.get(key, None)
            if leaf is None:
                raise KeyMissingError(
                    f"TargetReturn needs the reward {key!r}; the environment has "
                    f"{', '.join(map(repr, parent.reward_keys))}. Name it with in_keys=[...]"
                )
            specs[target] = Unbounded(shape=leaf.shape, dtype=leaf.dtype, device=leaf.device)
        return specs

    def _add(self, spec: Composite) -> Composite:
        for key, leaf in self._targets().items():
            spec.set(key, leaf)
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the targets."""
        return self._add(observation_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """A step reads the targets."""
        return self._add(state_spec)

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self.parent
        lead = tensordict_reset.batch_size if parent is not None and not parent.batch_locked else torch.Size([])
        for key, spec in self._targets().items():
            first = torch.full((*lead, *spec.shape), self.target_return, dtype=spec.dtype, device=spec.device)
            tensordict_reset.set(key, first if tensordict_reset.device is None else first.to(tensordict_reset.device))
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for key, target in zip(self.in_keys, self.out_keys, strict=True):
            reward, before = next_tensordict.get(key, None), tensordict.get(target, None)
            if reward is None:
                raise KeyMissingError(self._missing(key, next_tensordict))
            if before is None:
                raise KeyMissingError(
                    f"TargetReturn needs {target!r} at the root; reset through the TransformedEnv that has the "
                    "TargetReturn (td = env.reset(), or env.reset(td)), or keep the key in what is stepped"
                )
            next_tensordict.set(target, self._following(before, reward))
        return next_tensordict

    def _following(self, before: Tensor, reward: Tensor) -> Tensor:
        return before - reward if self.mode == "reduce" else before

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Along "time" in stored steps, afresh after every end; goes on from a target at the first step."""
        ends = {prefix: (done, dim) for prefix, done, dim in ends_along_time(tensordict, type(self).__name__)}
        for key, target in zip(self.in_keys, self.out_keys, strict=True):
            reward = tensordict.get(join("next", key), None)
            if reward is None:
                raise KeyMissingError(self._missing(join("next", key), tensordict))
            named = None if self.reset_key is None else parent_path(self.reset_key)
            done, dim = ends[named if named in ends else governing_group(key, list(ends))]
            start = tensordict.get(target, None)
            first = torch.full_like(reward.select(dim, 0), self.target_return)
            now = first if start is None else start.select(dim, 0)
            root, nxt = [], []
            for gain, over in zip(reward.unbind(dim), done.unbind(dim), strict=True):
                root.append(now)
                after = self._following(now, gain)
                nxt.append(after)
                now = torch.where(over.reshape(*over.shape, *(1,) * (after.ndim - over.ndim)), first, after)
            tensordict.set(target, torch.stack(root, dim))
            tensordict.set(join("next", target), torch.stack(nxt, dim))
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """Subtract reward row t from target row t."""
        pairs = [
            (entry_rows(self, before, key), after[target])
            for key, target in zip(self.in_keys, self.out_keys, strict=True)
        ]
        reduces, first = self.mode == "reduce", self.target_return

        def step(t: int) -> None:
            for reward, target in pairs:
                if reduces:
                    np.subtract(target[t], reward[t], target[t + 1])
                else:
                    target[t + 1] = target[t]

        def reset(t: int, mask: np.ndarray | None) -> None:
            for _, target in pairs:
                if mask is None:
                    target[t] = first
                else:
                    target[t][mask] = first

        return RowProgram(step, reset)
