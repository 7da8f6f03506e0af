"""Action chunks: an actor that plans several actions at once, of which one is taken at each step."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from rl_core import CarriedState, StateCarrier, Unbounded
from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key, as_keys, join, leaf_name, sibling
from rl_core.policy import row_policy
from rl_core.specs import Composite, TensorSpec
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.safe_module import Keys

__all__ = ["MultiStepActorWrapper"]


class MultiStepActorWrapper(StateCarrier, PolicyModule):
    """Takes the actions of a chunk ``[*B, n_steps, A]`` one after the other, and asks the actor when they are used up.

    A row gets a new chunk where its flag ``is_init`` is True, and after ``replan_interval`` steps. The chunk and the
    number of its actions that were taken are carried in the TensorDict like a recurrent state: read at the root,
    written under "next"; collectors and rollouts add what the environment lacks. The actor is only called at steps in
    which some row needs it; its further outputs are dropped.

    Args:
        actor: module with keys that writes chunks.
        n_steps: actions in a chunk; read from the spec unless given.
        action_keys: the actions; those of the actor's out_keys whose last name ends in "action" unless given.
        init_key: the flag on first steps.
        replan_interval: actions taken of each chunk, ``n_steps`` unless given.
        action_spec: spec of the chunk, ``[n_steps, A]``, or a Composite of them; the actor's own spec unless given.

    Raises:
        PolicyError: if no spec tells the chunks' shapes, or they have not ``n_steps`` actions.

    >>> from rl_modules import Actor, MLP
    >>> actor = Actor(MLP(3, torch.Size([4, 2])), spec=Unbounded(shape=(4, 2)))  # four actions of two numbers
    >>> MultiStepActorWrapper(actor, n_steps=4).out_keys
    ['action', ('next', 'action_orig'), ('next', 'counter')]
    """

    def __init__(
        self,
        actor: nn.Module,
        n_steps: int | None = None,
        *,
        action_keys: Keys | None = None,
        init_key: Key = "is_init",
        replan_interval: int | None = None,
        action_spec: TensorSpec | None = None,
    ) -> None:
        super().__init__()
        self.actor = actor
        written = [as_key(key) for key in actor.out_keys]  # type: ignore[union-attr]
        found = [key for key in written if leaf_name(key).endswith("action")]
        self.action_keys: list[Key] = found if action_keys is None else as_keys(action_keys)
        missing = [key for key in self.action_keys if key not in written]
        if missing or not self.action_keys:
            raise PolicyError(
                f"MultiStepActorWrapper needs actions; {type(actor).__name__} writes {written}"
                + (f", not {missing}" if missing else ". Name them: action_keys=[...]")
            )
        spec = getattr(actor, "spec", None) if action_spec is None else action_spec
        self._chunks = {key: _chunk_spec(spec, key) for key in self.action_keys}
        lengths = {leaf.shape[0] for leaf in self._chunks.values()}
        self.n_steps = lengths.pop() if n_steps is None and len(lengths) == 1 else n_steps
        for key, leaf in self._chunks.items():
            if leaf.shape[0] != self.n_steps:
                raise PolicyError(f"a chunk of {self.n_steps} actions {key!r} has a spec of shape {tuple(leaf.shape)}")
        assert self.n_steps is not None
        self.replan_interval = self.n_steps if replan_interval is None else replan_interval
        if not 1 <= self.replan_interval <= self.n_steps:
            raise ValueError(f"replan_interval is {replan_interval}; it lies between 1 and n_steps={self.n_steps}")
        self._init_key = init_key
        self._chunk_keys: list[Key] = [sibling(key, f"{leaf_name(key)}_orig") for key in self.action_keys]
        self._counter: Key = "counter"
        self._given = [as_key(key) for key in actor.in_keys]  # type: ignore[union-attr]
        inputs = [*self._given, *self._chunk_keys, self._counter]
        inputs += [] if init_key in inputs else [init_key]
        following = [join("next", key) for key in (*self._chunk_keys, self._counter)]
        self._set_keys(inputs, [*self.action_keys, *following])

    def carried_state(self) -> CarriedState:
        """The chunks, and how many of their actions were taken."""
        specs: dict[Key, TensorSpec] = {
            chunk: Unbounded(shape=leaf.shape, dtype=leaf.dtype)
            for chunk, leaf in zip(self._chunk_keys, self._chunks.values(), strict=True)
        }
        specs[self._counter] = Unbounded(shape=(1,), dtype=torch.int64)
        return CarriedState(specs, [self._init_key])

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        values = dict(zip(self.in_keys, inputs, strict=True))
        counter: Tensor = values[self._counter]
        counter = counter.masked_fill(values[self._init_key].reshape(counter.shape), 0)
        chunks = [values[key] for key in self._chunk_keys]
        due = counter == 0
        if bool(due.any()):
            lead = counter.shape[:-1]
            fresh = self._plan([values[key] for key in self._given], lead)
            pairs = zip(fresh, chunks, strict=True)
            chunks = [torch.where(due.reshape(*lead, *[1] * (old.ndim - len(lead))), new, old) for new, old in pairs]
        actions = [_pick(chunk, counter) for chunk in chunks]
        return (*actions, *chunks, (counter + 1) % self.replan_interval)

    def _plan(self, given: list[Tensor], lead: torch.Size) -> list[Tensor]:
        """New chunks for all rows."""
        bare = row_policy(self.actor)
        if bare is not None:
            outputs = dict(zip(bare.out_keys, bare.call(*given), strict=True))
            fresh = [outputs[key] for key in self.action_keys]
        else:
            written = self.actor(TensorDict(dict(zip(self._given, given, strict=True)), batch_size=lead))
            fresh = [written.get(key) for key in self.action_keys]
        for (key, leaf), chunk in zip(self._chunks.items(), fresh, strict=True):
            if chunk.shape != (*lead, *leaf.shape):
                raise PolicyError(
                    f"{type(self.actor).__name__} wrote the chunk {key!r} of shape {list(chunk.shape)}; its spec says "
                    f"{[*lead, *leaf.shape]}"
                )
        return fresh


def _chunk_spec(spec: TensorSpec | None, key: Key) -> TensorSpec:
    leaf = spec.get(key, None) if isinstance(spec, Composite) else spec
    if leaf is None or not leaf.ndim:
        raise PolicyError(
            f"MultiStepActorWrapper needs the shape of the chunk {key!r}: give the actor a spec of shape "
            f"[n_steps, *action], or action_spec=Unbounded(shape=(n_steps, *action))"
        )
    return leaf


def _pick(chunk: Tensor, counter: Tensor) -> Tensor:
    """Action number ``counter [*B, 1]`` of each row's chunk ``[*B, n_steps, ...]``."""
    dims = counter.ndim - 1
    index = counter.reshape(*counter.shape, *[1] * (chunk.ndim - dims - 1))
    return chunk.gather(dims, index.expand(*chunk.shape[:dims], 1, *chunk.shape[dims + 1 :])).squeeze(dims)
