"""``BurnInTransform``: recurrent states of stored sequences, recomputed over their first steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from rl_core import Transform, set_recurrent_mode
from rl_core.errors import KeyMissingError
from rl_core.keys import Key, as_key, as_keys, as_path
from rl_envs.transforms.end_groups import time_dim

__all__ = ["BurnInTransform"]


class BurnInTransform(Transform):
    """Runs modules over the first steps of sampled sequences, and gives the rest the state that results.

    ``[*B, T] -> [*B, T - burn_in]``; the states are written at the first remaining step, without gradients, zeros at
    the others unless they are stored. For buffers. (Kapturowski et al. 2019, "Recurrent Experience Replay in
    Distributed Reinforcement Learning", section 3.)

    Args:
        modules: recurrent modules in the order in which they run; one that reads sequences or steps
            (``set_recurrent_mode``) reads sequences here.
        burn_in: how many steps; 0 changes nothing.
        out_keys: the states; default: what the modules write under "next".
    """

    def __init__(
        self,
        modules: Sequence[TensorDictModuleBase] | TensorDictModuleBase,
        burn_in: int,
        out_keys: Key | Iterable[Key] | None = None,
    ) -> None:
        super().__init__()
        if burn_in < 0:
            raise ValueError(f"burn_in is {burn_in}; it is a number of steps, 0 or more")
        chosen = [modules] if isinstance(modules, TensorDictModuleBase) else list(modules)
        self.recurrent = tuple(chosen)  # a tuple: they belong to a policy, not to this transform's state
        self.burn_in = burn_in
        written = [as_path(key) for module in chosen for key in module.out_keys]
        found = dict.fromkeys(as_key(path[1:]) for path in written if path[0] == "next" and len(path) > 1)
        self.in_keys = [as_key(as_path(key)) for key in dict.fromkeys(key for m in chosen for key in m.in_keys)]
        self.out_keys = list(found) if out_keys is None else as_keys(out_keys)
        if not self.out_keys:
            raise ValueError(
                'BurnInTransform found no state: its modules write nothing under "next". Name it with out_keys=[...]'
            )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Sampled sequences without their first steps.

        Raises:
            KeyMissingError: an entry that a module reads is absent.
            ValueError: sequences are not longer than ``burn_in``.
        """
        if not self.burn_in:
            return tensordict
        dim = time_dim(tensordict)
        length = tensordict.shape[dim]
        if length <= self.burn_in:
            raise ValueError(f"the sequences have {length} steps, and burn_in is {self.burn_in}; sample longer ones")
        for key in self.in_keys:
            if tensordict.get(key, None) is None:
                raise KeyMissingError(self._missing(key, tensordict))
        first, rest = tensordict.split([self.burn_in, length - self.burn_in], dim)
        rest = rest.copy()
        for key, state in self._states(first.copy(), dim).items():
            held = rest.get(key, None)
            filled = torch.stack([torch.zeros_like(state)] * rest.shape[dim], dim) if held is None else held.clone()
            filled.select(dim, 0).copy_(state)
            rest.set(key, filled)
        return rest

    def _states(self, first: TensorDictBase, dim: int) -> dict[Key, torch.Tensor]:
        """The states after the last of the first steps."""
        with torch.no_grad():
            for module in self.recurrent:
                with set_recurrent_mode(True):
                    first = module(first)
        found = {}
        for key in self.out_keys:
            value = first.get(("next", *as_path(key)), None)
            if value is None:
                raise KeyMissingError(self._missing(("next", *as_path(key)), first))
            found[key] = value.select(dim, -1)
        return found
