"""The flat plan of a chain of modules, by which it runs on bare tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl_core.keys import Key
from rl_modules.policies.base import PolicyModule, as_outputs
from rl_modules.policies.reading import missing_key

__all__ = ["Plan"]


class Link(NamedTuple):
    """One module; ``children`` is the ``_modules`` of a plain TensorDictModule (its network is called)."""

    module: Any
    children: dict[str, nn.Module | None] | None


class Plan:
    """The links of a chain, and the lists of children they were found in.

    The plan holds modules, never parameters: moving or swapping parameters needs no new plan. A child that is replaced
    does; :meth:`is_current` sees it.

    Attributes:
        widens: whether the last link draws several values for each row.

    Args:
        chain: the nn.Module that holds the modules under ``holder_name``.
        holder_name: name of its nn.ModuleList.
    """

    def __init__(self, chain: nn.Module, holder_name: str) -> None:
        self.links: list[Link] = []
        self.is_flat = True
        self._seen: list[tuple[dict[str, Any], list[Any]]] = [(chain._modules, list(chain._modules.values()))]
        holder = chain._modules[holder_name]
        assert holder is not None
        self._add_all(holder)
        self.widens = getattr(self.links[-1].module, "num_samples", None) is not None

    def _add_all(self, holder: nn.Module) -> None:
        self._seen.append((holder._modules, list(holder._modules.values())))
        for module in holder._modules.values():
            self._add(module)

    def _add(self, module: Any) -> None:
        kind = type(module)
        if kind is TensorDictModule and _is_plain(module):
            self.links.append(Link(module, module._modules))
        elif kind is TensorDictSequential and _is_plain_sequence(module):
            self._seen.append((module._modules, list(module._modules.values())))
            self._add_all(module.module)
        else:
            self.links.append(Link(module, None))
            self.is_flat = self.is_flat and isinstance(module, PolicyModule) and module.takes_tensors

    def is_current(self) -> bool:
        """Whether the chain still has the modules of this plan."""
        for holder, modules in self._seen:  # noqa: SIM110 (a generator would cost 1 us at every call)
            if [*holder.values()] != modules:  # list equality takes identical objects for equal
                return False
        return True

    def runs_on_tensors(self) -> bool:
        """Whether every link can be called on bare tensors: known kinds, without hooks of their own."""
        if not self.is_flat:
            return False
        for link in self.links:
            module = link.module
            if module._forward_hooks or module._forward_pre_hooks:
                return False
        return True

    def run(self, values: dict[Key, Any], links: Iterable[Link]) -> None:
        """Run some links, adding their outputs to the values.

        Args:
            values: by key; at first the chain's inputs.
            links: all of ``self.links``, or the first ones.

        Raises:
            KeyMissingError: if a link reads what nobody wrote.
            PolicyError: if a network's outputs do not fit its out keys.
        """
        for module, children in links:
            try:
                inputs = [values[key] for key in module.in_keys]
            except KeyError as error:
                raise missing_key(error.args[0], module, values) from None
            if children is None:
                for key, output in zip(module.out_keys, module.forward_tensors(*inputs), strict=True):
                    values[key] = output
                continue
            network: Any = children["module"]
            result = network(*inputs)
            keys = module.out_keys_source
            if len(keys) == 1 and type(result) is Tensor:
                values[keys[0]] = result
                continue
            for key, output in zip(keys, as_outputs(result, keys, network), strict=True):
                values[key] = output


def _is_plain(module: TensorDictModule) -> bool:
    """Whether calling the network on the inputs, in order, is all that the module does.

    Two of the options that would change that are private attributes: a tensordict in which they have other names makes
    the module a black box, which is slower but right.
    """
    options = module.__dict__
    return (
        "module" in module._modules
        and options.get("_kwargs", 0) is None
        and options.get("_get_kwargs", 0) == {}
        and module.method is None
        and not module.method_kwargs
        and module.inplace is True
    )


def _is_plain_sequence(module: TensorDictSequential) -> bool:
    return (
        isinstance(module.module, nn.ModuleList)
        and not module.partial_tolerant
        and module.__dict__.get("_select_before_return", 0) is False
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )
