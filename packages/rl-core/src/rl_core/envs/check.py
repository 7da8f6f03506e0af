"""``check_env_specs``: runs an environment for a few steps and says in sentences where it breaks its own specs."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from rl_core.envs.action_masks import action_leaves, legal_action_specs
from rl_core.envs.base import EnvBase
from rl_core.envs.env_specs import EnvSpecs, leaf_specs
from rl_core.envs.rollout import stack_steps, take_steps
from rl_core.envs.validation import leaf_complaint
from rl_core.errors import EnvError
from rl_core.keys import Key, as_key, as_path, join
from rl_core.specs import TensorSpec

__all__ = ["check_env_specs"]


def check_env_specs(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: bool | str | None = None,
) -> None:
    """Check that what an environment writes is what its specs promise.

    Takes three random steps (from ``tensordict`` where given) and compares every entry with its spec: present, of the
    dtype, of the shape, a legal value; and every entry written with the specs: declared, at its place. End flags are
    checked for ``done = terminated | truncated``.

    Args:
        env: the environment.
        return_contiguous: as in ``rollout``.
        check_dtype: compare dtypes too.
        seed: seeds torch and the environment first; the state of torch's generator is restored after.
        tensordict: passed to ``reset`` (parameters of a stateless environment).
        break_when_any_done: stop at the first end (True), run on through resets (False), or try both ("both", the
            default).

    Raises:
        EnvError: one sentence for each disagreement, naming the key, its producer, what was expected and found.
    """
    state = torch.random.get_rng_state()
    try:
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        modes = (True, False) if break_when_any_done in (None, "both") else (bool(break_when_any_done),)
        for mode in modes:
            steps = take_steps(env, None, env.reset(tensordict), 3, stop_any=mode)
            for step in steps:
                for specs, part in _parts(env, step):
                    _check_step(env, specs, part, check_dtype)
            stack_steps(steps, steps[0].batch_dims, return_contiguous)
    finally:
        torch.random.set_rng_state(state)


def _parts(env: EnvBase, step: TensorDictBase) -> list[tuple[EnvSpecs, TensorDictBase]]:
    """A step beside its specs; row by row where those differ."""
    return [(env, step)] if env.row_specs is None else list(zip(env.row_specs, step.unbind(0), strict=True))


def _check_step(env: EnvBase, specs: EnvSpecs, step: TensorDictBase, check_dtype: bool) -> None:
    name = type(env.base_env).__name__
    complaints: list[str] = []
    extra = () if env.batch_locked else step.batch_size[len(env.batch_size) :]
    expected = _expected(name, specs, step, extra)
    for key, (spec, producer) in expected.items():
        value = step.get(key, None)
        where = f"{key!r} (written by {producer})"
        if value is None:
            complaints.append(f"{where} is missing; its spec is {spec}")
            continue
        complaint = leaf_complaint(key, spec, value, env.batch_locked)
        if complaint and (check_dtype or "dtype" not in complaint):
            complaints.append(f"{where}: {complaint}")
        elif isinstance(value, torch.Tensor) and not complaint and not spec.is_in(value):
            complaints.append(f"{where} has the value {value.tolist()}, which is not in {spec}")
    complaints += _undeclared(specs, step, expected)
    for group in specs.end_groups:
        if group.truncated is not None:
            nxt = step.get("next")
            wanted = nxt.get(group.terminated) | nxt.get(group.truncated)
            if not torch.equal(nxt.get(group.done), wanted):
                complaints.append(f"('next', {group.done!r}) differs from terminated | truncated")
    if complaints:
        raise EnvError(
            f"{name} disagrees with its specs:\n  - "
            + "\n  - ".join(complaints)
            + "\nChange the spec (observation_spec, reward_spec, done_spec, action_spec) or what _reset/_step write."
        )


def _expected(
    base: str, env: EnvSpecs, step: TensorDictBase, extra: torch.Size | tuple[int, ...]
) -> dict[Key, tuple[TensorSpec, str]]:
    leaves: dict[Key, tuple[TensorSpec, str]] = {}
    observations = {**leaf_specs(env.observation_spec), **leaf_specs(env.full_done_spec)}
    for key, spec in observations.items():
        leaves[key] = (spec, f"{base}._reset, or a transform")
        leaves[join("next", key)] = (spec, f"{base}._step, or a transform")
    for key, spec in leaf_specs(env.full_reward_spec).items():
        leaves[join("next", key)] = (spec, f"{base}._step, or a transform")
    for key, spec in legal_action_specs(action_leaves(env), step, extra):
        leaves[key] = (spec, "rand_action")
    return leaves


def _undeclared(env: EnvSpecs, step: TensorDictBase, expected: dict[Key, tuple[TensorSpec, str]]) -> list[str]:
    known = set(expected) | set(env.state_keys) | {join("next", key) for key in env.state_keys}
    extra = []
    for raw in step.keys(True, True):
        key = as_key(as_path(raw))
        if key not in known:
            extra.append(
                f"{key!r} was written, but no spec declares it; add it to the observation spec (or do not write it)"
            )
    return extra
