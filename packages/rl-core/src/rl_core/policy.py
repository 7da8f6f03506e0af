"""Policies: anything that writes actions, and the plan that calls it without a container.

A policy is a callable ``policy(td) -> td``. Where it also has ``in_keys``, ``out_keys`` and
``forward_tensors(*inputs)``, a collector binds its keys once (:class:`RowPolicy`) and calls it on bare tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl_core.errors import PolicyError
from rl_core.keys import Key, as_key, leaf_name

if TYPE_CHECKING:
    from rl_core.envs.base import EnvBase

__all__ = ["RowPolicy", "TensorPolicy", "row_policy", "tensor_call", "wrap_policy"]

Policy = Callable[[TensorDictBase], TensorDictBase]


@runtime_checkable
class TensorPolicy(Protocol):
    """A policy that can be called on bare tensors.

    ``forward_tensors`` takes one tensor for each of ``in_keys`` and returns one for each of ``out_keys``, with the
    meaning of ``policy(td)`` under the exploration type in force.
    """

    in_keys: list[Key]
    out_keys: list[Key]

    def forward_tensors(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One output for each out key."""
        ...


@dataclass(frozen=True)
class RowPolicy:
    """A policy with its keys bound: ``call(*in_tensors) -> out tensors``."""

    in_keys: list[Key]
    out_keys: list[Key]
    call: Callable[..., Sequence[Tensor]]


def row_policy(policy: Any) -> RowPolicy | None:
    """The container-free form of a policy, or None where it can only be called on a TensorDict."""
    in_keys, out_keys = getattr(policy, "in_keys", None), getattr(policy, "out_keys", None)
    if in_keys is None or out_keys is None:
        return None
    call = tensor_call(policy)
    if call is None:
        return None
    return RowPolicy([as_key(key) for key in in_keys], [as_key(key) for key in out_keys], call)


def tensor_call(policy: Any) -> Callable[..., Sequence[Tensor]] | None:
    """The function of bare tensors that means a keyed policy, or None where it can only be called on a TensorDict."""
    if isinstance(policy, nn.Module) and (policy._forward_hooks or policy._forward_pre_hooks):
        return None
    direct = getattr(policy, "forward_tensors", None)
    if callable(direct):
        return direct
    return _plain_module(policy) if type(policy) is TensorDictModule and _is_plain(policy) else None


def _is_plain(policy: TensorDictModule) -> bool:
    """Whether calling the network on the inputs, in order, is all that the module does.

    Two of the options that would change that (named inputs) are private attributes: a tensordict in which they have
    other names makes the module a black box, which is slower but right.
    """
    options = policy.__dict__
    return (
        isinstance(policy.module, nn.Module)
        and options.get("_kwargs", 0) is None
        and options.get("_get_kwargs", 0) == {}
        and policy.method is None
        and not policy.method_kwargs
        and policy.inplace is True
    )


def _plain_module(policy: TensorDictModule) -> Callable[..., Sequence[Tensor]]:
    module, count = policy.module, len(policy.out_keys)

    def call(*inputs: Tensor) -> Sequence[Tensor]:
        outputs = module(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        if len(outputs) != count:
            raise PolicyError(
                f"{type(module).__name__} returned {len(outputs)} tensors for the out_keys {policy.out_keys}"
            )
        return outputs

    return call


def wrap_policy(policy: Any, env: EnvBase, *, trust: bool = False) -> Policy:
    """A policy as a function of a TensorDict.

    Args:
        policy: a TensorDict module (it has in_keys and out_keys) or a function of a TensorDict, as it is; any other
            callable is called with observations, chosen by its parameters' names, else the base environment's in spec
            order, and its outputs are the actions.
        env: the environment whose keys are read and written.
        trust: take the policy as a function of a TensorDict without looking.

    Raises:
        PolicyError: the policy's inputs cannot be found among the observations.
    """
    if trust or (hasattr(policy, "in_keys") and hasattr(policy, "out_keys")):
        return policy
    if not callable(policy):
        raise PolicyError(f"a policy is a callable that writes actions into a TensorDict, got {type(policy).__name__}")
    function = policy.forward if isinstance(policy, nn.Module) else policy
    parameters = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    if len(parameters) == 1 and _takes_tensordict(parameters[0]):
        return policy
    in_keys = _inputs_by_name(parameters, env)
    if isinstance(policy, nn.Module):
        return TensorDictModule(policy, in_keys=list[Any](in_keys), out_keys=list[Any](env.action_keys))
    return _FunctionPolicy(policy, in_keys, env.action_keys)


def _takes_tensordict(parameter: inspect.Parameter) -> bool:
    if parameter.name in ("tensordict", "td", "data"):
        return True
    return "TensorDict" in str(parameter.annotation)


def _inputs_by_name(parameters: list[inspect.Parameter], env: EnvBase) -> list[Key]:
    by_name = {leaf_name(key): key for key in env.observation_keys}
    names = [parameter.name for parameter in parameters]
    if names and all(name in by_name for name in names):
        return [by_name[name] for name in names]
    base = [key for key in env.base_env.observation_keys if key in env.observation_keys] or env.observation_keys
    if len(names) == len(base):
        return base
    raise PolicyError(
        f"the policy takes {', '.join(names) or 'nothing'}; the environment writes "
        f"{', '.join(map(repr, env.observation_keys))}. Name its parameters after observations, or wrap it: "
        "TensorDictModule(policy, in_keys=[...], out_keys=['action'])"
    )


class _FunctionPolicy:
    """A plain function of observation tensors as a policy."""

    def __init__(self, function: Callable[..., Any], in_keys: list[Key], out_keys: list[Key]) -> None:
        self.function, self.in_keys, self.out_keys = function, in_keys, out_keys

    def forward_tensors(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.function(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        outputs = self.forward_tensors(*(tensordict.get(key) for key in self.in_keys))
        for key, value in zip(self.out_keys, outputs, strict=True):
            tensordict.set(key, value)
        return tensordict
