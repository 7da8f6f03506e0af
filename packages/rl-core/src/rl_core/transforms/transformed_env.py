"""``TransformedEnv``: an environment seen through transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from rl_core.envs.array_env import stage_leaves
from rl_core.envs.base import EnvBase
from rl_core.envs.columns import Columns, RowProgram
from rl_core.envs.entries import is_group
from rl_core.errors import EnvError
from rl_core.keys import Key
from rl_core.specs import Composite, TensorSpec
from rl_core.transforms.base import Transform
from rl_core.transforms.callable import as_transform
from rl_core.transforms.compose import Compose
from rl_core.transforms.rows import chain

__all__ = ["TransformedEnv", "environment_before", "supports_rows"]

_KINDS = ("observation", "reward", "done", "action", "state")


def supports_rows(env: EnvBase) -> bool:
    """Whether an environment can be stepped on columns, without a TensorDict per step: ``env.supports_rows``."""
    return env.supports_rows


class TransformedEnv(EnvBase):
    """An environment whose output (and input) passes through transforms.

    Args:
        env: the environment underneath.
        transform: a Transform, a Compose, or a function of a TensorDict; None passes everything through.

        auto_unwrap: ``env`` is a TransformedEnv whose transforms move into this one, ahead of ``transform``; it is left
            with none. By default environments nest: each keeps its own transforms, ``env.base`` is the inner one, and
            edits of either are seen by both.

    Attributes of the environment underneath are reachable through this one.

    Transforms can be edited in place: ``env.append_transform(t)``, ``env.insert_transform(0, t)``,
    ``env.transform.pop(1)``, ``env.transform = t``. Specs follow at once. A collector at work on the environment says
    that its episodes have to start anew (``collector.reset()``).

    Example:
        >>> from rl_core.testing import CountingEnv
        >>> env = TransformedEnv(CountingEnv(), lambda td: td.set("twice", td["observation"] * 2))
        >>> env.reset()["twice"]
        tensor([0.])
    """

    def __init__(
        self,
        env: EnvBase,
        transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None = None,
        *,
        auto_unwrap: bool | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if auto_unwrap and isinstance(env, TransformedEnv):
            env, transform = _unwrapped(env, transform)
        self.base = env if device is None else env.to(device)
        self._seen_version = -1
        super().__init__(
            device=env.device, batch_size=env.batch_size, allow_done_after_reset=env.allow_done_after_reset
        )
        self.run_type_checks = env.run_type_checks
        self._transform = Compose() if transform is None else as_transform(transform)
        self._transform.set_container(self)
        self._follow_batch()

    # ---------------------------------------------------------------- specs
    def _follow_batch(self) -> None:
        self.batch_size = self._transform.transform_env_batch_size(self.base.batch_size)
        self.batch_locked = self._transform.transform_env_batch_locked(self.base.batch_locked)

    def _refresh(self) -> None:
        version = self.base.specs_version
        if version != self._seen_version:
            self._specs.clear()
            self._derived.clear()
            self._seen_version = version
            self._follow_batch()

    @property
    def specs_version(self) -> int:
        """Moves whenever a spec of this environment or of one underneath may have changed."""
        return self._version + self.base.specs_version

    def _default_spec(self, kind: str) -> Composite:
        below = self.base._spec(kind)
        changed = getattr(self.transform, f"transform_{kind}_spec")(below.clone())
        return self._complete_done(changed) if kind == "done" else self._own(changed)

    def _spec(self, kind: str) -> Composite:
        self._refresh()
        return super()._spec(kind)

    def _derive(self, name: str, make: Callable[[], Any]) -> Any:
        self._refresh()
        return super()._derive(name, make)

    def _set_spec(self, kind: str, value: Any, name: str) -> None:
        raise EnvError(
            f"the {kind} spec of a TransformedEnv follows from env.base and its transforms; set it there: "
            f"env.base.{kind}_spec"
        )

    def specs_changed(self) -> None:
        """Forget what was computed through the transforms."""
        self._specs.clear()
        self._follow_batch()
        super().specs_changed()

    # ---------------------------------------------------------------- data
    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        fresh = self.base._reset_raw(self.transform._reset_env_preprocess(tensordict), **kwargs)
        return self.transform._reset(tensordict, fresh)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._derive("stand_ins", self._has_stand_ins):
            return self._step_with_stand_ins(tensordict)
        inward = tensordict
        if self._derive("inverts", self._has_inverse):
            inward = self.transform._inv_call(_shallow(tensordict))
        return self.transform._step(tensordict, self.base._step_complete(inward))

    def _has_stand_ins(self) -> bool:
        return any(type(part)._instead_of_step is not Transform._instead_of_step for part in _parts(self.transform))

    def _step_with_stand_ins(self, tensordict: TensorDictBase) -> TensorDictBase:
        """A step that a transform may answer itself; then nothing nearer to the simulator sees it."""
        parts, inward = _parts(self.transform), _shallow(tensordict)
        place, result = len(parts), None
        while place and result is None:
            place -= 1
            inward = parts[place]._inv_call(inward)
            result = parts[place]._instead_of_step(inward)
        result = self.base._step_complete(inward) if result is None else result
        for part in parts[place:]:
            result = part._step(tensordict, result)
        return result

    def _has_inverse(self) -> bool:
        return any(
            part.in_keys_inv or type(part)._inv_call is not Transform._inv_call for part in _parts(self.transform)
        )

    def _set_seed(self, seed: int) -> None:
        self.base._set_seed(seed)

    # ---------------------------------------------------------------- rows
    @property
    def supports_rows(self) -> bool:
        """Where the environment underneath does, and every transform."""
        return self.transform.supports_rows and self.base.supports_rows

    def row_program(self, columns: Columns) -> RowProgram:
        """The program of the environment underneath, followed by those of the transforms."""
        parts, stages = _parts(self.transform), [columns]
        for part, leaves in zip(reversed(parts), reversed(self._derive("stages", self._stages)), strict=True):
            stages.insert(0, stages[0].inner(leaves, rewritten=part.in_keys_inv))
        programs = [self.base.row_program(stages[0])]
        programs += [
            part.row_program(before, after) for part, before, after in zip(parts, stages, stages[1:], strict=False)
        ]
        return chain(programs)

    def _stages(self) -> list[dict[Key, tuple[TensorSpec, bool]]]:
        """The leaves of the columns before each transform; they follow from the specs, and hold as long as those do."""
        stages, seen = [], self.base
        for part in _parts(self.transform):
            stages.append(stage_leaves(seen))
            seen = _view(seen, [part])  # each stage's specs from those of the stage before
        return stages

    # ---------------------------------------------------------------- editing
    def append_transform(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase]) -> TransformedEnv:
        """Add a transform at the end, in place."""
        self._composed().append(transform)
        self.specs_changed()
        return self

    def insert_transform(
        self, index: int, transform: Transform | Callable[[TensorDictBase], TensorDictBase]
    ) -> TransformedEnv:
        """Add a transform at a place, in place."""
        self._composed().insert(index, transform)
        self.specs_changed()
        return self

    @property
    def transform(self) -> Transform:
        """The transform; assigning another one gives up this one."""
        return self._transform

    @transform.setter
    def transform(self, transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None) -> None:
        new = Compose() if transform is None else as_transform(transform)
        new.set_container(self)
        if new is not self._transform:
            self._transform.set_container(None)
        self._transform = new
        self.specs_changed()

    def _composed(self) -> Compose:
        if not isinstance(self._transform, Compose):
            alone = self._transform
            alone.set_container(None)
            self._transform = Compose(alone)
            self._transform.set_container(self)
        return self._transform

    # ---------------------------------------------------------------- life
    @property
    def base_env(self) -> EnvBase:
        """The environment under all transforms."""
        return self.base.base_env

    def to(self, device: torch.device | str) -> TransformedEnv:
        """Move the environment underneath and the transforms."""
        self.base.to(device)
        self.device = torch.device(device)
        self.transform.to(device)
        self.specs_changed()
        return self

    def train(self, mode: bool = True) -> TransformedEnv:
        """Let running statistics move (or freeze them)."""
        super().train(mode)
        self.transform.train(mode)
        self.base.train(mode)
        return self

    def state_dict(self) -> dict[str, Any]:
        """The transforms' states and those of the environment underneath."""
        return {"transform": dict(self.transform.state_dict()), "base": self.base.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> bool:
        """Take a :meth:`state_dict` back; True where the environment underneath goes on with its episodes."""
        self.transform.load_state_dict(state_dict["transform"])
        return self.base.load_state_dict(state_dict["base"])

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the environment underneath and the transforms."""
        self.base.close(raise_if_closed=raise_if_closed)
        self.transform.close()
        super().close()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy owns its transforms."""
        self.__dict__.update(state)
        self.transform.set_container(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("base", "_derived", "_specs", "_transform"):
            raise AttributeError(name)
        if hasattr(type(self), name):  # a property of ours failed: show its own error, not "no attribute"
            return object.__getattribute__(self, name)
        return getattr(self.base, name)

    def __repr__(self) -> str:
        return f"TransformedEnv({self.base!r}, {self.transform!r})"


def _view(base: EnvBase, parts: list[Transform]) -> EnvBase:
    """The environment seen through some of its transforms, without taking them from their owner."""
    if not parts:
        return base
    view = TransformedEnv(base)
    compose = Compose()
    compose.transforms.extend(parts)
    view._transform = compose
    view._follow_batch()
    return view


def _parts(transform: Transform) -> list[Transform]:
    """The transforms in a row, those inside of a Compose within a Compose too."""
    if isinstance(transform, Compose):
        return [part for inner in transform for part in _parts(inner)]
    return [transform]


def _shallow(tensordict: TensorDictBase) -> TensorDictBase:
    """New containers around the same tensors: an inverse writes into none of the policy's groups."""
    dims = tensordict.batch_dims
    entries = {name: value.copy() if is_group(value, dims) else value for name, value in tensordict.items()}
    return TensorDict(entries, batch_size=tensordict.batch_size)


def _unwrapped(
    env: TransformedEnv, transform: Transform | Callable[[TensorDictBase], TensorDictBase] | None
) -> tuple[EnvBase, Compose]:
    """The environment under a TransformedEnv, and that one's transforms ahead of another."""
    inner = env._composed()
    moved = [inner.pop(0) for _ in range(len(inner))]
    return env.base, Compose(*moved, *([] if transform is None else [transform]))


def environment_before(transform: Transform) -> EnvBase | None:
    """The environment as a transform sees it: what is underneath, through the transforms ahead of it."""
    owner = None if transform._owner is None else transform._owner()
    if owner is None:
        return None
    if isinstance(owner, TransformedEnv):
        return owner.base
    outer = environment_before(owner)
    if outer is None:
        return None
    ahead: list[Transform] = []
    for part in owner:
        if part is transform:
            break
        ahead.append(part)
    return _view(outer, ahead)
