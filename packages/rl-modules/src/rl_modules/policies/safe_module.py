"""A network with keys, and optionally specs for its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn

from rl_core.keys import Key, as_keys, leaf_name
from rl_core.specs import Composite, TensorSpec
from rl_modules.policies.base import PolicyModule, as_outputs
from rl_modules.policies.projection import leaf_specs, project, spec_tree

__all__ = ["SafeModule", "has_keys"]

Keys: TypeAlias = "Key | Iterable[Key]"


class SafeModule(PolicyModule):
    """Calls a network on ``in_keys`` and writes its outputs under ``out_keys``.

    Args:
        module: the network; any callable from tensors to a tensor, a tuple, or a dict that holds the out keys.
        in_keys: its inputs in order, or a dict ``{argument: key}``.
        out_keys: one key for each output; "_" drops an output.
        spec: a leaf for the first output, or a Composite.
        safe: project outputs that are outside their spec onto it.

    >>> import torch
    >>> from tensordict import TensorDict
    >>> module = SafeModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["action"])
    >>> module(TensorDict({"observation": torch.zeros(4, 3)}, [4]))["action"].shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        module: Callable[..., Any],
        in_keys: Keys | Mapping[str, Key],
        out_keys: Keys,
        spec: TensorSpec | None = None,
        *,
        safe: bool = False,
    ) -> None:
        super().__init__()
        if not callable(module) or isinstance(module, type):
            raise TypeError(f"{type(self).__name__} needs a network or another callable; got {module!r}.")
        self._argument_names = list(in_keys) if isinstance(in_keys, Mapping) else None
        self._set_keys(as_keys(list(in_keys.values()) if isinstance(in_keys, Mapping) else in_keys), as_keys(out_keys))
        self.module = module
        self.safe = safe
        self._specs = leaf_specs(spec, self.out_keys, self.__name__, safe=safe)

    @property
    def spec(self) -> Composite | None:
        """The specs of the outputs that have one."""
        return spec_tree(self._specs)

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        # An nn.Module child is found in _modules: nn.Module.__getattr__ would cost 0.5 us here.
        module = self._modules.get("module") or self.module
        if self._argument_names is None:
            result = module(*inputs)
        else:
            result = module(**dict(zip(self._argument_names, inputs, strict=True)))
        keys = self.out_keys_source
        outputs = (result,) if type(result) is Tensor and len(keys) == 1 else as_outputs(result, keys, module)
        return project(self._specs, keys, outputs) if self.safe else tuple(outputs)


def has_keys(module: Any) -> bool:
    """Whether a module reads and writes TensorDicts, as far as its attributes tell."""
    return isinstance(module, TensorDictModuleBase) or (hasattr(module, "in_keys") and hasattr(module, "out_keys"))


def argument_names(in_keys: Keys | Mapping[str, Key]) -> tuple[list[str], list[Key]]:
    """Names and keys, from a dict ``{name: key}`` or from keys whose leaf names are the names."""
    if isinstance(in_keys, Mapping):
        return list(in_keys), list(in_keys.values())
    keys = as_keys(in_keys)
    return [leaf_name(key) for key in keys], list(keys)


def named_module(module: nn.Module | Callable[..., Any], in_keys: Keys, out_keys: Keys) -> Any:
    """The module itself where it has keys, else a :class:`SafeModule` around it."""
    return module if has_keys(module) else SafeModule(module, in_keys, out_keys)
