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

from rl_core.envs.base import EnvBase
from rl_core.envs.check import check_env_specs
from rl_core.errors import EnvError
from rl_core.keys import join
from rl_core.testing.kit import Kit
from rl_core.testing.replay import assert_same, draw_actions, rollout_of, start, steps_of

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

    def test_random_actions_are_legal(self) -> None:
        """In their spec one by one, and as a whole rollout."""
        with self.seeded() as env:
            data = env.rollout(self.steps, break_when_any_done=False)
            spec = env.full_action_spec
            for key in env.action_keys:
                assert spec[key].is_in(data.get(key)), f"the random actions {key!r} are not in {spec[key]}"

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

    def test_rewards_exist_only_under_next(self) -> None:
        """A reward is the result of an action."""
        with self.seeded() as env:
            td = start(env)
            for key in set(env.reward_keys) - set(env.state_keys):
                assert td.get(key, None) is None, f"the reset wrote the reward {key!r}"
                assert env.rand_step(td).get(join("next", key), None) is not None, f"a step wrote no reward {key!r}"

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
            td = env.step(td.update(draw_actions(env, 1, td.batch_size)[0]))
            before = td.clone()
            following = env.step_mdp(td)
            env.step(following.update(draw_actions(env, 1, td.batch_size, seed=1)[0]))
            assert_same(td, before, "an earlier step after a later one")
            for key in env.observation_keys:
                value = td.get(join("next", key))
                if isinstance(value, Tensor):
                    value.zero_()
                    root = td.get(key)
                    assert torch.equal(root, before.get(key)), f"('next', {key!r}) and {key!r} share memory"

    # ---------------------------------------------------------------- resets
    def test_a_reset_of_one_row_leaves_the_others_alone(self) -> None:
        """Their values at once, and their simulators in the step that follows."""
        with self.seeded() as env, self.seeded() as twin:
            td, other = start(env), start(twin)
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
                stepped, wanted = env.step(fresh.update(actions[2])), twin.step(other.update(actions[2]))
                assert_same(
                    stepped, wanted, "a step after a reset of row 1, another row", pick=lambda value: value[keep]
                )

    def _advance(self, env: EnvBase, td: TensorDictBase, actions: list[TensorDictBase]) -> TensorDictBase:
        for action in actions:
            td = env.step_mdp(env.step(td.update(action)))
        return td

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
            assert env.set_seed(7) == env.set_seed(7) != 7, "set_seed(7) must return the next seed of a fixed chain"
            assert env.set_seed(7, static_seed=True) == 7

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
            expected = env.step(td.clone().update(action))
            assert_same(copy.step(td.clone().update(action)), expected, "a step of the unpickled environment")
            copy.close()
