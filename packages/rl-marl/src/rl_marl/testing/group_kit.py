"""GroupKit: what every environment with groups of agents must get right, beside what EnvKit asks of every environment.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyTeam(GroupKit):
        def make_env(self):
            return MyTeamEnv()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import EnvBase, check_env_specs, checked_mode
from rl_core.envs.env_specs import leaf_specs
from rl_core.keys import END_NAMES, Key, as_key, as_path, join
from rl_core.specs import Categorical, OneHot, TensorSpec
from rl_core.testing.kit import Kit
from rl_core.testing.replay import assert_same
from rl_marl.groups import check_marl_grouping

__all__ = ["GroupKit"]


class GroupKit(Kit):
    """Checks of an environment with groups of agents, batched or not.

    Attributes:
        steps: how many random steps the checks take; enough for a few episodes to end, and for agents to die, finds
            more.
    """

    steps: ClassVar[int] = 30

    def make_env(self) -> EnvBase:
        """A new environment with a ``group_map``; to be written by the subclass."""
        raise NotImplementedError("define make_env(self) in your subclass of GroupKit")

    def make_regrouped(self, group_map: dict[str, list[str]]) -> EnvBase | None:
        """The same environment with another group map; None where it takes none, which leaves one check out."""
        return None

    # ---------------------------------------------------------------- walks
    @contextmanager
    def seeded(self, seed: int = 0, env: EnvBase | None = None) -> Iterator[EnvBase]:
        """A new environment with a seed, closed afterwards."""
        subject = self.make_env() if env is None else env
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            subject.set_seed(seed)
            try:
                yield subject
            finally:
                subject.close()

    def walk(
        self, env: EnvBase, actions: Sequence[TensorDictBase] | None = None, start: TensorDictBase | None = None
    ) -> Iterator[TensorDictBase]:
        """The stepped TensorDicts of random legal steps (or of these actions), through every reset, one by one."""
        td = env.reset() if start is None else start
        for t in range(self.steps):
            td = _draw(env, td, t) if actions is None else td.update(actions[t])
            stepped, td = env.step_and_maybe_reset(td)
            yield stepped.clone()

    def rows(self, seed: int = 0) -> Iterator[tuple[str, TensorDictBase]]:
        """A reset, then root and "next" of every step of a walk, each with words for where it lies."""
        with self.seeded(seed) as env:
            td = env.reset()
            yield "the reset", td
            for t, step in enumerate(self.walk(env, start=td)):
                yield f"step {t}", step
                yield f"step {t}, under 'next'", step.get("next")

    def groups(self) -> tuple[dict[str, list[str]], torch.Size]:
        """The group map and the batch size."""
        with self.seeded() as env:
            return _group_map(env), env.batch_size

    # ---------------------------------------------------------------- grouping and layout
    def test_the_group_map_puts_every_agent_into_one_group(self) -> None:
        """A dict of lists, without empty groups and without an agent twice."""
        groups, _ = self.groups()
        names = [agent for members in groups.values() for agent in members]
        try:
            check_marl_grouping(groups, list(dict.fromkeys(names)))
        except ValueError as error:
            raise AssertionError(f"the group_map is no grouping: {error}") from error

    def test_the_specs_have_the_groups_and_their_sizes(self) -> None:
        """Every group has an action; every leaf under a group has shape ``[*B, n, ...]``."""
        with self.seeded() as env:
            groups = _group_map(env)
            specs = _all_leaves(env)
            for group, members in groups.items():
                found = {key for key in leaf_specs(env.full_action_spec) if as_path(key)[0] == group}
                assert found, f"the group {group!r} of the group_map has no entry in the action spec"
                wanted = (*env.batch_size, len(members))
                for key, spec in specs.items():
                    if as_path(key)[0] == group:
                        lead = tuple(spec.shape[: len(wanted)])
                        assert lead == wanted, (
                            f"the spec of {key!r} has shape {tuple(spec.shape)}; the group {group!r} has "
                            f"{len(members)} agents, so it begins with {wanted}"
                        )

    def test_every_entry_of_a_group_has_the_agent_dimension(self) -> None:
        """The group's TensorDict has batch size ``[*B, n]``, at the root and under "next"."""
        groups, batch = self.groups()
        for where, data in self.rows():
            for group, members in groups.items():
                rows, wanted = data.get(group, None), torch.Size([*batch, len(members)])
                assert isinstance(rows, TensorDictBase), f"{where}: there is no TensorDict of the group {group!r}"
                found = rows.batch_size
                assert found == wanted, (
                    f"{where}: the TensorDict of {group!r} has batch size {list(found)}, not {list(wanted)} ([*B, n])"
                )

    def test_what_it_writes_is_what_its_specs_say(self) -> None:
        """Every entry declared and every declared one there; values legal, each at its own step."""
        with self.seeded() as env, checked_mode():
            wanted = _expected(env)
            for t, step in enumerate(self.walk(env)):
                found = {as_key(as_path(key)): step.get(key) for key in step.keys(True, True)}
                assert found.keys() == wanted.keys(), (
                    f"step {t} and the specs differ in their entries: {sorted(map(str, found.keys() ^ wanted.keys()))}"
                )
                for key, value in found.items():
                    spec = wanted[key]
                    same = not isinstance(value, Tensor) or (value.shape == spec.shape and value.dtype == spec.dtype)
                    assert same, f"step {t}: {key!r} is {value.dtype} {list(value.shape)}, its spec is {spec}"
                    legal = key in env.action_keys or spec.is_in(value)
                    assert legal, f"step {t}: {key!r} is not in its spec. {spec.explain(value)}"
            if not _mask_keys(env, "action_mask"):  # a mask is that of the present step; check_env_specs looks back
                check_env_specs(env)

    # ---------------------------------------------------------------- ends
    def test_done_follows_from_the_other_flags_at_every_level(self) -> None:
        """``done = terminated | truncated``, bool, at the root and in every group that has end flags."""
        with self.seeded() as env:
            prefixes = [(), *((group,) for group in _group_map(env) if _has_ends(env, group))]
        for where, data in self.rows():
            for prefix in prefixes:
                done, terminated, truncated = (data.get((*prefix, name), None) for name in END_NAMES)
                key = as_key((*prefix, "done"))
                assert done is not None and terminated is not None, f"{where}: {key!r} or its 'terminated' is missing"
                assert done.dtype == terminated.dtype == torch.bool, f"{where}: the end flags of {key!r} are not bool"
                wanted = terminated if truncated is None else terminated | truncated
                assert torch.equal(done, wanted), f"{where}: {key!r} is not terminated | truncated"

    def test_an_episode_and_its_agents_end_together(self) -> None:
        """Where all agents are done the root is; where the root is done, so is every agent: no trace runs on."""
        with self.seeded() as env:
            flagged = [group for group in _group_map(env) if _has_ends(env, group)]
            everyone = len(flagged) == len(_group_map(env))
            for t, step in enumerate(self.walk(env)):
                data = step.get("next")
                root = data.get("done").reshape(env.batch_size)
                ended = [data.get((group, "done")).flatten(len(env.batch_size)).all(-1) for group in flagged]
                for group, all_ended in zip(flagged, ended, strict=True):
                    assert bool((all_ended | ~root).all()), (
                        f"step {t}: the root is done, but agents of {group!r} are not; their episode is cut, so they "
                        "are truncated"
                    )
                if everyone and ended:
                    over = torch.stack(ended).all(0)
                    assert bool((root | ~over).all()), f"step {t}: every agent is done, but the root is not"

    def test_agents_that_have_ended_stay_as_they_are_and_earn_nothing(self) -> None:
        """Flags move only with a new life (the mask is True again); rewards of dead rows are 0."""
        with self.seeded() as env:
            flagged = [group for group in _group_map(env) if _has_ends(env, group)]
            for t, step in enumerate(self.walk(env)):
                for group in flagged:
                    self._check_dead(env, step, group, t)

    def _check_dead(self, env: EnvBase, step: TensorDictBase, group: str, t: int) -> None:
        rows, following = step.get(group), step.get(("next", group))
        dead = rows.get("done").squeeze(-1)
        mask, revived = rows.get("mask", None), following.get("mask", None)
        dead = dead if mask is None else dead & ~mask
        reward = following.get("reward", None)
        if reward is not None:
            earned = reward[dead]
            assert not earned.any(), f"step {t}: an agent of {group!r} that has ended earns {earned.flatten().tolist()}"
        still = dead if revived is None else dead & ~revived
        for name in END_NAMES:
            before, after = rows.get(name, None), following.get(name, None)
            if before is not None and after is not None:
                assert torch.equal(before[still], after[still]), (
                    f"step {t}: {(group, name)!r} of an agent that has ended changes from "
                    f"{before[still].flatten().tolist()} to {after[still].flatten().tolist()}"
                )

    # ---------------------------------------------------------------- masks
    def test_masks_are_bool_and_of_their_shape(self) -> None:
        """``(group, "mask")`` [*B, n]; ``(group, "action_mask")`` [*B, n, K] for K choices."""
        groups, batch = self.groups()
        with self.seeded() as env:
            choices = {group: _choices(env, group) for group in groups}
        for where, data in self.rows():
            for group, members in groups.items():
                shapes = {"mask": (*batch, len(members)), "action_mask": (*batch, len(members), choices[group])}
                for name, wanted in shapes.items():
                    mask = data.get((group, name), None)
                    if mask is not None:
                        key = (group, name)
                        assert mask.dtype == torch.bool, f"{where}: the mask {key!r} is {mask.dtype}, not bool"
                        assert tuple(mask.shape) == wanted, (
                            f"{where}: the mask {key!r} has shape {tuple(mask.shape)}, not {wanted}"
                        )

    def test_no_row_of_an_action_mask_forbids_everything(self) -> None:
        """Rows of agents that are away or wait included: a masked distribution is made for all of them."""
        groups, _ = self.groups()
        for where, data in self.rows():
            for group in groups:
                mask = data.get((group, "action_mask"), None)
                if mask is not None:
                    assert bool(mask.any(-1).all()), f"{where}: a row of {(group, 'action_mask')!r} forbids everything"

    def test_random_actions_are_what_the_masks_allow(self) -> None:
        """Each at its own step."""
        with self.seeded() as env:
            for t, step in enumerate(self.walk(env)):
                for group in _group_map(env):
                    mask, spec = step.get((group, "action_mask"), None), env.full_action_spec.get((group, "action"))
                    if mask is None or not isinstance(spec, (Categorical, OneHot)):
                        continue
                    number = spec.to_categorical(step.get((group, "action"))) - spec.start
                    allowed = mask.gather(-1, number.long().unsqueeze(-1))
                    assert bool(allowed.all()), f"step {t}: a random action of {group!r} is not allowed by its mask"

    def test_whoever_has_ended_does_not_act_and_somebody_does(self) -> None:
        """``mask`` is False where ``done`` is True; while the episode goes on, some agent's mask is True."""
        with self.seeded() as env:
            groups, batch = _group_map(env), env.batch_size
        masked = [group for group in groups if as_key((group, "mask")) in env.observation_keys]
        for where, data in self.rows():
            for group in masked:
                done = data.get((group, "done"), None)
                if done is not None:
                    both = data.get((group, "mask")) & done.squeeze(-1)
                    assert not both.any(), f"{where}: an agent of {group!r} has ended, but its mask says that it acts"
            if masked and len(masked) == len(groups):
                acting = torch.stack([data.get((group, "mask")).any(-1) for group in masked]).any(0)
                over = data.get("done").reshape(batch)
                assert bool((acting | over).all()), f"{where}: the episode goes on, but nobody acts"

    # ---------------------------------------------------------------- order and seeds
    def test_another_order_of_a_groups_agents_only_permutes_its_rows(self) -> None:
        """The same seed and the same agents' actions; see :meth:`make_regrouped`."""
        groups, batch = self.groups()
        other = self.make_regrouped({group: members[::-1] for group, members in groups.items()})
        if other is None:
            return
        with self.seeded() as env:
            steps = list(self.walk(env))
            keys = env.action_keys
        flipped = [_flip(step.select(*keys), groups, len(batch)) for step in steps]
        with self.seeded(env=other) as env:
            for t, (found, step) in enumerate(zip(self.walk(env, flipped), steps, strict=True)):
                assert_same(found, _flip(step, groups, len(batch)), f"step {t} with every group's agents reversed")

    def test_the_same_seed_gives_the_same_trajectory(self) -> None:
        """Of every agent."""
        walks = []
        for _ in range(2):
            with self.seeded(3) as env:
                walks.append(list(self.walk(env)))
        for t, (found, expected) in enumerate(zip(*walks, strict=True)):
            assert_same(found, expected, f"step {t} of a second environment with the same seed")


def _group_map(env: EnvBase) -> dict[str, list[str]]:
    groups = getattr(env, "group_map", None)
    assert isinstance(groups, Mapping) and groups, (
        f"{type(env).__name__} has no group_map: a dict from each group's name to the names of its agents, in order"
    )
    return {str(group): list(members) for group, members in groups.items()}


def _draw(env: EnvBase, td: TensorDictBase, t: int) -> TensorDictBase:
    """Random actions that do not touch the generator an environment may draw from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + t)
        return env.rand_action(td)


def _all_leaves(env: EnvBase) -> dict[Key, TensorSpec]:
    parts = (env.observation_spec, env.full_action_spec, env.full_reward_spec, env.full_done_spec)
    return {key: spec for part in parts for key, spec in leaf_specs(part).items()}


def _expected(env: EnvBase) -> dict[Key, TensorSpec]:
    """Every entry of a step, by its key, and its spec."""
    carried = {**leaf_specs(env.observation_spec), **leaf_specs(env.full_done_spec)}
    ahead = {**carried, **leaf_specs(env.full_reward_spec)}
    root = {**carried, **leaf_specs(env.full_action_spec), **leaf_specs(env.state_spec)}
    return {**root, **{join("next", key): spec for key, spec in ahead.items()}}


def _has_ends(env: EnvBase, group: str) -> bool:
    return join(group, "done") in env.done_keys


def _mask_keys(env: EnvBase, name: str) -> list[Key]:
    return [key for key in env.observation_keys if as_path(key)[-1] == name]


def _choices(env: EnvBase, group: str) -> int | None:
    spec = leaf_specs(env.full_action_spec).get((group, "action"))
    return spec.n if isinstance(spec, (Categorical, OneHot)) else None


def _flip(data: TensorDictBase, groups: Mapping[str, Sequence[str]], dim: int) -> TensorDictBase:
    """The data with the agents of every group in reverse order."""

    def reverse(leaf: Tensor) -> Tensor:
        return leaf.flip(dim)

    flipped: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, TensorDictBase) and key in ("next", *groups):
            flipped[key] = value.apply(reverse) if key in groups else _flip(value, groups, dim)
        else:
            flipped[key] = value
    return TensorDict(flipped, batch_size=data.batch_size)
