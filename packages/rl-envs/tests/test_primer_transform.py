"""TensorDictPrimer: first values at resets, and what becomes of them."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Composite, Transform, TransformedEnv, Unbounded, check_env_specs, step_mdp
from rl_core.errors import EnvError, KeyMissingError
from rl_core.testing import ArrayCountingEnv, CountingEnv, TransformKit
from rl_envs import TensorDictPrimer


class OurKit(TransformKit):
    distribution = "rl-envs"
    needs = ("hidden",)


class TestTensorDictPrimer(OurKit):
    def make_transform(self):
        return TensorDictPrimer(hidden=Unbounded(shape=(2, 3)))


class TestTensorDictPrimerWithADefault(OurKit):
    def make_transform(self):
        return TensorDictPrimer({("policy", "hidden"): Unbounded(shape=(2,))}, default_value=1.5)

    needs = (("policy", "hidden"),)


def primed(primer, batch=(2,), env=CountingEnv):
    return TransformedEnv(env(length=[2, 3] if batch else 3, batch_size=batch), primer)


@pytest.mark.parametrize("env", [CountingEnv, ArrayCountingEnv])
def test_what_the_policy_writes_is_carried_until_the_rows_own_reset(env):
    """The policy counts in the entry; each row starts anew from 10 where its episode ends (after 2 and 3 steps)."""
    env = primed(TensorDictPrimer(count=Unbounded(shape=(1,)), default_value=10.0), env=env)

    def policy(td):
        return td.set("action", td["count"] * 0).set(("next", "count"), td["count"] + 1)

    data = env.rollout(6, policy, break_when_any_done=False)
    assert data["count"].squeeze(-1).tolist() == [[10, 11, 10, 11, 10, 11], [10, 11, 12, 10, 11, 12]]
    assert data["next", "count"].squeeze(-1).tolist() == [[11, 12, 11, 12, 11, 12], [11, 12, 13, 11, 12, 13]]


def test_what_nobody_writes_keeps_its_value():
    env = primed(TensorDictPrimer(hidden=Unbounded(shape=(1,)), random=True))
    td = env.reset()
    first = td["hidden"].clone()
    for _ in range(2):
        td = step_mdp(env.rand_step(td))
    assert torch.equal(td["hidden"], first)


@pytest.mark.parametrize(
    ("default", "wanted"),
    [
        (None, [0.0, 0.0]),
        (2.0, [2.0, 2.0]),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        (lambda: torch.tensor([3.0, 4.0]), [3.0, 4.0]),
        ({"hidden": 5.0}, [5.0, 5.0]),
        ({}, [0.0, 0.0]),
    ],
)
def test_first_values(default, wanted):
    env = primed(TensorDictPrimer(hidden=Unbounded(shape=(2,)), default_value=default), batch=())
    assert env.reset()["hidden"].tolist() == wanted


def test_one_function_may_give_all_first_values():
    primer = TensorDictPrimer(
        a=Unbounded(shape=(1,)),
        b=Unbounded(shape=(1,)),
        default_value=lambda: TensorDict({"a": torch.ones(1), "b": torch.full((1,), 2.0)}),
        single_default_value=True,
    )
    td = primed(primer).reset()
    assert td["a"].tolist() == [[1], [1]] and td["b"].tolist() == [[2], [2]]


def test_only_a_declared_batch_size_counts_as_one():
    """A leaf of shape [2] in an environment of two rows is one environment's entry."""
    leaf = Unbounded(shape=(2,))
    assert primed(TensorDictPrimer(hidden=leaf)).reset()["hidden"].shape == (2, 2)
    assert primed(TensorDictPrimer(Composite({"hidden": leaf}, shape=(2,)))).reset()["hidden"].shape == (2,)
    assert primed(TensorDictPrimer(hidden=leaf, expand_specs=False)).reset()["hidden"].shape == (2,)
    with pytest.raises(EnvError, match="'hidden'"):
        primed(TensorDictPrimer(hidden=Unbounded(shape=(3,)), expand_specs=False)).reset()


def test_an_entry_of_the_environment_is_not_overwritten():
    with pytest.raises(EnvError, match="'observation'"):
        primed(TensorDictPrimer(observation=Unbounded(shape=(1,)))).observation_spec  # noqa: B018


def test_a_step_from_data_without_the_entry_names_it():
    env = primed(TensorDictPrimer(hidden=Unbounded(shape=(1,))))
    with pytest.raises(KeyMissingError, match="'hidden'"):
        env.rand_step(env.reset().exclude("hidden"))


def test_specs_and_stored_data():
    primer = TensorDictPrimer(hidden=Unbounded(shape=(2, 3)))
    check_env_specs(primed(primer))
    data = primer.clone().forward(TensorDict({}, [4, 5]))
    assert data["hidden"].shape == (4, 5, 2, 3)
    assert isinstance(primer, Transform)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"a": Unbounded(shape=(1,)), "random": True, "default_value": 1.0},
        {"a": Unbounded(shape=(1,)), "default_value": {"b": 1.0}},
        {"a": Unbounded(shape=(1,)), "default_value": 1.0, "single_default_value": True},
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments):
    with pytest.raises(ValueError, match=r"TensorDictPrimer|single_default_value"):
        TensorDictPrimer(**arguments)
