"""``ModuleTransform``: a module, such as an encoder, as a transform."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase

from rl_core import Composite, TensorSpec, Transform, Unbounded
from rl_core.errors import KeyMissingError
from rl_core.keys import as_key, as_path

__all__ = ["ModuleTransform"]

SpecChange: TypeAlias = "TensorSpec | Callable[[Any], Any]"


class ModuleTransform(Transform):
    """Runs a TensorDict module on what resets and steps write, or (``inverse``) on what the policy writes.

    In stored data it runs on the root and, where "next" has its entries, there too.

    Args:
        module: the module.
        module_factory: makes the module where it is used (in a worker, for example), instead.
        no_grad: run it without gradients.
        inverse: run it on the way in.
        device: where the module lives; entries move there and its results back.
        observation_spec_transform: the observation spec afterwards, or a function of the one before. Left out, what the
            module writes is found by running it on zeros.
        action_spec_transform: the same for actions; needed with ``inverse`` where the policy's action has another spec.
        reward_spec_transform: the same for rewards.
        done_spec_transform: the same for end flags.
        state_spec_transform: the same for states.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> from rl_core import TransformedEnv
        >>> from rl_core.testing import CountingEnv
        >>> encoder = TensorDictModule(torch.nn.Linear(1, 8), in_keys=["observation"], out_keys=["embedding"])
        >>> TransformedEnv(CountingEnv(), ModuleTransform(module=encoder)).rollout(2)["next", "embedding"].shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        *,
        module: TensorDictModuleBase | None = None,
        module_factory: Callable[[], TensorDictModuleBase] | None = None,
        no_grad: bool = False,
        inverse: bool = False,
        device: torch.device | str | None = None,
        observation_spec_transform: SpecChange | None = None,
        action_spec_transform: SpecChange | None = None,
        reward_spec_transform: SpecChange | None = None,
        done_spec_transform: SpecChange | None = None,
        state_spec_transform: SpecChange | None = None,
    ) -> None:
        if (module is None) == (module_factory is None):
            raise ValueError("ModuleTransform takes a module or a module_factory: one of them")
        made = module if module_factory is None else module_factory()
        assert made is not None
        read, written = list(made.in_keys), list(made.out_keys)
        super().__init__(*((None, None, read, written) if inverse else (read, written)))
        self.device = None if device is None else torch.device(device)
        self.module = made if self.device is None else made.to(self.device)
        self.no_grad, self.inverse = no_grad, inverse
        self._changes: dict[str, SpecChange | None] = {
            "observation": observation_spec_transform,
            "action": action_spec_transform,
            "reward": reward_spec_transform,
            "done": done_spec_transform,
            "state": state_spec_transform,
        }

    # ---------------------------------------------------------------- values
    def _run(self, tensordict: TensorDictBase) -> TensorDictBase:
        given = tensordict if self.device is None else tensordict.select(*self.module.in_keys).to(self.device)
        with torch.no_grad() if self.no_grad else nullcontext():
            written = self.module(given.copy())
        for key in self.module.out_keys:
            if as_path(key)[-1] != "_":
                value = written.get(key)
                back = value if self.device is None or tensordict.device is None else value.to(tensordict.device)
                tensordict.set(key, back)
        return tensordict

    def _lacks(self, tensordict: TensorDictBase) -> str | None:
        for key in self.module.in_keys:
            if tensordict.get(key, None) is None:
                present = ", ".join(map(repr, tensordict.keys(True, True))) or "nothing"
                return (
                    f"ModuleTransform needs {as_key(as_path(key))!r}, which its {type(self.module).__name__} reads; "
                    f"the data has {present}. Name the entry in the module's in_keys"
                )
        return None

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.inverse:
            return tensordict
        lacks = self._lacks(tensordict)
        if lacks is None:
            return self._run(tensordict)
        if self._missing_ok:
            return tensordict
        raise KeyMissingError(lacks)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        if not self.inverse:
            return tensordict
        lacks = self._lacks(tensordict)
        if lacks is not None:
            raise KeyMissingError(lacks)
        return self._run(tensordict)

    # ---------------------------------------------------------------- specs
    def _spec(self, kind: str, spec: Composite) -> Composite:
        change = self._changes[kind]
        if change is None:
            return self._found(spec) if kind == "observation" and not self.inverse else spec
        changed = change(spec) if callable(change) and not isinstance(change, TensorSpec) else change
        if isinstance(changed, Composite):
            return changed
        spec.set({"observation": self.module.out_keys[0]}.get(kind, kind), changed)
        return spec

    def _found(self, spec: Composite) -> Composite:
        """Adds what the module writes, by its results on zeros."""
        given = spec.zero()
        if self._lacks(given) is not None:  # it reads rewards or end flags too
            parent = self.parent
            given = given if parent is None else parent.fake_tensordict().get("next")
        if self._lacks(given) is not None:
            raise KeyMissingError(str(self._lacks(given)))
        was = self.module.training
        self.module.eval()
        with torch.no_grad():
            written = self._run(TensorDict(dict(given.items()), batch_size=given.batch_size, device=given.device))
        self.module.train(was)
        parent = self.parent
        rewards = [] if parent is None else parent.reward_keys
        for key in self.module.out_keys:
            if as_path(key)[-1] != "_" and as_key(as_path(key)) not in rewards:
                value = written.get(key)
                spec.set(as_key(as_path(key)), Unbounded(shape=value.shape, dtype=value.dtype, device=value.device))
        return spec

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """As declared, else with what the module writes."""
        return self._spec("observation", observation_spec)

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """As declared."""
        return self._spec("action", action_spec)

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """As declared."""
        return self._spec("reward", reward_spec)

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """As declared."""
        return self._spec("done", done_spec)

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """As declared."""
        return self._spec("state", state_spec)
