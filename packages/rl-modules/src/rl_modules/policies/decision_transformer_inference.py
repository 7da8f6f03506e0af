"""A decision transformer as a policy: windows of the recent past in, the action of the current step out."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_core.errors import PolicyError, SpecError
from rl_core.keys import Key, as_key
from rl_core.policy import row_policy
from rl_core.specs import TensorSpec
from rl_modules.policies.base import PolicyModule
from rl_modules.policies.reading import read_inputs

__all__ = ["DecisionTransformerInferenceWrapper"]

_WINDOWS = ("observation", "action", "return_to_go")
_DEFAULTS: dict[str, Key] = {**{name: name for name in _WINDOWS}, "mask": "mask", "out_action": "action"}
_PARTS = (*_DEFAULTS, "step_count")


class DecisionTransformerInferenceWrapper(PolicyModule):
    """Gives a sequence policy the last steps of a window and writes the action of the last one.

    The windows ``[*B, T, F]`` end with the current step (``CatFrames`` makes them), apart from the actions': these are
    the actions already taken, the latest last, so they are moved back by one step and the current step gets zeros.
    Only the last ``inference_context`` steps are used, and where the policy reads a mask and the data count the steps
    of the episode, steps before the episode's start are masked. The windows are left as they are, unless the action
    that is written has the key of one.

    Args:
        policy: a module that reads windows, among them observation, action and return-to-go, and writes an action for
            each step, such as a ``ProbabilisticActor`` over a ``DTActor``.
        inference_context: steps that are looked at, the current one included.
        spec: spec of the action.
        device: device of the policy.

    Raises:
        ValueError: if the context has no step.
        PolicyError: if the policy does not read the windows or write the action: name them by :meth:`set_tensor_keys`.

    >>> from rl_modules import DTActor, ProbabilisticActor, SafeModule, TanhDelta
    >>> net = SafeModule(
    ...     DTActor(3, 2, {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_inner": 8}),
    ...     in_keys=["observation_cat", "action_cat", "return_to_go_cat"],
    ...     out_keys=["param"],
    ... )
    >>> actor = ProbabilisticActor(net, in_keys=["param"], distribution_class=TanhDelta)
    >>> policy = DecisionTransformerInferenceWrapper(actor, inference_context=4)
    >>> policy.set_tensor_keys(
    ...     observation="observation_cat", action="action_cat", return_to_go="return_to_go_cat"
    ... )
    >>> policy(torch.zeros(5, 10, 3), torch.zeros(5, 10, 2), torch.zeros(5, 10, 1)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self,
        policy: TensorDictModuleBase,
        *,
        inference_context: int = 5,
        spec: TensorSpec | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if inference_context < 1:
            raise ValueError(f"inference_context counts steps, at least 1; got {inference_context}.")
        self.policy = policy if device is None else policy.to(device)
        self.inference_context = inference_context
        self.spec = spec
        self._roles = dict(_DEFAULTS)
        self._arrange()

    def set_tensor_keys(self, **keys: Key | None) -> None:
        """Say which entry plays which part.

        Args:
            **keys: ``observation``, ``action``, ``return_to_go``: the windows, as the policy reads them; ``mask``: the
                policy's mask, if it reads one; ``step_count``: integers ``[*B, 1]`` in the data, how many steps of the
                episode came before: given, the wrapper makes the mask; ``out_action``: the action that the policy
                writes, and the wrapper too. None: the default again.

        Raises:
            SpecError: if there is no such part.
        """
        for name, key in keys.items():
            if name not in _PARTS:
                raise SpecError(f"{type(self).__name__} has no key named {name!r}; it has {list(_PARTS)}.")
            if key is not None:
                self._roles[name] = as_key(key)
            elif name in _DEFAULTS:
                self._roles[name] = _DEFAULTS[name]
            else:
                self._roles.pop(name, None)
        self._arrange()

    @property
    def _makes_mask(self) -> bool:
        return "step_count" in self._roles

    def _arrange(self) -> None:
        """The keys read: the policy's own, with the step count in place of a mask that is made here."""
        reads = [as_key(key) for key in self.policy.in_keys]
        mask = self._roles["mask"]
        if self._makes_mask:
            reads = [self._roles["step_count"] if key == mask else key for key in reads]
        self._set_keys(reads, [self._roles["out_action"]])

    def _compute(self, *inputs: Tensor) -> tuple[Any, ...]:
        keys = self._checked_keys()
        entries = dict(zip(keys, inputs, strict=True))
        window = entries[self._roles["observation"]]
        time, length = window.ndim - 2, window.shape[-2]
        kept = min(self.inference_context, length)
        mask = self._roles["mask"]
        if self._makes_mask:
            entries[mask] = _steps_of_episode(entries[mask], length)
        action = entries[self._roles["action"]]
        entries[self._roles["action"]] = torch.cat([action[..., 1:, :], torch.zeros_like(action[..., :1, :])], -2)
        for key, entry in entries.items():
            if entry.ndim <= time or entry.shape[time] != length:
                raise SpecError(
                    f"{type(self).__name__}: {key!r} {list(entry.shape)} is no window of the {length} steps that "
                    f"{self._roles['observation']!r} {list(window.shape)} has"
                )
        cut = [entry.narrow(time, length - kept, kept) for entry in entries.values()]
        return (self._actions(keys, cut, window.shape[:-2]).select(time, kept - 1),)

    def _checked_keys(self) -> list[Key]:
        """The policy's keys, once it is sure that the parts are among them."""
        keys = [as_key(key) for key in self.policy.in_keys]
        wanted = [self._roles[name] for name in _WINDOWS] + ([self._roles["mask"]] if self._makes_mask else [])
        absent = [key for key in wanted if key not in keys]
        if absent or self._roles["out_action"] not in self.policy.out_keys:
            raise PolicyError(
                f"{type(self).__name__} needs a policy that reads {wanted} and writes {self._roles['out_action']!r}; "
                f"it reads {keys} and writes {list(self.policy.out_keys)}. Name the entries with "
                "set_tensor_keys(observation=..., action=..., return_to_go=..., out_action=...)."
            )
        return keys

    def _actions(self, keys: list[Key], inputs: list[Tensor], batch_size: torch.Size) -> Tensor:
        """The policy's action of each step."""
        out_key = self._roles["out_action"]
        bare = row_policy(self.policy)
        if bare is not None:
            action: Tensor = bare.call(*inputs)[[as_key(key) for key in self.policy.out_keys].index(out_key)]
            return action
        data = self.policy(TensorDict(dict(zip(keys, inputs, strict=True)), batch_size=batch_size))
        (action,) = read_inputs(data, [out_key], self.policy)
        return action


def _steps_of_episode(step_count: Tensor, length: int) -> Tensor:
    """Which steps of windows that end at the current one belong to its episode, bool ``[*B, length]``."""
    ages = torch.arange(length - 1, -1, -1, device=step_count.device)
    return ages <= step_count
