"""TransformKit: what every transform must get right.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyTransform(TransformKit):
        def make_transform(self):
            return MyTransform()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from tensordict import TensorDictBase

from rl_core.envs.base import EnvBase
from rl_core.envs.check import check_env_specs
from rl_core.errors import EnvError
from rl_core.testing.kit import Kit
from rl_core.testing.replay import assert_same, draw_actions, rollout_of, steps_of
from rl_core.testing.toy_envs import ArrayCountingEnv
from rl_core.transforms.base import Transform
from rl_core.transforms.transformed_env import TransformedEnv, supports_rows

__all__ = ["TransformKit"]


class TransformKit(Kit):
    """Checks of a transform, in an environment of three rows whose episodes end after 3, 5 and 7 steps.

    Attributes:
        steps: how many steps the checks take.
        offline: whether :meth:`Transform.forward` on stored steps gives what the environment would have given.
    """

    steps: ClassVar[int] = 16
    offline: ClassVar[bool] = False

    def make_transform(self) -> Transform:
        """A new transform; to be written by the subclass."""
        raise NotImplementedError("define make_transform(self) in your subclass of TransformKit")

    def make_env(self) -> EnvBase:
        """The environment underneath, batch size [3], with steps that follow from the actions alone."""
        return ArrayCountingEnv(length=[3, 5, 7], batch_size=[3])

    @contextmanager
    def transformed(self) -> Iterator[TransformedEnv]:
        """An environment seen through a new transform."""
        env = TransformedEnv(self.make_env(), self.make_transform())
        try:
            yield env
        finally:
            env.close()

    # ---------------------------------------------------------------- specs
    def test_specs_say_what_is_written(self) -> None:
        """Every entry declared, every declaration kept, actions on their way in included."""
        with self.transformed() as env:
            check_env_specs(env, seed=0)

    def test_a_fake_step_has_the_keys_and_dtypes_of_a_real_one(self) -> None:
        """What buffers and networks are allocated from."""
        with self.transformed() as env:
            real, fake = env.rand_step(), env.fake_tensordict()
            for key in env.rollout(1).keys(True, True):
                made = fake.get(key, None)
                assert made is not None, f"fake_tensordict lacks {key!r}"
                assert getattr(made, "dtype", None) == getattr(real.get(key), "dtype", None), (
                    f"{key!r} has another dtype"
                )

    # ---------------------------------------------------------------- rows
    def test_a_reset_of_one_row_leaves_the_others_alone(self) -> None:
        """Rows 0 and 2 keep every value and go on as if nothing had been reset; row 1 begins anew."""
        with self.transformed() as env, self.transformed() as twin, self.transformed() as begun:
            td, other, first = env.reset(), twin.reset(), begun.reset()
            actions = draw_actions(env, 4, td.batch_size)
            for action in actions[:2]:
                td = env.step_mdp(env.step(td.update(action)))
                other = twin.step_mdp(twin.step(other.update(action)))
            fresh = env.reset(td.clone().set("_reset", torch.tensor([[False], [True], [False]])))
            others, one = [0, 2], [1]
            assert_same(fresh, td, "after a reset of row 1, another row", pick=lambda value: value[others])
            assert_same(fresh, first, "row 1 after its reset", pick=lambda value: value[one])
            for action in actions[2:]:
                stepped, wanted, anew = (
                    e.step(t.update(action)) for e, t in ((env, fresh), (twin, other), (begun, first))
                )
                assert_same(stepped, wanted, "a step after a reset of row 1, another row", pick=lambda v: v[others])
                assert_same(stepped, anew, "a step after a reset of row 1, row 1", pick=lambda v: v[one])
                fresh, other, first = env.step_mdp(stepped), twin.step_mdp(wanted), begun.step_mdp(anew)

    def test_rows_of_columns_are_the_same_as_tensordicts(self) -> None:
        """A rollout on columns against ``step_and_maybe_reset``, through ends at different times, twice over."""
        with self.transformed() as env, self.transformed() as twin:
            if not supports_rows(env):
                return
            actions = draw_actions(env, self.steps, env.batch_size)
            for again in range(2):
                data = rollout_of(env, actions)
                steps = steps_of(twin, twin.reset(), actions)
                for t, (row, step) in enumerate(zip(data.unbind(1), steps, strict=True)):
                    assert_same(row, step, f"step {t} on columns against TensorDicts (rollout {again})")

    def test_rows_of_a_single_environment_are_the_same_as_tensordicts(self) -> None:
        """The same without a batch."""
        with self.single() as env, self.single() as twin:
            if not supports_rows(env):
                return
            actions = draw_actions(env, self.steps, env.batch_size)
            data, steps = rollout_of(env, actions), steps_of(twin, twin.reset(), actions)
            for t, (row, step) in enumerate(zip(data.unbind(0), steps, strict=True)):
                assert_same(row, step, f"step {t} of a single environment on columns against TensorDicts")

    def make_single_env(self) -> EnvBase:
        """The environment underneath without a batch."""
        return ArrayCountingEnv(length=4)

    @contextmanager
    def single(self) -> Iterator[TransformedEnv]:
        """A single environment seen through a new transform."""
        env = TransformedEnv(self.make_single_env(), self.make_transform())
        try:
            yield env
        finally:
            env.close()

    # ---------------------------------------------------------------- stored data
    def test_stored_steps_give_what_the_environment_gave(self) -> None:
        """Online equals offline, for rows that end at different times, and for two batches one after the other."""
        if not self.offline:
            return
        raw_env = self.make_env()
        with self.transformed() as env:
            actions = draw_actions(env, self.steps, env.batch_size)
            online, raw = rollout_of(env, actions), rollout_of(raw_env, actions)
        raw_env.close()
        written = self._written(online, raw)
        assert written, "the transform writes nothing that the data did not have; set offline = False"
        assert_same(self.make_transform()(raw.clone()), online, "stored steps", keys=written)

    def _written(self, online: TensorDictBase, raw: TensorDictBase) -> list[tuple[str, ...]]:
        """The entries that differ between the environment with and without the transform."""
        found = []
        for key in online.keys(True, True):
            before, after = raw.get(key, None), online.get(key)
            same = before is not None and before.dtype == after.dtype and torch.equal(before, after)
            if not same:
                found.append((key,) if isinstance(key, str) else key)
        return found

    # ---------------------------------------------------------------- state and ownership
    def test_a_saved_state_goes_on_in_another_transform(self) -> None:
        """``state_dict`` and ``load_state_dict``, after some steps."""
        with self.transformed() as env, self.transformed() as twin:
            actions = draw_actions(env, 6, env.batch_size)
            rollout_of(env, actions[:3])
            twin.transform.load_state_dict(env.transform.state_dict())
            found, expected = (steps_of(e, e.reset(), actions[3:]) for e in (twin, env))
            for t, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                assert_same(ours, theirs, f"step {t} after load_state_dict")

    def test_it_has_one_owner_and_a_clone_is_free(self) -> None:
        """A transform may carry state, so two environments cannot share one."""
        with self.transformed() as env:
            second = self.make_env()
            try:
                TransformedEnv(second, env.transform)
            except EnvError:
                pass
            else:
                raise AssertionError("a transform was accepted by a second environment")
            TransformedEnv(second, env.transform.clone()).rollout(3)
            second.close()
