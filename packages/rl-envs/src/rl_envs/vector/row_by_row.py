"""A batch whose environments are called one by one on TensorDicts, each of its own shapes if need be.

Results are stacked: densely where all environments write the same entries, else as a lazy stack of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase, lazy_stack
from torch import Tensor

from rl_core import Composite, EnvBase
from rl_core.envs.ends import any_done
from rl_core.envs.entries import put_entries
from rl_core.envs.partial_reset import merge_reset, pop_reset_keys, reset_request
from rl_core.envs.stack_steps import stack_entries
from rl_core.errors import EnvError
from rl_envs.vector.batched import BatchedEnv
from rl_envs.vector.members import Description, Members

__all__ = ["RowByRowEnv", "call_or_read", "reset_members", "step_members"]


class RowByRowEnv(BatchedEnv):
    """The TensorDict interface of a batch, over :meth:`_reset_rows` and :meth:`_step_rows`."""

    def _reset_rows(
        self, requests: Sequence[TensorDictBase | None], kwargs: Sequence[Mapping[str, Any]] | None
    ) -> list[TensorDictBase | None]:
        """Reset the environments that have a request.

        Args:
            requests: for each environment None (leave it alone) or what its reset is given; an entry "_reset" asks for
                some rows of its own batch.
            kwargs: further arguments by environment.

        Returns:
            their first observations and end flags, None where nothing was asked.
        """
        raise NotImplementedError

    def _step_rows(self, rows: Sequence[TensorDictBase]) -> list[TensorDictBase]:
        """Step every environment; what each writes, end flags completed."""
        raise NotImplementedError

    # ---------------------------------------------------------------- one shape for all
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        fresh = self._fresh_rows(tensordict, kwargs)
        # Rows of which nothing is asked are not read; they only need the entries of the others.
        filler = next((row for row in fresh if row is not None), None)
        if filler is None:
            filler = self._blank()
        return self._stacked([filler if row is None else row for row in fresh])

    def _blank(self) -> TensorDictBase:
        specs = self.descriptions[0].specs
        return specs["observation"].zero().update(specs["done"].zero())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return self._stacked(self._step_rows(tensordict.unbind(0)))

    def _fresh_rows(self, tensordict: TensorDictBase | None, kwargs: Mapping[str, Any]) -> list[TensorDictBase | None]:
        self._seed_first_reset()
        each = self._kwargs_each(kwargs)
        rows: Sequence[TensorDictBase | None] = [None] * self.num_workers
        if tensordict is not None:
            rows = tensordict.unbind(0)
        request = reset_request(tensordict, self.end_groups)
        asked = None if request is None else request.rows(len(self.batch_size))
        requests = [self._request(row, None if asked is None else asked[i]) for i, row in enumerate(rows)]
        return self._reset_rows(requests, each)

    def _request(self, row: TensorDictBase | None, asked: Tensor | None) -> TensorDictBase | None:
        """What one environment's reset is given: None where nothing is asked of it."""
        size = self.batch_size[1:]
        if asked is not None and not bool(asked.any()):
            return None
        given = TensorDict({} if row is None else dict(row.items()), batch_size=size, device=self.device)
        pop_reset_keys(given, self.end_groups)
        if asked is not None and asked.ndim and not bool(asked.all()):
            given.set("_reset", asked.unsqueeze(-1))
        return given

    def _stacked(self, rows: Sequence[TensorDictBase]) -> TensorDictBase:
        size = rows[0].batch_size
        stacked: TensorDictBase | None = None
        if not self.heterogeneous:
            stacked = stack_entries([dict(row.items()) for row in rows], 0, size, rows[0].device)
        if stacked is None:
            stacked = LazyStackedTensorDict.maybe_dense_stack(list(rows), 0)
        return stacked if self.device is None else stacked.to(self.device)

    # ---------------------------------------------------------------- shapes of their own
    def reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        """As of every environment; rows of shapes of their own are reset and merged one by one."""
        if not self.heterogeneous:
            return super().reset(tensordict, **kwargs)
        self._check_open()
        if tensordict is not None:
            self._check_batch(tensordict)
        return self._reset_each(tensordict, tensordict, kwargs)

    def _reset_each(
        self, request: TensorDictBase | None, old: TensorDictBase | None, kwargs: Mapping[str, Any]
    ) -> TensorDictBase:
        fresh = self._fresh_rows(request, kwargs)
        if old is None:
            return self._stacked([row for row in fresh if row is not None])
        merged: list[TensorDictBase] = []
        asked = [None] * self.num_workers if request is None else request.unbind(0)
        for row, new, own in zip(old.unbind(0), fresh, asked, strict=True):
            if new is not None:
                partial = None if own is None or not len(self.batch_size[1:]) else reset_request(own, self.end_groups)
                put_entries(row, new if partial is None else merge_reset(row, new, partial))
            pop_reset_keys(row, self.end_groups)
            merged.append(row)
        return lazy_stack(merged)

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the rows whose end flags are set, and only those."""
        if not self.heterogeneous:
            return super().maybe_reset(tensordict)
        ended = any_done(tensordict, self.end_groups, tensordict.batch_dims)
        if ended is None:
            return tensordict
        request = TensorDict({"_reset": ended.unsqueeze(-1)}, batch_size=tensordict.batch_size)
        return self._reset_each(request, tensordict, {})

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """As of every environment."""
        if not self.heterogeneous:
            return super().step(tensordict)
        self._check_open()
        self._check_batch(tensordict)
        rows = tensordict.unbind(0)
        results = self._step_rows(rows)
        for row, result in zip(rows, results, strict=True):
            present = row.get("next", None)
            row.set("next", result if present is None else put_entries(present, result))
        if not isinstance(tensordict, LazyStackedTensorDict):
            tensordict.set("next", lazy_stack([row.get("next") for row in rows]))
        return tensordict

    def _reset_raw(self, tensordict: TensorDictBase | None, **kwargs: Any) -> TensorDictBase:
        if self.heterogeneous:
            name = type(self).__name__
            raise EnvError(
                f"this {name} holds environments of different shapes: transforms around it, and batches of it, cannot "
                f"read their rows. Transform each environment: {name}(n, [lambda: TransformedEnv(...), ...])"
            )
        return super()._reset_raw(tensordict, **kwargs)

    def fake_tensordict(self) -> TensorDictBase:
        """A legal step made of zeros."""
        if not self.heterogeneous:
            return super().fake_tensordict()
        return lazy_stack([shell.fake_tensordict() for shell in self._shells()])

    def step_mdp(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step."""
        if not self.heterogeneous:
            return super().step_mdp(tensordict)
        pairs = zip(self._shells(), tensordict.unbind(0), strict=True)
        return lazy_stack([shell.step_mdp(row) for shell, row in pairs])

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """Write random legal actions into the TensorDict (or a new one)."""
        if not self.heterogeneous:
            return super().rand_action(tensordict)
        if tensordict is None:
            return lazy_stack([shell.rand_action() for shell in self._shells()])
        rows = [shell.rand_action(row) for shell, row in zip(self._shells(), tensordict.unbind(0), strict=True)]
        return tensordict if isinstance(tensordict, LazyStackedTensorDict) else lazy_stack(rows)

    def _shells(self) -> list[EnvBase]:
        """For each environment one that has its specs and nothing else."""
        return self._derive("shells", lambda: [_Shell(each) for each in self.descriptions])


class _Shell(EnvBase):
    """The specs of an environment that lives elsewhere."""

    def __init__(self, description: Description) -> None:
        super().__init__(batch_size=description.batch_size)
        specs: dict[str, Composite] = description.specs
        for kind, spec in specs.items():
            setattr(self, f"full_{kind}_spec", spec)


# ------------------------------------------------------------------------------------------- where the environments are
def reset_members(
    members: Members, requests: Sequence[TensorDictBase | None], kwargs: Sequence[Mapping[str, Any]] | None
) -> list[TensorDictBase | None]:
    """Reset the environments that have a request; see :meth:`RowByRowEnv._reset_rows`."""
    fresh: list[TensorDictBase | None] = []
    for index, (env, request) in enumerate(zip(members.envs, requests, strict=True)):
        if request is None:
            fresh.append(None)
            continue
        given = _where_it_acts(request, env)
        own = {} if kwargs is None else kwargs[index]
        fresh.append(members.run(index, "reset", _reset_with, env, given, own))
    return fresh


def step_members(members: Members, rows: Sequence[TensorDictBase]) -> list[TensorDictBase]:
    """Step every environment; see :meth:`RowByRowEnv._step_rows`."""
    results = []
    for index, (env, row) in enumerate(zip(members.envs, rows, strict=True)):
        results.append(members.run(index, "step", env._step_complete, _where_it_acts(row, env)))
    return results


def _where_it_acts(row: TensorDictBase, env: EnvBase) -> TensorDictBase:
    """Data on the environment's device; one that moves nothing acts on the CPU."""
    wanted = env.device or torch.device("cpu")
    return row if (row.device is None and env.device is None) or row.device == wanted else row.to(wanted)


def _reset_with(env: EnvBase, request: TensorDictBase, kwargs: Mapping[str, Any]) -> TensorDictBase:
    return env._reset_raw(request, **kwargs)


def call_or_read(env: EnvBase, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``env.name(*args, **kwargs)`` where that is callable, else ``env.name``."""
    found = getattr(env, name)
    return found(*args, **kwargs) if callable(found) else found
