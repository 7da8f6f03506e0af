import copy

import pytest
import torch

from rl_core import Compose, ContainerRunner, RowRunner, Transform, TransformedEnv, check_env_specs, supports_rows
from rl_core.errors import EnvError, KeyMissingError
from rl_core.specs import Unbounded
from rl_core.testing import ArrayCountingEnv, CountingEnv

KINDS = [CountingEnv, ArrayCountingEnv]


class Scale(Transform):
    """Multiplies; in another dtype if asked."""

    def __init__(self, factor=2.0, in_keys=("observation",), out_keys=None, dtype=torch.float32):
        super().__init__(in_keys=in_keys, out_keys=out_keys)
        self.factor, self.dtype = factor, dtype

    def _apply_transform(self, value):
        return value.to(self.dtype) * self.factor

    def transform_observation_spec(self, spec):
        for key, out_key in zip(self.in_keys, self.out_keys, strict=False):
            if spec.get(key, None) is not None:
                spec[out_key] = Unbounded(shape=spec[key].shape, dtype=self.dtype)
        return spec


class HalfAction(Transform):
    def __init__(self):
        super().__init__(in_keys_inv=["action"])

    def _inv_apply_transform(self, value):
        return value / 2


@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_resets_both_pass_through(kind):
    data = TransformedEnv(kind(length=2), Scale()).rollout(4, break_when_any_done=False)
    assert data["observation"].squeeze(-1).tolist() == [0, 2, 0, 2]
    assert data["next", "observation"].squeeze(-1).tolist() == [2, 4, 2, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_may_change_a_dtype_under_the_same_key(kind):
    env = TransformedEnv(kind(length=[2, 3], batch_size=[2]), Scale(dtype=torch.float64))
    check_env_specs(env)
    data = env.rollout(4, break_when_any_done=False)
    assert data["observation"].dtype is torch.float64
    assert data["observation"].squeeze(-1).tolist() == [[0, 2, 0, 2], [0, 2, 4, 0]]
    assert data["next", "observation"].squeeze(-1).tolist() == [[2, 4, 2, 4], [2, 4, 6, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_transforms_run_in_order_and_new_keys_appear(kind):
    env = TransformedEnv(kind(length=9), Compose(Scale(2.0), Scale(3.0, out_keys=["six"])))
    data = env.rollout(3)
    assert data["observation"].flatten().tolist() == [0, 2, 4] and data["six"].flatten().tolist() == [0, 6, 12]


@pytest.mark.parametrize("kind", KINDS)
def test_partial_resets_do_not_transform_other_rows_twice(kind):
    env = TransformedEnv(kind(length=9, batch_size=[3]), Scale())
    td = env.step_mdp(env.step(env.rand_action(env.reset())))
    td["_reset"] = torch.tensor([[False], [True], [False]])
    assert env.reset(td)["observation"].flatten().tolist() == [2, 0, 2]


class Recorder(CountingEnv):
    def _step(self, tensordict):
        self.seen = tensordict["action"].clone()
        return super()._step(tensordict)


def test_actions_pass_through_the_inverse_and_the_policys_own_stays():
    env = TransformedEnv(Recorder(), HalfAction())
    td = env.reset().set("action", torch.ones(1))
    env.step(td)
    assert env.base.seen.item() == 0.5 and td["action"].item() == 1.0


class ArrayRecorder(ArrayCountingEnv):
    def row_program(self, columns):
        program, self.seen = super().row_program(columns), []

        def step(t):
            self.seen.append(float(columns["action"][t].item()))
            program.step(t)

        return type(program)(step, program.reset)


def test_inverses_work_on_rows():
    env = TransformedEnv(ArrayRecorder(length=9), HalfAction())
    data = env.rollout(3, lambda observation: observation * 0 + 1)
    assert env.base.seen == [0.5, 0.5, 0.5] and (data["action"] == 1).all()


def test_rows_are_used_only_where_every_transform_has_them():
    assert supports_rows(TransformedEnv(ArrayCountingEnv(), Scale()))
    assert not supports_rows(TransformedEnv(ArrayCountingEnv(), lambda td: td))
    assert not supports_rows(TransformedEnv(CountingEnv(), Scale()))


def test_a_function_is_a_transform():
    env = TransformedEnv(ArrayCountingEnv(length=9), lambda td: td.set("twice", td["observation"] * 2))
    assert env.rollout(3)["next", "twice"].flatten().tolist() == [2, 4, 6]


def test_a_missing_entry_names_the_transform_and_the_cure():
    env = TransformedEnv(CountingEnv(), Scale(in_keys=["pixels"]))
    with pytest.raises(KeyMissingError, match=r"Scale needs 'pixels'.*'observation'"):
        env.step(env.rand_action(env.reset()))


def test_a_transform_has_one_owner():
    scale = Scale()
    TransformedEnv(CountingEnv(), scale)
    env = TransformedEnv(CountingEnv(), Scale())
    kept = env.transform
    with pytest.raises(EnvError, match=r"clone\(\)"):
        TransformedEnv(CountingEnv(), kept)
    TransformedEnv(CountingEnv(), kept.clone())
    copy.deepcopy(kept)


def test_append_wraps_a_bare_environment_and_extends_a_transformed_one():
    bare = CountingEnv(length=9)
    env = bare.append_transform(Scale())
    assert env is not bare and isinstance(env, TransformedEnv)
    assert env.append_transform(Scale(out_keys=["four"])) is env
    assert "four" in env.observation_spec
    assert env.rollout(2)["next", "four"].flatten().tolist() == [4, 8]


def test_insert_puts_a_transform_at_its_place():
    env = TransformedEnv(CountingEnv(length=9), Compose(Scale(2.0), Scale(5.0)))
    env.insert_transform(0, Scale(3.0))
    assert [t.factor for t in env.transform] == [3.0, 2.0, 5.0]
    assert env.rollout(1)["next", "observation"].item() == 30


def test_the_parent_is_the_environment_before_the_transform():
    env = TransformedEnv(CountingEnv(length=9), Compose(Scale(2.0), Scale(5.0)))
    parent = env.transform[1].parent
    assert parent.rollout(1)["next", "observation"].item() == 2
    assert env.transform[0].parent is env.base
    assert env.rollout(1)["next", "observation"].item() == 10


def test_specs_follow_the_environment_underneath():
    env = TransformedEnv(CountingEnv(), Scale())
    assert env.observation_spec.keys() == {"observation"}
    env.base.observation_spec = env.base.observation_spec.clone().update({"extra": Unbounded((1,))})
    assert "extra" in env.observation_spec


def test_attributes_of_the_environment_underneath_are_reachable():
    env = TransformedEnv(CountingEnv(length=7), Scale())
    assert env.length.item() == 7
    with pytest.raises(AttributeError):
        _ = env.nonsense


def test_nested_transformed_environments_compose():
    env = TransformedEnv(TransformedEnv(ArrayCountingEnv(length=9), Scale(2.0)), Scale(5.0))
    assert supports_rows(env) and env.rollout(2)["next", "observation"].flatten().tolist() == [10, 20]


def test_stored_data_pass_through_root_and_next():
    data = CountingEnv(length=9).rollout(3)
    out = Scale()(data.clone())
    assert out["observation"].flatten().tolist() == [0, 2, 4] and out["next", "observation"].flatten().tolist() == [
        2,
        4,
        6,
    ]


def test_state_travels_with_the_environment():
    class Counter(Transform):
        def __init__(self):
            super().__init__(in_keys=["observation"])
            self.register_buffer("calls", torch.zeros(()))

        def _apply_transform(self, value):
            self.calls += 1
            return value

    env = TransformedEnv(CountingEnv(), Counter())
    env.rollout(2)
    other = TransformedEnv(CountingEnv(), Counter())
    other.load_state_dict(env.state_dict())
    assert other.transform.calls == env.transform.calls > 0


def test_a_copy_owns_its_transforms():
    env = TransformedEnv(CountingEnv(length=9), Compose(Scale(2.0), Scale(5.0)))
    copied = copy.deepcopy(env)
    assert copied.transform.container is copied
    assert copied.transform[1].parent.base is copied.base
    assert copied.rollout(1)["next", "observation"].item() == 10


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_that_the_environment_lacks_is_named(kind):
    env = TransformedEnv(kind(), Scale(in_keys=["pixels"], out_keys=["pixels"]))
    runner = RowRunner if kind is ArrayCountingEnv else ContainerRunner
    with pytest.raises(KeyMissingError, match=r"Scale needs 'pixels'.*'observation'.*in_keys"):
        runner(env, None, 3).run()


def test_closing_the_environment_closes_its_transforms():
    closed = []

    class Held(HalfAction):
        def close(self):
            closed.append(self)

    first, second = Held(), Held()
    TransformedEnv(CountingEnv(), Compose(first, second)).close()
    assert closed == [first, second]
