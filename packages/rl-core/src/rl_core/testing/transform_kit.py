"""TransformKit: what every transform must get right.

A plugin's test file subclasses it and says how to make the subject::

    class TestMyTransform(TransformKit):
        def make_transform(self):
            return MyTransform()
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl_core.envs.base import EnvBase
from rl_core.envs.check import check_env_specs
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, join
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
        needs: the entries without which it cannot work, at the root or under "next"; None takes its ``in_keys``.
        statistics: the entries of its ``state_dict`` that learn from data, and stand still in evaluation; None takes
            all of them, () none (a state that belongs to the episodes under way).
    """

    steps: ClassVar[int] = 16
    offline: ClassVar[bool] = False
    needs: ClassVar[tuple[Key, ...] | None] = None
    statistics: ClassVar[tuple[str, ...] | None] = None

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

    def test_actions_reach_the_environment_legal(self) -> None:
        """What the policy may do, after the inverse, is what the environment underneath understands."""
        with self.transformed() as env:
            for action in draw_actions(env, self.steps, env.batch_size):
                inward = env.transform._inv_call(action.copy())
                for key in env.base.action_keys:
                    spec, value = env.base.full_action_spec[key], inward.get(key, None)
                    assert value is not None, f"the inverse wrote no {key!r} for the environment"
                    assert spec.is_in(value), (
                        f"a legal action became {key!r} outside of its spec. {spec.explain(value)}"
                    )

    def test_the_inverse_undoes_the_map(self) -> None:
        """Outwards and back, and for actions inwards and back; where the transform says ``invertible``."""
        raw_env = self.make_env()
        with self.transformed() as env:
            transform = env.transform
            if not transform.invertible:
                return
            actions = draw_actions(env, self.steps, env.batch_size)
            env.reset()
            raw = rollout_of(raw_env, draw_actions(raw_env, self.steps, env.batch_size))
            raw_env.close()
            for key in transform.in_keys:
                value = raw.get(key, raw.get(join("next", key), None))
                back = transform._inv_apply_transform(transform._apply_transform(value))
                self._assert_close(back, value, f"{key!r} mapped and mapped back")
            for key in transform.out_keys_inv:
                value = actions[0].get(key)
                back = transform._apply_transform(transform._inv_apply_transform(value))
                self._assert_close(back, value, f"the action {key!r} mapped inwards and back")

    def _assert_close(self, found: Tensor, expected: Tensor, what: str) -> None:
        found = found.to(expected.dtype)
        assert found.shape == expected.shape, f"{what} has shape {tuple(found.shape)}, not {tuple(expected.shape)}"
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), (
            f"{what} is {found.tolist()}, not {expected.tolist()}"
        )

    def test_a_missing_entry_is_named(self) -> None:
        """A KeyMissingError with the names of the transform and of the entry."""
        raw_env = self.make_env()
        with self.transformed() as env:
            stepped, raw = env.rand_step(), raw_env.rand_step()
            raw_env.close()
            name = type(env.transform).__name__
            for key in env.transform.in_keys if self.needs is None else self.needs:
                try:
                    env.transform._step(stepped.exclude("next", key), raw.get("next").exclude(key))
                except KeyMissingError as error:
                    text = str(error)
                    assert name in text and repr(key) in text, f"{text!r} names not both {name} and {key!r}"
                except KeyError as error:
                    raise AssertionError(f"{name} without {key!r} raised a bare KeyError: {error}") from error
                else:
                    raise AssertionError(f"{name} needs {key!r}, and said nothing where it was missing")

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
        """Online equals offline, for rows that end at different times."""
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

    def test_a_second_batch_of_stored_steps_goes_on_from_the_first(self) -> None:
        """Steps cut in two: the second part begins with what the first one wrote under "next" (or after its reset)."""
        if not self.offline:
            return
        raw_env = self.make_env()
        with self.transformed() as env:
            actions = draw_actions(env, self.steps, env.batch_size)
            online, raw = rollout_of(env, actions), rollout_of(raw_env, actions)
        raw_env.close()
        transform, cut = self.make_transform(), self.steps // 2
        parts = [raw[:, :cut].clone(), raw[:, cut:].clone()]
        parts[0] = transform(parts[0])
        for key in self._written(online, raw):
            if key[0] != "next" and raw.get(key, None) is None:
                held = torch.zeros_like(online.get(key)[:, cut:])
                held[:, 0] = online.get(key)[:, cut]
                parts[1].set(key, held)
        parts[1] = transform(parts[1])
        for n, (part, wanted) in enumerate(zip(parts, (online[:, :cut], online[:, cut:]), strict=True)):
            assert_same(part, wanted, f"part {n} of stored steps", keys=self._written(online, raw))

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

    def test_evaluation_freezes_the_statistics(self) -> None:
        """By every way in: steps, columns, and stored steps."""
        raw_env = self.make_env()
        with self.transformed() as env:
            actions = draw_actions(env, self.steps, env.batch_size)
            raw = rollout_of(raw_env, actions)
            raw_env.close()
            rollout_of(env, actions)
            env.eval()
            for what, act in (
                ("step", lambda: steps_of(env, env.reset(), actions)),
                ("rollout", lambda: rollout_of(env, actions)),
                ("forward", lambda: env.transform(raw) if self.offline else None),
            ):
                before = self._state(env.transform)
                act()
                moved = self._moved(before, self._state(env.transform))
                assert not moved, f"{', '.join(moved)} moved by {what} after eval()"

    def _state(self, transform: Transform) -> dict[str, Any]:
        """A copy of the statistics."""
        state = transform.state_dict()
        names = state if self.statistics is None else self.statistics
        return {name: copy.deepcopy(state[name]) for name in names}

    def _moved(self, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
        def same(a: Any, b: Any) -> bool:
            return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else bool(a == b)

        return [name for name, value in before.items() if name not in after or not same(value, after[name])]

    def test_a_clone_has_its_own_state(self) -> None:
        """What the clone does shows in the original neither now nor later."""
        with self.transformed() as env, self.transformed() as alone:
            actions = draw_actions(env, 6, env.batch_size)
            td, other = env.reset(), alone.reset()
            for action in actions[:2]:
                td = env.step_mdp(env.step(td.update(action)))
                other = alone.step_mdp(alone.step(other.update(action)))
            clone, second = env.transform.clone(), self.make_env()
            before = copy.deepcopy(dict(env.transform.state_dict()))
            cloned = TransformedEnv(second, clone)
            steps_of(cloned, cloned.reset(), draw_actions(cloned, 5, cloned.batch_size, seed=1))
            second.close()
            moved = self._moved(before, dict(env.transform.state_dict()))
            assert not moved, f"{', '.join(moved)} of the original moved with its clone"
            found, expected = steps_of(env, td, actions[2:]), steps_of(alone, other, actions[2:])
            for t, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                assert_same(ours, theirs, f"step {t} after its clone was used")

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
