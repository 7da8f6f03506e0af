"""What an environment is given and what it writes, against what its specs promise, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from tensordict.utils import is_non_tensor

from rl_core.checking import checks_enabled
from rl_core.envs.action_masks import legal_action_specs
from rl_core.envs.ends import any_done
from rl_core.envs.partial_reset import reset_request
from rl_core.errors import EnvError, PolicyError, SpecError
from rl_core.keys import Key
from rl_core.specs import Composite, TensorSpec

if TYPE_CHECKING:
    from rl_core.envs.base import EnvBase

__all__ = [
    "check_action_shape",
    "check_actions",
    "check_fresh",
    "check_member",
    "check_not_ended",
    "edited_text",
    "leaf_complaint",
    "validate_output",
]


def edited_text(env: EnvBase) -> str:
    """What to do where transforms or specs of an environment were edited between two batches of its steps."""
    return (
        f"the transforms or specs of this {type(env).__name__} were edited while episodes were under way; they begin "
        "in new episodes: call reset() on the collector (or runner) after the edit, before the next batch"
    )


def check_fresh(env: EnvBase, given: TensorDictBase | None, fresh: TensorDictBase) -> None:
    """Check what ``_reset`` returned.

    Raises:
        EnvError: it is what ``_reset`` was given, or has a reward.
    """
    if fresh is given:
        raise EnvError(f"{type(env).__name__}._reset returned the TensorDict it was given; it must return a new one")
    for key in env.reward_keys:
        if fresh.get(key, None) is not None and key not in {*env.observation_keys, *env.state_keys}:
            raise EnvError(
                f"{type(env).__name__}._reset wrote the reward {key!r}; a reward exists only under 'next', as the "
                "result of an action"
            )


def check_not_ended(env: EnvBase, given: TensorDictBase | None, fresh: TensorDictBase) -> None:
    """Check that no row that was reset is done already.

    Args:
        env: the environment.
        given: what ``_reset`` was given; its ``_reset`` entry says which rows were meant.
        fresh: what it returned, end flags completed.

    Raises:
        EnvError: a row is.
    """
    rows = any_done(fresh, env.end_groups, fresh.batch_dims)
    if rows is None:
        return
    request = reset_request(given, env.end_groups)
    asked = None if request is None else request.rows(fresh.batch_dims)
    if asked is None or bool((rows & asked).any()):
        raise EnvError(
            f"{type(env).__name__} is done right after a reset; if that is meant, construct it with "
            "allow_done_after_reset=True"
        )


def check_actions(env: EnvBase, tensordict: TensorDictBase) -> None:
    """Check the actions of a step: they are there and, in checked mode, legal.

    Raises:
        PolicyError: one is missing, or has another shape than its spec.
        SpecError: one is not in its spec (checked mode).
    """
    for key, spec, mask_key in env._action_leaves():
        action = tensordict.get(key, None)
        if action is None:
            raise PolicyError(
                f"{type(env).__name__}.step needs the action {key!r}; the TensorDict has "
                f"{', '.join(sorted(map(str, tensordict.keys()))) or 'nothing'}. The policy writes it "
                f"(out_keys=[{key!r}]), or env.rand_action(td) does"
            )
        if env.batch_locked and isinstance(action, torch.Tensor) and -1 not in spec.shape:
            check_action_shape(key, action, spec.shape, "the policy")
        if env.run_type_checks or checks_enabled():
            extra = () if env.batch_locked else tensordict.batch_size[len(env.batch_size) :]
            ((_, legal),) = legal_action_specs([(key, spec, mask_key)], tensordict, extra)
            check_member("action", key, legal, action)


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
