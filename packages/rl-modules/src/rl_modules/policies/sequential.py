"""A chain of modules with keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, WrapModule
from torch import nn

from rl_core.keys import Key
from rl_core.specs import Composite, TensorSpec
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.plan import Plan
from rl_modules.policies.projection import spec_tree
from rl_modules.policies.reading import read_inputs
from rl_modules.policies.safe_module import has_keys

__all__ = ["SafeSequential"]


class SafeSequential(PolicyModule):
    """Runs modules one after the other; each reads what the ones before it wrote.

    Where all modules are known (ours, or plain TensorDictModules), intermediate values never pass through a TensorDict.

    Args:
        *modules: modules with ``in_keys`` and ``out_keys``, or functions from a TensorDict to a TensorDict.

    >>> import torch
    >>> from tensordict.nn import TensorDictModule
    >>> chain = SafeSequential(
    ...     TensorDictModule(nn.Linear(3, 4), in_keys=["observation"], out_keys=["hidden"]),
    ...     TensorDictModule(nn.Linear(4, 1), in_keys=["hidden"], out_keys=["state_value"]),
    ... )
    >>> chain.in_keys, chain.out_keys, chain.forward_tensors(torch.zeros(2, 3))[1].shape
    (['observation'], ['hidden', 'state_value'], torch.Size([2, 1]))
    """

    def __init__(self, *modules: Callable[..., Any]) -> None:
        super().__init__()
        if not modules:
            raise ValueError(f"{type(self).__name__} needs at least one module.")
        keyed: list[Any] = [module if has_keys(module) else WrapModule(module) for module in modules]
        self.module = nn.ModuleList(keyed)
        self._set_keys(*_chain_keys(keyed))
        self._plan: Plan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The state without the plan: a copy makes its own, over its own modules."""
        return {**self.__dict__, "_plan": None}

    @property
    def spec(self) -> Composite | None:
        """The specs of all modules' outputs."""
        specs: dict[Key, TensorSpec] = {}
        for module in self:
            if isinstance(module, SafeSequential):
                inner = module.spec
                specs.update({} if inner is None else inner.items(True, True))
            else:
                specs.update(getattr(module, "_specs", {}))
        return spec_tree(specs)

    def _current_plan(self) -> Plan:
        plan = self._plan
        if plan is None or not plan.is_current():
            plan = self._plan = Plan(self, "module")
        return plan

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        plan = self._current_plan()
        if plan.runs_on_tensors():
            return self._compute_flat(plan, inputs)
        data = self._run_modules(TensorDict(dict(zip(self.in_keys, inputs, strict=True)), batch_size=[]), self.module)
        return tuple(read_inputs(data, self.out_keys_source, self))

    def _compute_flat(self, plan: Plan, inputs: Sequence[Any]) -> tuple[Any, ...]:
        values: dict[Key, Any] = dict(zip(self.in_keys, inputs, strict=True))
        plan.run(values, plan.links)
        return tuple([values[key] for key in self.out_keys_source])

    def _run(self, tensordict: Any, target: Any) -> Any:
        return self._run_plan(self._current_plan(), tensordict, target)

    def _run_plan(self, plan: Plan, tensordict: Any, target: Any) -> Any:
        inputs = read_inputs(tensordict, self.in_keys, self)
        if plan.runs_on_tensors():
            self._write(target, self._compute_flat(plan, inputs))
            return target
        if target is tensordict and self._kept is None:
            return self._run_modules(tensordict, self.module)
        data = self._run_modules(tensordict.copy(), self.module)
        self._write(target, read_inputs(data, self.out_keys_source, self))
        return target

    @staticmethod
    def _run_modules(data: TensorDictBase, modules: Sequence[nn.Module] | nn.ModuleList) -> TensorDictBase:
        for module in modules:
            data = module(data)
        return data

    def __len__(self) -> int:
        return len(self.module)

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.module)

    def __getitem__(self, index: int | slice) -> Any:
        """One module, or a chain of some of them (the modules are shared, not copied)."""
        if isinstance(index, slice):
            return SafeSequential(*list(self.module)[index])
        return self.module[index]


def _chain_keys(modules: Sequence[TensorDictModuleBase]) -> tuple[list[Key], list[Key]]:
    """What the chain reads from outside, and all that it writes."""
    in_keys: list[Key] = []
    written: dict[Key, None] = {}
    for module in modules:
        in_keys += [key for key in module.in_keys if key not in written and key not in in_keys]
        for key in module.out_keys:
            written.pop(key, None)  # a key written twice stands where it was written last
            written[key] = None
    written.pop("_", None)
    return in_keys, list(written)
