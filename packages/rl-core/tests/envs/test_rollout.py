import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import check_env_specs
from rl_core.errors import EnvError, KeyMissingError, PolicyError
from rl_core.testing import ArrayCountingEnv, CountingEnv

KINDS = [CountingEnv, ArrayCountingEnv]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_stops_at_the_first_end_and_includes_it(kind):
    data = kind(length=3).rollout(10)
    assert data.batch_size == (3,) and data.names == ["time"]
    assert data["observation"].squeeze(-1).tolist() == [0, 1, 2]
    assert data["next", "done"].squeeze(-1).tolist() == [False, False, True]


@pytest.mark.parametrize("kind", KINDS)
def test_without_breaking_it_resets_and_goes_on(kind):
    data = kind(length=2).rollout(5, break_when_any_done=False)
    assert data["observation"].squeeze(-1).tolist() == [0, 1, 0, 1, 0]
    assert data["next", "observation"].squeeze(-1).tolist() == [1, 2, 1, 2, 1]
    assert data["next", "terminated"].squeeze(-1).tolist() == [False, True, False, True, False]
    assert not data["done"].any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_reset_on_their_own(kind):
    data = kind(length=[2, 3], batch_size=[2]).rollout(5, break_when_any_done=False)
    assert data.batch_size == (2, 5) and data.names == [None, "time"]
    assert data["observation"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    assert data["next", "observation"].squeeze(-1).tolist() == [[1, 2, 1, 2, 1], [1, 2, 3, 1, 2]]


@pytest.mark.parametrize("kind", KINDS)
def test_both_kinds_of_stepping_give_the_same_entries(kind):
    data = kind(length=2, truncate=True).rollout(3, break_when_any_done=False)
    assert set(data.keys(True, True)) == {
        *("action", "observation", "done", "terminated", "truncated"),
        *(("next", name) for name in ("observation", "reward", "done", "terminated", "truncated")),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_end_flags_agree_everywhere(kind):
    nxt = kind(length=[2, 3], batch_size=[2], truncate=True).rollout(7, break_when_any_done=False)["next"]
    assert torch.equal(nxt["done"], nxt["terminated"] | nxt["truncated"])


@pytest.mark.parametrize("kind", KINDS)
def test_root_and_next_share_no_memory(kind):
    data = kind(length=9).rollout(4)
    data["observation"].fill_(100)
    assert data["next", "observation"].squeeze(-1).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_policy_keeps_its_extras_and_gradients(kind):
    policy = TensorDictModule(nn.Linear(1, 1), ["observation"], ["action"])
    data = kind(length=9).rollout(4, policy)
    assert torch.allclose(data["action"], policy.module(data["observation"]))


@pytest.mark.parametrize("kind", KINDS)
def test_any_function_of_a_tensordict_is_a_policy(kind):
    def policy(td):
        return td.set("action", td["observation"] * 0 + 0.5).set("note", td["observation"] + 10)

    data = kind(length=9).rollout(3, policy)
    assert data["note"].squeeze(-1).tolist() == [10, 11, 12] and (data["action"] == 0.5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_of_observations_is_a_policy(kind):
    data = kind(length=9).rollout(3, lambda observation: observation * 0.1)
    assert torch.allclose(data["action"].squeeze(-1), torch.tensor([0.0, 0.1, 0.2]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_without_the_action_is_an_error_naming_it(kind):
    policy = TensorDictModule(nn.Linear(1, 1), ["observation"], ["acton"])
    with pytest.raises(PolicyError, match="action"):
        kind().rollout(3, policy)


def test_a_function_whose_inputs_nobody_writes_is_an_error():
    with pytest.raises(PolicyError, match="'observation'"):
        CountingEnv().rollout(3, lambda speed, angle: speed)


def test_break_when_all_done_freezes_rows_that_ended():
    data = CountingEnv(length=[2, 4], batch_size=[2]).rollout(9, break_when_all_done=True)
    assert data.batch_size == (2, 4)
    assert data["next", "observation"].squeeze(-1).tolist() == [[1, 2, 2, 2], [1, 2, 3, 4]]
    with pytest.raises(TypeError):
        CountingEnv().rollout(3, break_when_all_done=True, break_when_any_done=True)


def test_auto_reset_false_starts_where_it_is_told():
    env = CountingEnv(length=9)
    start = env.step_mdp(env.rand_step())
    assert env.rollout(3, auto_reset=False, tensordict=start)["observation"].squeeze(-1).tolist() == [1, 2, 3]
    with pytest.raises(EnvError, match="tensordict"):
        env.rollout(3, auto_reset=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_a_start_without_end_flags_is_one_where_nothing_has_ended(kind, batch):
    env = kind(length=9, batch_size=batch)
    env.rollout(2)
    start = TensorDict({"observation": torch.full((*batch, 1), 2.0)}, batch_size=batch)
    data = env.rollout(3, auto_reset=False, tensordict=start)
    assert data["next", "observation"].reshape(-1, 3)[0].tolist() == [3, 4, 5]
    assert not data["done"].any()


def test_a_start_keeps_the_end_flags_it_has():
    env = CountingEnv(length=9)
    env.rollout(2)
    start = TensorDict({"observation": torch.tensor([9.0]), "terminated": torch.tensor([True])})
    assert env.rollout(2, auto_reset=False, tensordict=start)["observation"].flatten().tolist() == [0, 1]


def test_a_start_that_holds_no_observation_is_refused():
    with pytest.raises(EnvError, match=r"has 'memory'.*observations are 'observation'.*env\.reset\(\)"):
        CountingEnv().rollout(3, auto_reset=False, tensordict=TensorDict({"memory": torch.zeros(1)}))
    with pytest.raises(EnvError, match=r"batch size \(2,\), the TensorDict \(\)"):
        CountingEnv(batch_size=[2]).rollout(3, auto_reset=False, tensordict=TensorDict({}))


def test_data_without_end_flags_are_named_where_they_are_needed():
    for method in (CountingEnv().maybe_reset, CountingEnv().any_done):
        with pytest.raises(KeyMissingError, match="lacks the end flag 'done', it has 'observation'"):
            method(TensorDict({"observation": torch.zeros(1)}))


def test_the_callback_sees_every_step():
    seen = []
    CountingEnv(length=3).rollout(10, callback=lambda env, td: seen.append(td["next", "observation"].item()))
    assert seen == [1, 2, 3]


def test_set_truncated_marks_the_cut_and_keeps_real_ends():
    data = ArrayCountingEnv(length=[4, 9], batch_size=[2])
    data.done_spec = CountingEnv(batch_size=[2], truncate=True).done_spec
    nxt = data.rollout(4, break_when_any_done=False, set_truncated=True)["next"]
    assert nxt["terminated"][:, -1].squeeze(-1).tolist() == [True, False]
    assert nxt["truncated"][:, -1].squeeze(-1).tolist() == [False, True]
    assert nxt["done"][:, -1].all() and not nxt["done"][:, :-1].any()


def test_set_truncated_needs_the_flag():
    with pytest.raises(EnvError, match="StepCounter"):
        CountingEnv().rollout(2, set_truncated=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_spec_contains_a_batched_rollouts_actions(kind):
    env = kind(length=50, batch_size=[4])
    data = env.rollout(20)
    assert data.shape == torch.Size([4, 20])
    assert env.action_spec.is_in(data["action"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_toys_keep_their_specs(kind, batch):
    check_env_specs(kind(length=2, batch_size=batch))


class Liar(CountingEnv):
    def _step(self, tensordict):
        td = super()._step(tensordict)
        td["observation"] = td["observation"].double()
        td["surprise"] = torch.zeros(1)
        self._validated = True
        return td


def test_the_checker_explains_in_sentences():
    env = Liar()
    env._validated = True
    with pytest.raises(EnvError) as error:
        check_env_specs(env)
    text = str(error.value)
    assert "('next', 'observation')" in text and "torch.float64" in text and "Liar._step" in text
    assert "('next', 'surprise')" in text and "no spec declares it" in text


def test_the_checker_leaves_the_random_state_alone():
    state = torch.random.get_rng_state()
    check_env_specs(CountingEnv(), seed=3)
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_rollout_goes_through_a_lazy_policy():
    policy = TensorDictModule(nn.Sequential(nn.LazyLinear(1), nn.Tanh()), ["observation"], ["action"])
    assert CountingEnv(length=40).rollout(32, policy).batch_size == torch.Size([32])


def test_a_stack_of_different_shapes_stays_lazy():
    class Growing(CountingEnv):
        def _step(self, tensordict):
            td = super()._step(tensordict)
            return td.set("trace", torch.zeros(int(td["observation"].item())))

    data = Growing().rollout(3)
    assert data.batch_size == (3,) and [t.shape[0] for t in (step["next", "trace"] for step in data.unbind(0))] == [
        1,
        2,
        3,
    ]
    assert isinstance(data[0], TensorDict)
