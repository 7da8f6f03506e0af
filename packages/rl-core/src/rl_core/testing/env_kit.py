"""EnvKit: what every environment must get right.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyEnv(EnvKit):
        def make_env(self):
            return MyEnv()
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.envs.action_masks import action_leaves, legal_action_specs
from rl_core.envs.base import EnvBase
from rl_core.envs.check import check_env_specs
from rl_core.envs.tensor_env import TensorEnv
from rl_core.errors import EnvError
from rl_core.keys import join
from rl_core.testing.kit import Kit, since
from rl_core.testing.replay import assert_same, draw_actions, put_action, rollout_of, start, steps_of

__all__ = ["EnvKit"]


class EnvKit(Kit):
    """Checks of an environment, single, batched or stateless.

    Attributes:
        steps: how many steps the checks take; enough for a few episodes to end finds more.
        random_start: whether first observations depend on the seed.
        deterministic: whether a step follows from the state and the action alone.
        picklable: whether the environment promises to survive pickling, state included.
    """

    steps: ClassVar[int] = 30
    random_start: ClassVar[bool] = True
    deterministic: ClassVar[bool] = True
    picklable: ClassVar[bool] = False

    def make_env(self) -> EnvBase:
        """A new environment; to be written by the subclass."""
        raise NotImplementedError("define make_env(self) in your subclass of EnvKit")

    @contextmanager
    def seeded(self, seed: int = 0) -> Iterator[EnvBase]:
        """A new environment with a seed, closed afterwards."""
        env = self.make_env()
        try:
            env.set_seed(seed)
            yield env
        finally:
            env.close()

    def trajectory(self, seed: int = 0) -> list[TensorDictBase]:
        """A seeded walk with the actions that all walks share."""
        with self.seeded(seed) as env:
            td = start(env)
            return steps_of(env, td, draw_actions(env, self.steps, td.batch_size))

    # ---------------------------------------------------------------- specs and layout
    def test_what_it_writes_is_what_its_specs_say(self) -> None:
        """Present, of the dtype and shape, legal; and nothing undeclared."""
        with self.seeded() as env:
            check_env_specs(env, seed=0)
            if not env.batch_locked:
                check_env_specs(env, tensordict=TensorDict({}, batch_size=[3], device=env.device))

    def test_every_value_of_a_rollout_is_legal(self) -> None:
        """Through resets, and up to the first end; a simulator that resets itself has lost its last observations."""
        with self.seeded() as env:
            size = start(env).batch_size
            for on in (True, False):
                data = env.rollout(self.steps, break_when_any_done=not on, tensordict=self._request(env))
                where = "a rollout through resets" if on else "a rollout up to the first end"
                full, found = torch.Size([*size, data.shape[-1]]), data.batch_size
                assert found == full, f"{where} has batch size {tuple(found)}, not {tuple(full)} ([*B, T])"
                assert data.names[-1] == "time", f"{where} names its last dimension {data.names[-1]!r}, not 'time'"
                assert data.shape[-1] == self.steps or not on, f"{where} stopped after {data.shape[-1]} steps"
                early = data.get(join("next", env.end_groups[0].done)).movedim(len(size), 0)[:-1]
                assert on or not early.any(), f"{where} went on after an end"
                self._check_values(env, data, where)

    def _request(self, env: EnvBase) -> TensorDictBase | None:
        """What a rollout starts from: an environment of any batch size gets three rows."""
        return None if env.batch_locked else TensorDict({}, batch_size=[3], device=env.device)

    def _check_values(self, env: EnvBase, data: TensorDictBase, where: str) -> None:
        specs = [(key, env.observation_spec[key]) for key in env.observation_keys]
        ahead = [(join("next", key), env.full_reward_spec[key]) for key in env.reward_keys]
        ahead += [] if env.auto_reset else [(join("next", key), spec) for key, spec in specs]
        for t, row in enumerate(data.unbind(data.ndim - 1)):
            for key, spec in (*specs, *ahead):
                value = row.get(key)
                assert spec.is_in(value), f"{key!r} at step {t} of {where} is not in its spec. {spec.explain(value)}"

    def test_random_actions_are_legal(self) -> None:
        """In their spec one by one, and as a whole rollout."""
        with self.seeded() as env:
            data = env.rollout(self.steps, break_when_any_done=False)
            leaves = action_leaves(env)
            for row in data.unbind(-1):
                for key, spec in legal_action_specs(leaves, row, () if env.batch_locked else row.batch_size):
                    assert spec.is_in(row.get(key)), f"the random actions {key!r} are not in {spec}"
            if all(mask is None for _, _, mask in leaves):
                for key, spec, _ in leaves:
                    assert spec.is_in(data.get(key)), f"the random actions {key!r} of a rollout are not in {spec}"

    def test_every_end_flag_is_there_and_done_follows_from_the_others(self) -> None:
        """``done = terminated | truncated`` in every group, bool, of the done spec's shape."""
        with self.seeded() as env:
            groups = env.end_groups
        for step in self.trajectory():
            for data in (step, step.get("next")):
                for group in groups:
                    flags = [data.get(key, None) for key in (group.done, group.terminated)]
                    assert all(flag is not None and flag.dtype == torch.bool for flag in flags), (
                        f"{group.done!r} and {group.terminated!r} must be bool at the root and under 'next'"
                    )
                    wanted = flags[1] if group.truncated is None else flags[1] | data.get(group.truncated)
                    assert torch.equal(flags[0], wanted), f"{group.done!r} is not terminated | truncated"

    def test_nothing_has_ended_after_a_reset(self) -> None:
        """In any group, unless the environment says that it may."""
        with self.seeded() as env:
            td = start(env)
            for key in env.done_keys:
                flag = td.get(key, None)
                assert flag is not None, f"the reset wrote no {key!r}"
                assert env.allow_done_after_reset or not flag.any(), f"{key!r} is set right after a reset"

    def test_rewards_exist_only_under_next(self) -> None:
        """A reward is the result of an action."""
        with self.seeded() as env:
            td = start(env)
            for key in set(env.reward_keys) - set(env.state_keys):
                assert td.get(key, None) is None, f"the reset wrote the reward {key!r}"
                assert env.rand_step(td).get(join("next", key), None) is not None, f"a step wrote no reward {key!r}"

    def test_a_step_returns_what_it_was_given(self) -> None:
        """The same TensorDict with its results under "next"; what stands at the root is left alone."""
        with self.seeded() as env:
            td = start(env)
            put_action(env, td, draw_actions(env, 1, td.batch_size)[0])
            before = td.clone()
            stepped = env.step(td)
            assert stepped is td, f"step returned another {type(stepped).__name__} than the one it was given"
            assert_same(td, before, "the root after a step")
            added = {str(key) for key, _ in td.items()} - {str(key) for key, _ in before.items()} - {"next"}
            assert not added, f"a step wrote {sorted(added)} at the root; its results belong under 'next'"

    def test_a_rollout_is_the_same_as_its_steps(self) -> None:
        """With the same seed and actions, through every end; time is the last dimension."""
        with self.seeded() as env:
            actions = draw_actions(env, self.steps, env.batch_size)
            data = rollout_of(env, actions)
            assert data.names[-1] == "time", f"the last dimension of a rollout is named {data.names[-1]!r}, not 'time'"
        with self.seeded() as env:
            steps = steps_of(env, env.reset(), actions)
        for t, (row, step) in enumerate(zip(data.unbind(data.ndim - 1), steps, strict=True)):
            assert_same(row, step, f"step {t} of a rollout against step_and_maybe_reset")

    # ---------------------------------------------------------------- memory
    def test_observations_share_no_memory_with_each_other(self) -> None:
        """Writing into "next" leaves the root alone, and the next step leaves both."""
        with self.seeded() as env:
            td = start(env)
            td = env.step(put_action(env, td, draw_actions(env, 1, td.batch_size)[0]))
            before = td.clone()
            following = env.step_mdp(td)
            env.step(put_action(env, following, draw_actions(env, 1, td.batch_size, seed=1)[0]))
            assert_same(td, before, "an earlier step after a later one")
            for key in env.observation_keys:
                value = td.get(join("next", key))
                if isinstance(value, Tensor):
                    value.zero_()
                    root = td.get(key)
                    assert torch.equal(root, before.get(key)), f"('next', {key!r}) and {key!r} share memory"

    def test_the_last_observation_of_an_episode_stays_under_next(self) -> None:
        """The reset that follows does not write over it, nor does a simulator put the next episode's first one there.

        The second is seen where first observations are random.
        """
        with self.seeded() as env:
            td, ends, told = start(env), 0, 0
            for t, action in enumerate(draw_actions(env, self.steps, td.batch_size)):
                stepped = env.step(put_action(env, td, action))
                kept, rows = stepped.clone(), stepped.get(join("next", env.end_groups[0].done))
                td = env.maybe_reset(env.step_mdp(stepped))
                assert_same(stepped, kept, f"step {t} after the reset that followed")
                ends += int(rows.any())
                told += int(rows.any() and self._differs(env, stepped.get("next"), td, rows))
            assert not self.random_start or told or not ends, (
                "wherever an episode ends, the observation under 'next' is the first one of the next episode; write "
                "the last one there, or construct the environment with auto_reset=True"
            )

    def _differs(self, env: EnvBase, last: TensorDictBase, first: TensorDictBase, rows: Tensor) -> bool:
        """Whether an observation of the rows that ended is another than that of the same rows after the reset."""
        ended = rows.reshape(*last.batch_size, -1).any(-1)
        pairs = [(last.get(key), first.get(key)) for key in env.observation_keys]
        return any(not isinstance(a, Tensor) or not torch.equal(a[ended], b[ended]) for a, b in pairs)

    # ---------------------------------------------------------------- resets
    def test_a_reset_of_one_row_leaves_the_others_alone(self) -> None:
        """Their values at once, and their simulators in the step that follows."""
        with self.seeded() as env, self.seeded() as twin:
            td = start(env)
            twin.set_seed(0)  # the generator may be one that both draw from
            other = start(twin)
            if not td.batch_dims or td.batch_size[0] < 2:
                return
            actions = draw_actions(env, 3, td.batch_size)
            td, other = self._advance(env, td, actions[:2]), self._advance(twin, other, actions[:2])
            mask = torch.zeros(*td.batch_size, 1, dtype=torch.bool, device=td.device)
            mask[1] = True
            keep = [row for row in range(td.batch_size[0]) if row != 1]
            fresh = env.reset(td.clone().set("_reset", mask))
            assert fresh.get("_reset", None) is None, "reset left the entry '_reset' behind"
            assert_same(fresh, td, "after a reset of row 1, another row", pick=lambda value: value[keep])
            assert not fresh.get(env.end_groups[0].done)[1].any(), "row 1 is done right after its reset"
            if self.deterministic:
                stepped = env.step(put_action(env, fresh, actions[2]))
                wanted = twin.step(put_action(twin, other, actions[2]))
                assert_same(
                    stepped, wanted, "a step after a reset of row 1, another row", pick=lambda value: value[keep]
                )

    def _advance(self, env: EnvBase, td: TensorDictBase, actions: list[TensorDictBase]) -> TensorDictBase:
        for action in actions:
            td = env.step_mdp(env.step(put_action(env, td, action)))
        return td

    @since("1.0")
    def test_rows_stepped_as_one_have_the_numbers_of_each(self) -> None:
        """To the last bit, where a ``TensorEnv`` has a ``stack_key``: 67 rows, which are no multiple of a vector."""
        with self.seeded() as env:
            if not isinstance(env, TensorEnv) or env.batch_locked:
                return
            if "stack_key" not in vars(type(env)) or env.stack_key is None:
                return
            td = env.reset(TensorDict({}, batch_size=[67], device=env.device))
            for step in steps_of(env, td, draw_actions(env, min(self.steps, 10), td.batch_size)):
                entries = {name: value for name, value in step.items() if name != "next"}
                whole = env._step_entries(entries)
                for index in range(67):
                    alone = env._step_entries({name: value[index] for name, value in entries.items()})
                    for name, value in alone.items():
                        assert torch.equal(whole[name][index], value), (
                            f"{name!r} of row {index} is {whole[name][index].tolist()} when 67 rows are stepped as one "
                            f"and {value.tolist()} when it is stepped alone; stack_key promises the same bits"
                        )

    # ---------------------------------------------------------------- seeds
    def test_the_same_seed_gives_the_same_trajectory(self) -> None:
        """Observations, rewards and ends."""
        for t, (found, expected) in enumerate(zip(self.trajectory(3), self.trajectory(3), strict=True)):
            assert_same(found, expected, f"step {t} of a second environment with the same seed")

    def test_another_seed_gives_another_trajectory(self) -> None:
        """Where first observations are random."""
        if not self.random_start:
            return
        first, second = (self.trajectory(seed)[0].get("next") for seed in (3, 4))
        keys = [key for key in first.keys(True, True) if isinstance(first.get(key), Tensor)]
        assert any(not torch.equal(first.get(key), second.get(key)) for key in keys), (
            "the seeds 3 and 4 give one trajectory"
        )

    def test_the_seed_of_torch_is_enough(self) -> None:
        """Without ``set_seed``, ``torch.manual_seed`` reproduces the first observations."""
        resets = []
        for _ in range(2):
            env = self.make_env()
            torch.manual_seed(5)
            resets.append(start(env))
            env.close()
        assert_same(resets[1], resets[0], "a reset after torch.manual_seed")

    def test_set_seed_returns_the_next_seed_of_the_chain(self) -> None:
        """Always the same one, and the seed itself where it is static."""
        with self.seeded() as env:
            following, again, static = env.set_seed(7), env.set_seed(7), env.set_seed(7, static_seed=True)
            assert isinstance(following, int) and following == again != 7, (
                f"set_seed(7) must return the next seed of a fixed chain; it gave {following}, then {again}"
            )
            assert static == 7, f"set_seed(7, static_seed=True) must return 7, not {static}"

    # ---------------------------------------------------------------- life
    def test_closing_twice_is_harmless_and_a_closed_environment_says_so(self) -> None:
        """An EnvError, not a crash of the simulator."""
        env = self.make_env()
        env.reset()
        env.close()
        env.close()
        try:
            env.reset()
        except EnvError:
            return
        raise AssertionError("reset of a closed environment raised no EnvError")

    def test_pickling_keeps_the_state_where_it_is_promised(self) -> None:
        """The copy goes on as the original does."""
        if not self.picklable:
            return
        with self.seeded() as env:
            td = self._advance(env, start(env), draw_actions(env, 2, start(env).batch_size))
            copy = pickle.loads(pickle.dumps(env))
            action = draw_actions(env, 1, td.batch_size, seed=1)[0]
            expected = env.step(put_action(env, td.clone(), action))
            assert_same(
                copy.step(put_action(copy, td.clone(), action)), expected, "a step of the unpickled environment"
            )
            copy.close()
