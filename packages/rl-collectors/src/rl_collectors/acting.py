"""Which policy acts in a collector: on its device, compiled on request, as a function with its keys bound."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.envs.base import EnvBase
from rl_core.errors import CollectorError
from rl_core.policy import row_policy, wrap_policy

__all__ = ["CompiledPolicy", "acting_policy", "is_off_cpu", "on_device"]


def on_device(policy: Any, device: torch.device | None) -> Any:
    """The policy itself where all of it is on the device already, else a copy there."""
    if device is None or not isinstance(policy, nn.Module):
        return policy
    tensors = [*policy.parameters(), *policy.buffers()]
    if all(t.device.type == device.type and (device.index is None or t.device.index == device.index) for t in tensors):
        return policy
    return copy.deepcopy(policy).to(device)


def is_off_cpu(policy: Any) -> bool:
    """Whether a module has a parameter elsewhere than on the CPU."""
    return isinstance(policy, nn.Module) and any(p.device.type != "cpu" for p in policy.parameters())


def acting_policy(
    policy: Any,
    env: EnvBase,
    *,
    trust: bool = False,
    compile_policy: bool | Mapping[str, Any] | None = None,
    cudagraph_policy: bool | Mapping[str, Any] | None = None,
) -> Callable[[TensorDictBase], TensorDictBase]:
    """A policy as a function of a TensorDict, compiled or captured in a CUDA graph where that is asked for.

    Args:
        policy: see :func:`rl_core.policy.wrap_policy`.
        env: where it acts.
        trust: take it as a function of a TensorDict without looking.
        compile_policy: True, or arguments of ``torch.compile``.
        cudagraph_policy: True, or arguments of ``tensordict.nn.CudaGraphModule``; excludes `compile_policy`.

    Raises:
        CollectorError: the policy has no keys to bind, so that there is no function of tensors to compile; a CUDA graph
            of a policy that is not on a CUDA device.
    """
    acting = wrap_policy(policy, env, trust=trust)
    if not compile_policy and not cudagraph_policy:
        return acting
    if compile_policy and cudagraph_policy:
        raise CollectorError(
            "compile_policy and cudagraph_policy exclude each other; torch.compile makes CUDA graphs with "
            "compile_policy={'mode': 'reduce-overhead'}"
        )
    plan = row_policy(acting)
    if plan is None:
        raise CollectorError(
            f"{type(policy).__name__} cannot be compiled: its inputs and outputs are not bound to keys. Give it "
            "in_keys, out_keys and forward_tensors(*inputs), or wrap its network: TensorDictModule(network, in_keys, "
            "out_keys)"
        )
    if compile_policy:
        options = dict(compile_policy) if isinstance(compile_policy, Mapping) else {}
        return CompiledPolicy(acting, plan.in_keys, plan.out_keys, torch.compile(plan.call, **options))
    if not is_off_cpu(policy):
        raise CollectorError("cudagraph_policy needs the policy on a CUDA device: pass policy_device='cuda'")
    from tensordict.nn import CudaGraphModule

    options = dict(cudagraph_policy) if isinstance(cudagraph_policy, Mapping) else {}
    return CompiledPolicy(acting, plan.in_keys, plan.out_keys, cast("Any", CudaGraphModule)(plan.call, **options))


class CompiledPolicy:
    """A policy whose function of tensors was compiled.

    Args:
        policy: what was compiled.
        in_keys: what it reads.
        out_keys: what it writes.
        call: ``call(*in_tensors) -> out tensors``.
    """

    def __init__(self, policy: Any, in_keys: list[Any], out_keys: list[Any], call: Callable[..., Any]) -> None:
        self.policy, self.in_keys, self.out_keys, self.call = policy, in_keys, out_keys, call

    def forward_tensors(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One output for each of ``out_keys``."""
        outputs = self.call(*inputs)
        return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the outputs."""
        for key, value in zip(
            self.out_keys, self.forward_tensors(*(tensordict.get(key) for key in self.in_keys)), strict=True
        ):
            tensordict.set(key, value)
        return tensordict
