"""The first step's validation: what an environment wrote, against what its specs promise, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from tensordict.utils import is_non_tensor

from rl_core.errors import EnvError, PolicyError, SpecError
from rl_core.keys import Key
from rl_core.specs import Composite, TensorSpec

if TYPE_CHECKING:
    from rl_core.envs.base import EnvBase

__all__ = ["check_action_shape", "check_member", "edited_text", "leaf_complaint", "validate_output"]


def edited_text(env: EnvBase) -> str:
    """What to do where transforms or specs of an environment were edited between two batches of its steps."""
    return (
        f"the transforms or specs of this {type(env).__name__} were edited while episodes were under way; they begin "
        "in new episodes: call reset() on the collector (or runner) after the edit, before the next batch"
    )


def check_action_shape(key: Key, action: object, shape: tuple[int, ...], policy: str) -> None:
    """Refuse an action that would be broadcast into its place.

    Raises:
        PolicyError: the shapes differ.
    """
    found = getattr(action, "shape", None)
    if found is not None and tuple(found) != tuple(shape):
        raise PolicyError(
            f"{policy} wrote the action {key!r} of shape {tuple(found)}; its spec says {tuple(shape)}. A choice as a "
            "number needs an environment made with categorical_action_encoding=True; a vector keeps its last dimension"
        )


def check_member(what: str, key: Key, spec: TensorSpec, value: object) -> None:
    """Checked mode: one value against its spec.

    Raises:
        SpecError: naming the entry.
    """
    if not spec.is_in(value):
        raise SpecError(f"the {what} {key!r} is not in its spec. {spec.explain(value)}")


def leaf_complaint(key: Key, spec: TensorSpec, value: object, batch_locked: bool) -> str | None:
    """One sentence on how a value's dtype or shape differs from its spec, or None."""
    if is_non_tensor(value) or not isinstance(value, torch.Tensor):
        return None
    if value.dtype is not spec.dtype:
        return f"{key!r} has dtype {value.dtype}, its spec says {spec.dtype}"
    if batch_locked and -1 not in spec.shape and value.shape != spec.shape:
        return f"{key!r} has shape {tuple(value.shape)}, its spec says {tuple(spec.shape)}"
    return None


def validate_output(env: EnvBase, result: TensorDictBase, *, values: bool) -> None:
    """Check what ``_step`` wrote.

    Args:
        env: the environment.
        result: its output, end flags completed.
        values: also check that values are members of their specs (checked mode).

    Raises:
        EnvError: with one sentence for each key that is missing or of another dtype or shape.
    """
    complaints: list[str] = []
    for name, full in (
        ("observation", env.observation_spec),
        ("reward", env.full_reward_spec),
        ("done", env.full_done_spec),
    ):
        complaints += _complaints(name, full, result, env.batch_locked, values)
    if complaints:
        wrote = ", ".join(repr(key) for key in result.keys(True, True))
        raise EnvError(
            f"{type(env).__name__}._step breaks its specs: "
            + "; ".join(complaints)
            + f". It wrote {wrote}. Fix the spec or "
            "what _step writes; check_env_specs(env) shows the whole list"
        )


def _complaints(name: str, full: Composite, result: TensorDictBase, locked: bool, values: bool) -> list[str]:
    found: list[str] = []
    for key, leaf in full.items(True, True):
        value = result.get(key, None)
        if value is None:
            found.append(f"{key!r} of the {name} spec is missing")
            continue
        complaint = leaf_complaint(key, leaf, value, locked)
        if complaint:
            found.append(complaint)
        elif values and isinstance(value, torch.Tensor) and not leaf.is_in(value):
            found.append(f"{key!r} = {value.tolist()} is not in {leaf}")
    return found
