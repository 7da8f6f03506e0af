"""``BatchedEnv``: what SerialEnv and ParallelEnv share, the specs, seeds and arguments of N environments in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rl_core import Composite, EnvBase, NonTensor, Stacked, StackedComposite, TensorSpec, spawn_seeds
from rl_core.envs.env_specs import leaf_specs
from rl_core.errors import EnvError
from rl_envs.vector.members import KINDS, Description

__all__ = ["BatchedEnv", "common_batch_size", "steps_as"]

# A subclass that changes one of these is stepped through it, on TensorDicts.
_STEPPING = ("reset", "step", "step_mdp", "maybe_reset", "rand_action", "any_done", "_reset", "_step", "_step_complete")


def common_batch_size(name: str, descriptions: Sequence[Description]) -> torch.Size:
    """The batch size of the environments themselves.

    Raises:
        EnvError: it differs among them.
    """
    sizes = [description.batch_size for description in descriptions]
    for index, size in enumerate(sizes):
        if size != sizes[0]:
            raise EnvError(
                f"{name}: environment 0 has batch size {tuple(sizes[0])}, environment {index} has {tuple(size)}; those "
                "of one batch need one batch size"
            )
    return sizes[0]


def steps_as(env: EnvBase, cls: type[EnvBase]) -> bool:
    """Whether nothing in an environment's own class changes how ``cls`` steps and resets."""
    names = (*_STEPPING, "_reset_raw", "_reset_rows", "_step_rows")
    return all(getattr(type(env), name, None) is getattr(cls, name, None) for name in names)


class BatchedEnv(EnvBase):
    """N environments as one of batch size ``[N, *their own]``.

    Args:
        descriptions: of the environments.
        device: where results are moved; None moves nothing.
    """

    def __init__(self, descriptions: Sequence[Description], device: torch.device | str | None) -> None:
        count, name = len(descriptions), type(self).__name__
        super().__init__(
            device=device,
            batch_size=[count, *common_batch_size(name, descriptions)],
            allow_done_after_reset=any(description.allow_done_after_reset for description in descriptions),
        )
        self.num_workers = count
        self.descriptions = list(descriptions)
        self._seeded = False
        stacked: dict[str, Any] = {}
        for kind in KINDS:
            stacked[kind] = torch.stack([description.specs[kind] for description in descriptions], 0)  # type: ignore[misc]
        self.heterogeneous = any(_is_lazy(spec) for spec in stacked.values())
        for kind, spec in stacked.items():
            setattr(self, f"full_{kind}_spec", spec if self.heterogeneous else _object_rows(spec))

    @property
    def sharable(self) -> bool:
        """Whether every entry has one shape and dtype in all environments, known in advance, that numpy has too."""
        if self.heterogeneous:
            return False
        leaves = [leaf for kind in KINDS for leaf in leaf_specs(self._spec(kind)).values()]
        return all(-1 not in leaf.shape and leaf.dtype != torch.bfloat16 for leaf in leaves)

    @property
    def fits_rows(self) -> bool:
        """Whether a runner on columns sees all there is: no state beside the observations, end flags at the root."""
        on_cpu = self.device is None or self.device == torch.device("cpu")
        states = set(self.state_keys) <= set(self.observation_keys)
        return self.sharable and on_cpu and states and not self.end_groups[0].prefix

    # ---------------------------------------------------------------- seeds
    def _set_seed(self, seed: int) -> None:
        """Independent seeds for all environments (``spawn_seeds``); torch's generator of this process stays as it is.

        Environments that draw from torch's global generator get a stream of it each, so that a batch gives the same
        numbers in one process and in several.
        """
        self._seed_each(spawn_seeds(seed, self.num_workers))

    def _seed_each(self, seeds: Sequence[int]) -> None:
        raise NotImplementedError

    def _seed_first_reset(self) -> None:
        """Without a seed, the first reset draws one from torch, so that ``torch.manual_seed`` reproduces a run."""
        if not self._seeded:
            self._set_seed(int(torch.randint(2**31 - 1, ()).item()))

    # ---------------------------------------------------------------- arguments of resets
    def _kwargs_each(self, kwargs: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Reset arguments by environment: ``list_of_kwargs`` has one dictionary each, all others go to everyone.

        ``seed`` is split into independent seeds as by ``set_seed``, or is a list with one for each environment.
        """
        if not kwargs:
            return None
        shared = dict(kwargs)
        each = shared.pop("list_of_kwargs", None)
        seed = shared.pop("seed", None)
        if isinstance(seed, Sequence):
            self._seed_each([int(one) for one in self._of_length(seed, "seed")])
        elif seed is not None:
            self._set_seed(int(seed))
        if each is None and not shared:
            return None
        own = [{}] * self.num_workers if each is None else self._of_length(each, "list_of_kwargs")
        return [{**shared, **dict(one or {})} for one in own]

    def _of_length(self, given: Sequence[Any], argument: str) -> Sequence[Any]:
        if len(given) != self.num_workers:
            raise ValueError(f"{len(given)} entries of {argument} for {self.num_workers} environments; give one each")
        return given

    # ---------------------------------------------------------------- access to the environments
    def call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of every environment, or read an attribute of it, and list the results.

        Args:
            name: of the method or attribute; attributes of a wrapped simulator are found too.
            *args: for the method.
            **kwargs: for the method.
        """
        raise NotImplementedError

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment.

        Args:
            name: of the attribute.
            values: one value for all, or a list with one for each.
        """
        raise NotImplementedError

    def _values_each(self, values: Any) -> list[Any]:
        if isinstance(values, list):
            return list(self._of_length(values, "values"))
        return [values] * self.num_workers


def _is_lazy(spec: TensorSpec) -> bool:
    parts = [spec, *(spec.values(True) if isinstance(spec, Composite) else ())]
    return any(isinstance(part, Stacked | StackedComposite) for part in parts)


def _object_rows(spec: Composite) -> Composite:
    """Non-tensor entries hold one object for each environment."""
    for key, leaf in leaf_specs(spec).items():
        if isinstance(leaf, NonTensor):
            spec.set(key, leaf.replace(batched=True))
    return spec
