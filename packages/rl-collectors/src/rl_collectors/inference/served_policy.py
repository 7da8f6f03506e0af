"""The policy of a server: many requests become one call, and its outputs go back row by row."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_collectors.acting import on_device
from rl_collectors.exploring import exploring
from rl_collectors.inference.requests import PolicyFacts, Request
from rl_collectors.process.slots import leaves_of
from rl_collectors.weights.named import write_weights
from rl_core.envs.columns import nest
from rl_core.errors import CollectorError, PolicyError
from rl_core.exploration import ExplorationType
from rl_core.keys import Key, as_key
from rl_core.policy import row_policy
from rl_core.policy_state import carried_state

__all__ = ["ServedPolicy", "own_policy"]


def own_policy(policy: Any, policy_factory: Callable[[], Any] | None, device: torch.device | None) -> Any:
    """What acts in a server: a copy of a module, so that training it changes nothing in the middle of a call.

    Raises:
        CollectorError: none or two policies are given.
    """
    if (policy is None) == (policy_factory is None):
        raise CollectorError("pass a policy or a policy_factory, and not both: a server has one policy")
    if policy_factory is not None:
        return on_device(policy_factory(), device)
    own = on_device(policy, device)
    return copy.deepcopy(own) if own is policy and isinstance(policy, nn.Module) else own


class ServedPolicy:
    """A policy that is called on joined requests.

    Args:
        policy: a TensorDict module, or a function of a TensorDict; or, with `bind`, whatever that takes.
        device: where it acts; answers return to where their requests were.
        exploration_type: in force while it acts.
        bind: makes a function of a TensorDict of it.
    """

    def __init__(
        self,
        policy: Any,
        device: torch.device | None = None,
        exploration_type: ExplorationType | None = None,
        bind: Callable[[Any], Any] | None = None,
    ) -> None:
        self.policy, self.device, self.exploration_type = policy, device, exploration_type
        self.version = 0
        self._acting = policy if bind is None else bind(policy)
        plan = row_policy(self._acting)
        self._call = None if plan is None else plan.call
        in_keys, out_keys = getattr(self._acting, "in_keys", None), getattr(self._acting, "out_keys", None)
        keyed = in_keys is not None and out_keys is not None
        self.facts = PolicyFacts(
            [as_key(key) for key in in_keys or []] if keyed else None,
            [as_key(key) for key in out_keys or [] if key != "_"] if keyed else None,
            carried_state(policy),
        )

    @torch.no_grad()
    def act(self, requests: Sequence[Request]) -> list[dict[Key, Tensor]]:
        """One call for requests of one signature; key -> ``[rows, ...]`` for each of them, tensors of their own.

        Raises:
            PolicyError: the policy's outputs do not have one row for each row of its inputs.
        """
        rows = [request.rows for request in requests]
        inputs = {key: torch.cat([request.tensors[key] for request in requests]) for key in requests[0].tensors}
        home = next((value.device for value in inputs.values()), torch.device("cpu"))
        if self.device is not None:
            inputs = {key: value.to(self.device) for key, value in inputs.items()}
        total = sum(rows)
        with exploring(self.exploration_type, own_thread=True):
            outputs = self._on_tensors(inputs) if self._call is not None else self._on_container(inputs, total)
        parts: list[dict[Key, Tensor]] = [{} for _ in requests]
        for key, value in outputs.items():
            if value.shape[:1] != (total,):
                raise PolicyError(
                    f"the policy wrote {key!r} of shape {tuple(value.shape)} for a batch of {total} rows; each output "
                    "has one row for each row of the inputs"
                )
            own = value.detach().to(home, copy=True)  # it may be a view of a weight, or one row for all
            for part, piece in zip(parts, own.split(rows), strict=True):
                part[key] = piece
        return parts

    def _on_tensors(self, inputs: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
        assert self._call is not None and self.facts.out_keys is not None
        outputs = self._call(*inputs.values())
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        return dict(zip(self.facts.out_keys, outputs, strict=True))

    def _on_container(self, inputs: Mapping[Key, Tensor], rows: int) -> dict[Key, Tensor]:
        given = nest(dict(inputs), torch.Size([rows]), self.device)
        before = {key: (id(value), value._version) for key, value in inputs.items()}
        result = self._acting(given)
        if not isinstance(result, TensorDictBase):
            raise PolicyError(
                f"the policy returned {type(result).__name__}; a served policy takes a TensorDict and returns one. "
                "Wrap a network: TensorDictModule(network, in_keys=[...], out_keys=['action'])"
            )
        written = leaves_of(result).dense
        if self.facts.out_keys is None:
            return {key: value for key, value in written.items() if before.get(key) != (id(value), value._version)}
        missing = [key for key in self.facts.out_keys if key not in written]
        if missing:
            raise PolicyError(f"the policy did not write {', '.join(map(repr, missing))}, which its out_keys name")
        return {key: written[key] for key in self.facts.out_keys}

    # ---------------------------------------------------------------- weights
    def take(self, version: int, weights: Mapping[str, Tensor] | None) -> None:
        """Act with new weights from the next call on.

        Raises:
            CollectorError: they do not fit, or the policy has none.
        """
        if weights is not None:
            write_weights(self._module(), weights)
        self.version = version

    def _module(self) -> nn.Module:
        if not isinstance(self.policy, nn.Module):
            raise CollectorError(
                f"the policy is a {type(self.policy).__name__}, not a torch.nn.Module: it has no weights to update"
            )
        return self.policy

    def state_dict(self) -> dict[str, Any]:
        """The weights and their version."""
        weights = self.policy.state_dict() if isinstance(self.policy, nn.Module) else {}
        return {"version": self.version, "policy": {name: value.clone() for name, value in weights.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a :meth:`state_dict` back."""
        if isinstance(self.policy, nn.Module):
            self.policy.load_state_dict(state_dict["policy"])
        self.version = int(state_dict["version"])
