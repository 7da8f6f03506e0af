"""``TensorDictPrimer``: writes default entries at resets, such as the initial state of a recurrent policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core import Columns, Composite, RowProgram, TensorSpec, Transform
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_key, as_path, join

__all__ = ["TensorDictPrimer"]

Default: TypeAlias = "float | Tensor | Callable[[], Any]"


class TensorDictPrimer(Transform):
    """Entries that begin with a default value in every episode and that the policy then carries on.

    A policy writes the following value under ``("next", key)``; where it writes nothing, the entry keeps its value.
    Collectors and rollouts add the primer of a recurrent policy by themselves.

    Args:
        primers: specs by key, a dict or a Composite, each of one environment (the environment's batch dimensions are
            prepended), unless ``expand_specs`` is False or the Composite itself has the environment's batch size.
        random: draw first values from the specs.
        default_value: the first value instead of zero: a number, a tensor of one environment's shape, a function that
            gives one, or a dict of them by key (zero for keys that it lacks).
        reset_key: the ``_reset`` entry that starts episodes anew; accepted for compatibility, it follows from the keys.
        expand_specs: prepend the environment's batch dimensions (True), or take the specs as they are (False).
        single_default_value: ``default_value`` is a function that gives a TensorDict with all the values.
        **specs: further specs by key.

    Example:
        >>> from rl_core import TransformedEnv, Unbounded
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(batch_size=[2]), TensorDictPrimer(hidden=Unbounded(shape=(3,))))
        >>> env.reset()["hidden"].shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        primers: Mapping[Key, TensorSpec] | Composite | None = None,
        random: bool | None = None,
        default_value: Default | Mapping[Key, Default] | None = None,
        reset_key: Key | None = None,
        expand_specs: bool | None = None,
        single_default_value: bool = False,
        **specs: TensorSpec,
    ) -> None:
        super().__init__()
        self._declared_batch = primers.shape if isinstance(primers, Composite) else torch.Size([])
        given = dict(primers.items(True, True) if isinstance(primers, Composite) else (primers or {}).items())
        given.update(specs)
        self.primers: dict[Key, TensorSpec] = {as_key(as_path(key)): spec for key, spec in given.items()}
        if not self.primers:
            raise ValueError("TensorDictPrimer needs at least one spec: TensorDictPrimer(hidden=Unbounded(shape=(8,)))")
        if random and default_value is not None:
            raise ValueError("TensorDictPrimer takes random=True or a default_value, not both")
        if single_default_value and not callable(default_value):
            raise ValueError("single_default_value=True needs default_value to be a function that gives a TensorDict")
        self.random = bool(random)
        self.default_value = default_value
        self.reset_key = reset_key
        self.expand_specs = expand_specs
        self.single_default_value = single_default_value
        self._check_defaults()

    def _check_defaults(self) -> None:
        if isinstance(self.default_value, Mapping):
            unknown = [key for key in self.default_value if as_key(as_path(key)) not in self.primers]
            if unknown:
                raise ValueError(
                    f"TensorDictPrimer has default values for {unknown}; its keys are {list(self.primers)}"
                )

    # ---------------------------------------------------------------- specs
    def _full_specs(self, batch: torch.Size) -> dict[Key, TensorSpec]:
        """The specs with the environment's batch dimensions."""
        declared = self._declared_batch
        whole = self.expand_specs is False or (self.expand_specs is None and len(batch) > 0 and declared == batch)
        full: dict[Key, TensorSpec] = {}
        for key, spec in self.primers.items():
            if not whole:
                full[key] = spec.expand(*batch, *spec.shape)
            elif spec.shape[: len(batch)] == batch:
                full[key] = spec
            else:
                raise EnvError(
                    f"TensorDictPrimer does not expand its specs; that of {key!r} has shape {tuple(spec.shape)}, "
                    f"which does not begin with the environment's batch size {tuple(batch)}"
                )
        return full

    def _bound(self) -> dict[Key, TensorSpec]:
        parent = self.parent
        return self.primers if parent is None else self._full_specs(parent.batch_size)

    def _add(self, spec: Composite) -> Composite:
        parent = self.parent
        for key, leaf in self._bound().items():
            if key in spec:
                raise EnvError(
                    f"the environment already has {key!r}, which TensorDictPrimer was to add; leave one of the two out"
                )
            spec.set(key, leaf if parent is None or parent.device is None else leaf.to(parent.device))
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds the entries."""
        return self._add(observation_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The policy and the step read the entries."""
        return self._add(state_spec)

    # ---------------------------------------------------------------- values
    def _first(self, key: Key, spec: TensorSpec, lead: torch.Size, given: TensorDictBase | None) -> Tensor:
        """First values ``[*lead, *spec.shape]``."""
        if self.random:
            return spec.rand(lead)
        value: Any = self.default_value if given is None else given.get(key)
        if isinstance(value, Mapping):
            value = {as_key(as_path(name)): entry for name, entry in value.items()}.get(key)
        if given is None and callable(value):
            value = value()
        if value is None:
            return spec.zero(lead)
        shape = (*lead, *spec.shape)
        tensor = torch.as_tensor(value, dtype=spec.dtype, device=spec.device)
        if tensor.ndim and tensor.shape != spec.shape and tensor.shape != self.primers[key].shape:
            raise EnvError(
                f"the default value of {key!r} has shape {tuple(tensor.shape)}; one environment's entry has "
                f"{tuple(self.primers[key].shape)}"
            )
        return tensor.expand(shape).clone()

    def _first_values(self, lead: torch.Size) -> dict[Key, Tensor]:
        make: Any = self.default_value
        given = make() if self.single_default_value else None
        return {key: self._first(key, spec, lead, given) for key, spec in self._bound().items()}

    # ---------------------------------------------------------------- TensorDicts
    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        parent = self.parent
        locked = parent is not None and parent.batch_locked
        lead = (
            torch.Size([]) if locked else tensordict_reset.batch_size[0 if parent is None else len(parent.batch_size) :]
        )
        for key, value in self._first_values(lead).items():
            device = tensordict_reset.device
            tensordict_reset.set(key, value if device is None else value.to(device))
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        """What the policy wrote under "next" stays; what nobody wrote keeps its value."""
        for key in self.primers:
            value = tensordict.get(join("next", key), None)
            if value is None:
                value = tensordict.get(key, None)
            if value is None:
                raise KeyMissingError(
                    f"TensorDictPrimer needs {key!r} at the root of what is stepped; reset through the environment "
                    f"that has the primer (td = env.reset(), or env.reset(td)), or keep {key!r} in the data"
                )
            next_tensordict.set(key, value)
        return next_tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data: first values in every row, where an entry is absent."""
        lead = tensordict.batch_size
        make: Any = self.default_value
        given = make() if self.single_default_value else None
        for key, spec in self.primers.items():
            if tensordict.get(key, None) is None:
                value = self._first(key, spec, lead, given)
                tensordict.set(key, value if tensordict.device is None else value.to(tensordict.device))
        return tensordict

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """True."""
        return True

    def row_program(self, before: Columns, after: Columns) -> RowProgram:
        """First values at resets; each row is the one before unless the policy writes it."""
        tensors = [(key, after.tensors[key]) for key in self.primers]
        none = torch.Size([])

        def ahead(t: int) -> None:
            for _, tensor in tensors:
                tensor[t + 1] = tensor[t]

        def step(t: int) -> None:
            """The row holds the policy's value, or the one before."""

        def reset(t: int, mask: np.ndarray | None) -> None:
            first = self._first_values(none)
            for key, tensor in tensors:
                if mask is None:
                    tensor[t] = first[key]
                else:
                    rows = torch.from_numpy(mask)
                    tensor[t][rows] = first[key][rows]

        return RowProgram(step, reset, ahead=ahead)
