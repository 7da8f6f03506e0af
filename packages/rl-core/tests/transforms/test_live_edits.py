"""Transforms that are added to, taken from and looked up in an environment that is in use."""

import pickle

import pytest
import torch

from rl_core import Compose, ContainerRunner, RowRunner, Transform, TransformedEnv, check_env_specs, supports_rows
from rl_core.errors import EnvError
from rl_core.specs import Categorical, Composite, Unbounded
from rl_core.testing import ArrayCountingEnv, CountingEnv, GroupCountingEnv

KINDS = [CountingEnv, ArrayCountingEnv]
RUNNERS = {CountingEnv: ContainerRunner, ArrayCountingEnv: RowRunner}


class Times(Transform):
    """Multiplies the observation into an entry."""

    def __init__(self, factor, out_key="observation"):
        super().__init__(in_keys=["observation"], out_keys=[out_key])
        self.factor = factor

    def _apply_transform(self, value):
        return value * self.factor

    def transform_observation_spec(self, spec):
        spec[self.out_keys[0]] = spec["observation"].clone()
        return spec


def factors(env):
    return [transform.factor for transform in env.transform]


@pytest.mark.parametrize("kind", KINDS)
def test_a_transform_taken_out_works_no_more_and_is_free(kind):
    env = TransformedEnv(kind(length=9), Compose(Times(2.0), Times(3.0), Times(5.0, "new")))
    assert env.rollout(1)["next", "new"].item() == 30 and "new" in env.observation_spec
    removed = env.transform.pop(2)
    assert "new" not in env.observation_spec and "new" not in env.rollout(1) and removed.container is None
    assert env.transform.pop(0).factor == 2.0 and factors(env) == [3.0]
    assert env.rollout(1)["next", "observation"].item() == 3
    other = TransformedEnv(kind(length=9), removed)
    assert removed.parent is other.base
    del env.transform[0]
    assert env.rollout(1)["next", "observation"].item() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_specs_follow_every_edit(kind):
    env = TransformedEnv(kind(length=9))
    for n, edit in enumerate((env.append_transform, lambda t: env.insert_transform(0, t), env.transform.append)):
        version = env.specs_version
        edit(Times(2.0, f"entry{n}"))
        assert env.specs_version > version and f"entry{n}" in env.observation_keys
        assert f"entry{n}" in env.fake_tensordict() and f"entry{n}" in env.rollout(1)
    env.transform = Times(7.0)
    assert env.observation_keys == ["observation"] and env.rollout(1)["next", "observation"].item() == 7
    check_env_specs(env)


def test_an_assigned_transform_gives_up_the_one_before():
    first = Times(2.0)
    env = TransformedEnv(CountingEnv(length=9), first)
    env.transform = Times(3.0)
    assert first.container is None and env.transform.container is env
    with pytest.raises(EnvError, match=r"clone\(\)"):
        TransformedEnv(CountingEnv(), Times(1.0)).transform = env.transform
    env.transform = None
    assert env.rollout(1)["next", "observation"].item() == 1


def test_a_place_counts_from_both_ends_and_says_where_there_is_none():
    env = TransformedEnv(CountingEnv(), Compose(Times(2.0), Times(3.0)))
    env.insert_transform(-1, Times(5.0))
    assert factors(env) == [2.0, 5.0, 3.0] and env.transform[-1].factor == 3.0
    for act in (lambda: env.transform[3], lambda: env.transform.pop(7), lambda: env.insert_transform(9, Times(1.0))):
        with pytest.raises(IndexError, match="Compose"):
            act()


def test_a_slice_holds_copies():
    env = TransformedEnv(CountingEnv(length=9), Compose(Times(2.0), Times(3.0), Times(5.0)))
    part = env.transform[1:]
    assert isinstance(part, Compose) and [t.factor for t in part] == [3.0, 5.0] and part.container is None
    assert part[0] is not env.transform[1] and factors(env) == [2.0, 3.0, 5.0]
    assert TransformedEnv(CountingEnv(length=9), part).rollout(1)["next", "observation"].item() == 15


def test_a_transform_knows_its_environment_and_the_one_before_it():
    env = TransformedEnv(CountingEnv(length=9), Compose(Times(2.0), Times(3.0)))
    env.insert_transform(0, Times(5.0))
    last = env.transform[2]
    assert last.container is env and last.parent.rollout(1)["next", "observation"].item() == 10
    assert env.transform[1].parent.rollout(1)["next", "observation"].item() == 5
    assert env.transform[0].parent is env.base and Times(1.0).parent is None
    assert factors(env) == [5.0, 2.0, 3.0]  # looking took nothing away
    env.transform.pop(0)
    assert last.parent.rollout(1)["next", "observation"].item() == 2


def test_one_instance_has_one_place():
    twice = Times(2.0)
    with pytest.raises(EnvError, match=r"clone\(\)"):
        Compose(twice, twice)
    env = TransformedEnv(CountingEnv(), Times(2.0))
    with pytest.raises(EnvError, match=r"clone\(\)"):
        env.append_transform(env.transform)
    with pytest.raises(EnvError, match=r"clone\(\)"):
        TransformedEnv(CountingEnv()).append_transform(env.transform[0])
    assert len(env.transform) == 1
    env.append_transform(env.transform[0].clone())
    assert env.rollout(1)["next", "observation"].item() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_compose_within_a_compose_is_run(kind):
    env = TransformedEnv(kind(length=9), Compose(Compose(Times(2.0), Compose(Times(3.0))), Times(5.0)))
    assert env.rollout(2)["next", "observation"].flatten().tolist() == [30, 60]
    assert env.transform[0][1][0].parent.rollout(1)["next", "observation"].item() == 2
    env.transform[0][1].append(Times(7.0, "new"))
    assert "new" in env.observation_spec and env.rollout(1)["next", "new"].item() == 42


# -------------------------------------------------------------------- environments of environments
@pytest.mark.parametrize("kind", KINDS)
def test_transformed_environments_nest_and_each_keeps_its_transforms(kind):
    inner = TransformedEnv(kind(length=9), Times(2.0))
    env = TransformedEnv(inner, Times(3.0))
    assert env.base is inner and env.base_env is inner.base and supports_rows(env) == (kind is ArrayCountingEnv)
    inner.append_transform(Times(5.0, "new"))
    assert "new" in env.observation_spec
    data = env.rollout(1)
    assert data["next", "new"].item() == 10 and data["next", "observation"].item() == 6
    assert env.transform.parent is inner
    assert inner.rollout(1)["next", "observation"].item() == 2


def test_nothing_around_a_transformed_environment_is_no_error():
    inner = TransformedEnv(CountingEnv(length=9), Times(2.0))
    for unwrap in (None, False):
        assert TransformedEnv(inner, None, auto_unwrap=unwrap).rollout(1)["next", "observation"].item() == 2


def test_unwrapping_moves_the_transforms_of_the_inner_one():
    inner = TransformedEnv(CountingEnv(length=9), Times(2.0))
    env = TransformedEnv(inner, Times(3.0), auto_unwrap=True)
    assert env.base is inner.base and factors(env) == [2.0, 3.0]
    assert env.rollout(1)["next", "observation"].item() == 6 and len(inner.transform) == 0
    assert TransformedEnv(env, None, auto_unwrap=True).rollout(1)["next", "observation"].item() == 6


# -------------------------------------------------------------------- edits under way
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "edit",
    [
        lambda env: env.append_transform(Times(3.0)),
        lambda env: env.insert_transform(0, Times(3.0)),
        lambda env: env.transform.pop(),
        lambda env: setattr(env, "transform", Times(3.0)),
        lambda env: env.base.append_transform(Times(3.0)),
        lambda env: env.empty_cache(),
    ],
)
def test_a_runner_at_work_never_goes_on_with_the_transforms_of_before(kind, edit):
    env = TransformedEnv(TransformedEnv(kind(length=99)), Compose(Times(2.0)))
    runner = RUNNERS[kind](env, None, 2)
    assert runner.run()["next", "observation"].flatten().tolist() == [2, 4]
    edit(env)
    with pytest.raises(EnvError, match=r"edited while episodes were under way.*reset\(\)"):
        runner.run()
    runner.reset()
    wanted = env.rollout(2)["next", "observation"].flatten().tolist()
    runner.reset()
    assert runner.run()["next", "observation"].flatten().tolist() == wanted
    assert runner.run()["observation"].flatten()[0].item() == wanted[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_before_the_first_batch_counts(kind):
    env = TransformedEnv(kind(length=9), Compose(Times(2.0)))
    runner = RUNNERS[kind](env, None, 2)
    env.append_transform(Times(3.0, "new"))
    assert runner.run()["next", "new"].flatten().tolist() == [6, 12]


def test_the_bound_policy_goes_with_the_new_columns():
    env = TransformedEnv(ArrayCountingEnv(length=99), Compose(Times(2.0)))
    seen = []

    def policy(observation):
        seen.append(observation.item())
        return observation * 0

    runner = RowRunner(env, TensorPolicy(policy), 2)
    runner.run()
    env.append_transform(Times(10.0))
    runner.reset()
    runner.run()
    assert seen == [0, 2, 0, 20]


class TensorPolicy(torch.nn.Module):
    in_keys, out_keys = ("observation",), ("action",)

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, tensordict):
        return tensordict.set("action", self.function(tensordict["observation"]))


def test_a_changed_attribute_counts_after_empty_cache():
    env = TransformedEnv(CountingEnv(length=9), Times(2.0, "a"))
    assert "a" in env.observation_spec
    env.transform.out_keys = ["b"]
    env.empty_cache()
    assert "a" not in env.observation_spec and "b" in env.observation_spec


def test_an_edited_environment_is_pickled_as_it_is():
    env = TransformedEnv(CountingEnv(length=9), Times(2.0))
    env.append_transform(Times(3.0))
    copied = pickle.loads(pickle.dumps(env))
    copied.transform.pop()
    assert copied.rollout(1)["next", "observation"].item() == 2
    assert env.rollout(1)["next", "observation"].item() == 6


# -------------------------------------------------------------------- what edits rest on
class Halve(Transform):
    def _inv_apply_transform(self, value):
        return value / 2


def test_an_inverse_leaves_the_policys_action_alone_in_a_group_too():
    env = TransformedEnv(GroupCountingEnv(), Halve(in_keys_inv=[("agents", "action")]))
    td = env.rand_action(env.reset()).set(("agents", "action"), torch.ones(2, 1))
    env.step(td)
    assert td["agents", "action"].flatten().tolist() == [1, 1]


class Masked(ArrayCountingEnv):
    """Only the choice ``step % 4`` is legal."""

    def __init__(self):
        super().__init__(length=9)
        self.observation_spec = Composite(
            observation=Unbounded((1,)), action_mask=Categorical(2, (4,), dtype=torch.bool)
        )
        self.action_spec = Categorical(4)

    def row_program(self, columns):
        program, mask = super().row_program(columns), columns["action_mask"]

        def write(t):
            mask[t] = False
            mask[t][int(columns["observation"][t].item()) % 4] = True

        def step(t):
            program.step(t)
            write(t + 1)

        def reset(t, rows):
            program.reset(t, rows)
            write(t)

        return type(program)(step, reset)


def test_random_actions_on_columns_are_legal_at_every_step():
    assert Masked().rollout(8)["action"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


class SelfResetting(ArrayCountingEnv):
    """Goes on with the next episode by itself."""

    def __init__(self):
        super().__init__(length=2)
        self.auto_reset = True

    def row_program(self, columns):
        program = super().row_program(columns)

        def step(t):
            program.step(t)
            if columns["terminated"][t + 1]:
                program.reset(t + 1, None)

        return type(program)(step, lambda t, mask: program.reset(t, mask))


def test_a_simulator_that_resets_itself_is_stepped_so_on_rollouts_too():
    data = TransformedEnv(SelfResetting(), Times(1.0)).rollout(4, break_when_any_done=False)
    assert data["observation"].flatten().tolist() == [0, 1, 0, 1]
    assert data["next", "observation"].flatten()[::2].tolist() == [1, 1]
    assert data["next", "observation"].isnan().flatten().tolist() == [False, True, False, True]


class FixesBatch(Transform):
    """Refuses environments that have a batch."""

    def transform_env_batch_size(self, batch_size):
        if len(batch_size):
            raise EnvError("has a batch")
        return torch.Size([3])


def test_an_edit_that_is_refused_changes_nothing():
    env = TransformedEnv(CountingEnv(batch_size=[2]), Compose(Times(2.0)))
    refused = FixesBatch()
    with pytest.raises(EnvError, match="has a batch"):
        env.append_transform(refused)
    assert len(env.transform) == 1 and refused.container is None and env.rollout(2).shape == (2, 2)


def test_a_batch_size_that_a_transform_changes_is_seen_through_other_environments():
    inner = TransformedEnv(CountingEnv())
    outer = TransformedEnv(inner)
    assert outer.batch_size == ()
    inner.append_transform(FixesBatch())
    assert outer.observation_spec is not None and outer.batch_size == inner.batch_size == (3,)


class Asked(Times):
    """Counts how often it is asked for its spec."""

    count = 0

    def transform_observation_spec(self, spec):
        self.count += 1
        return super().transform_observation_spec(spec)


def test_rollouts_ask_for_specs_once_and_after_an_edit_anew():
    inner = TransformedEnv(ArrayCountingEnv(length=9), Asked(2.0))
    env = TransformedEnv(inner, Compose(Asked(3.0), Asked(5.0, "new")))
    parts = [inner.transform, *env.transform]
    assert env.rollout(1)["next", "new"].item() == 30
    asked = [part.count for part in parts]
    env.rollout(2)
    assert [part.count for part in parts] == asked
    inner.append_transform(Times(7.0))
    env.insert_transform(0, Times(11.0, "newer"))
    data = env.rollout(1)["next"]
    assert (data["new"].item(), data["newer"].item()) == (210, 154)
    env.transform.pop(0)
    assert "newer" not in env.rollout(1) and env.rollout(1)["next", "new"].item() == 210


def test_whether_rows_are_supported_is_what_the_environment_says():
    class OnTensorDicts(ArrayCountingEnv):
        supports_rows = False

        def row_program(self, columns):
            if columns.n_steps > 1:
                raise AssertionError("it says that it is not stepped on columns")
            return super().row_program(columns)

    env = TransformedEnv(OnTensorDicts(length=9), Times(2.0))
    assert not supports_rows(env) and supports_rows(TransformedEnv(ArrayCountingEnv(), Times(2.0)))
    assert env.rollout(2)["next", "observation"].flatten().tolist() == [2, 4]
    with pytest.raises(EnvError, match=r"CountingEnv is stepped on TensorDicts \(supports_rows is False\)"):
        CountingEnv().row_program(None)
