import pytest
import torch
from tensordict import TensorDict

from rl_core import EnvBase, checked_mode, step_mdp
from rl_core.errors import EnvError, PolicyError, SpecError
from rl_core.specs import Bounded, Categorical, Composite, NonTensor, Unbounded
from rl_core.testing import CountingEnv


class Echo(EnvBase):
    """Writes whatever its attributes say, to break the contract in one way at a time."""

    def __init__(self, reset=None, step=None, batch_size=(), **kwargs):
        super().__init__(batch_size=batch_size, **kwargs)
        self.observation_spec = Composite({"observation": Unbounded((*batch_size, 1))}, shape=batch_size)
        self.action_spec = Bounded(-1.0, 1.0, (*batch_size, 1))
        self.on_reset = reset or {}
        self.on_step = step or {}

    def _reset(self, tensordict=None, **kwargs):
        return TensorDict({"observation": torch.zeros(*self.batch_size, 1), **self.on_reset}, self.batch_size)

    def _step(self, tensordict):
        zero = torch.zeros(*self.batch_size, 1)
        return TensorDict({"observation": zero, "reward": zero.clone(), **self.on_step}, self.batch_size)


def test_reset_updates_and_returns_what_it_is_given():
    env = CountingEnv()
    td = TensorDict({"parameter": torch.ones(1)})
    assert env.reset(td) is td
    assert td["observation"].item() == 0 and td["parameter"].item() == 1


def test_step_writes_next_into_what_it_is_given_and_keeps_the_root():
    env = CountingEnv()
    td = env.rand_action(env.reset())
    before = td["action"].clone()
    assert env.step(td) is td
    assert td["next", "observation"].item() == 1 and td["observation"].item() == 0
    assert torch.equal(td["action"], before)


def test_entries_of_next_that_the_environment_does_not_write_are_kept():
    env = CountingEnv()
    td = env.rand_action(env.reset())
    td["next", "hidden"] = torch.ones(2)
    assert env.step(td)["next", "hidden"].tolist() == [1, 1]


def test_the_reward_exists_only_under_next():
    td = CountingEnv().rand_step()
    assert "reward" not in td and td["next", "reward"].item() == 1


def test_a_reward_from_reset_is_an_error():
    with pytest.raises(EnvError, match="reward exists only under 'next'"):
        Echo(reset={"reward": torch.zeros(1)}).reset()


def test_done_after_reset_is_an_error_unless_allowed():
    with pytest.raises(EnvError, match="allow_done_after_reset=True"):
        Echo(reset={"done": torch.ones(1, dtype=torch.bool)}).reset()
    Echo(reset={"done": torch.ones(1, dtype=torch.bool)}, allow_done_after_reset=True).reset()


def test_a_missing_action_names_the_key_and_the_cure():
    env = CountingEnv()
    with pytest.raises(PolicyError, match=r"needs the action 'action'.*out_keys=\['action'\]"):
        env.step(env.reset())


def test_the_first_step_is_validated_against_the_specs():
    env = Echo(step={"observation": torch.zeros(2)})
    with pytest.raises(EnvError, match=r"'observation' has shape \(2,\), its spec says \(1,\)"):
        env.rand_step()


def test_an_action_outside_its_spec_is_an_error_in_checked_mode():
    env = CountingEnv()
    td = env.reset().set("action", torch.full((1,), 3.0))
    env.step(td.clone())
    with checked_mode(), pytest.raises(SpecError):
        env.step(td.clone())


def test_another_batch_size_is_an_error():
    env = CountingEnv(batch_size=[3])
    with pytest.raises(EnvError, match=r"batch size \(3,\), the TensorDict \(2,\)"):
        env.step(TensorDict({"action": torch.zeros(2, 1)}, [2]))


def test_partial_reset_touches_only_its_rows():
    env = CountingEnv(length=9, batch_size=[3])
    td = env.reset()
    for _ in range(4):
        td = env.step_mdp(env.step(env.rand_action(td)))
    td["_reset"] = torch.tensor([False, True, False]).unsqueeze(-1)
    td = env.reset(td)
    assert td["observation"].squeeze(-1).tolist() == [4, 0, 4]
    assert "_reset" not in td


def test_step_and_maybe_reset_keeps_the_true_last_observation_under_next():
    env = CountingEnv(length=[1, 5], batch_size=[2])
    stepped, root = env.step_and_maybe_reset(env.rand_action(env.reset()))
    assert stepped["next", "observation"].squeeze(-1).tolist() == [1, 1]
    assert stepped["next", "done"].squeeze(-1).tolist() == [True, False]
    assert root["observation"].squeeze(-1).tolist() == [0, 1]
    assert not root["done"].any()
    assert {"next", "reward", "_reset"}.isdisjoint(root.keys())


def test_step_mdp_drops_rewards_and_actions_and_keeps_the_rest():
    td = CountingEnv().rand_step()
    td["extra"] = torch.ones(1)
    root = step_mdp(td)
    assert set(root.keys()) == {"observation", "done", "terminated", "extra"}
    assert root["observation"].item() == 1
    assert "next" in td


def test_step_mdp_drops_a_whole_group_and_single_entries_of_another():
    nxt = TensorDict({"gone": {"x": torch.ones(1)}, "agents": {"x": torch.ones(1), "reward": torch.ones(1)}})
    td = TensorDict({"gone": {"x": torch.zeros(1)}, "next": nxt})
    for keys in (["gone", ("gone", "x"), ("agents", "reward")], [("agents", "reward"), ("gone", "x"), "gone"]):
        assert list(step_mdp(td, reward_keys=keys).keys(True, True)) == [("agents", "x")]


def test_step_mdp_merges_nested_groups():
    td = TensorDict(
        {
            "agents": {"observation": torch.zeros(2, 1), "action": torch.zeros(2, 1), "extra": torch.ones(2, 1)},
            "next": {"agents": {"observation": torch.ones(2, 1), "reward": torch.ones(2, 1)}},
        }
    )
    root = step_mdp(td, reward_keys=[("agents", "reward")], action_keys=[("agents", "action")])
    assert set(root["agents"].keys()) == {"observation", "extra"}
    assert root["agents", "observation"].sum() == 2


def test_done_spec_completes_and_truncated_is_never_made_up():
    env = Echo()
    assert set(env.done_spec.keys()) == {"done", "terminated"}
    env.done_spec = Categorical(2, shape=(1,), dtype=torch.bool)
    assert set(env.done_spec.keys()) == {"done", "terminated"}


def test_specs_need_the_batch_size_as_their_prefix():
    env = Echo(batch_size=[3])
    with pytest.raises(SpecError):
        env.observation_spec = Composite({"observation": Unbounded((2, 1))}, shape=[2])
    with pytest.raises(SpecError, match="must be a Composite"):
        env.observation_spec = Unbounded((3, 1))
    with pytest.raises(SpecError, match="one dimension beyond the batch size"):
        env.reward_spec = Unbounded((3,))


def test_unbatched_specs_drop_the_batch():
    env = CountingEnv(batch_size=[3])
    assert env.action_spec.shape == (3, 1) and env.action_spec_unbatched.shape == (1,)
    assert env.full_action_spec_unbatched["action"].shape == (1,)


def test_single_key_names_fail_where_there_are_several():
    env = Echo()
    env.action_spec = Composite({"a": Bounded(0, 1, (1,)), "b": Bounded(0, 1, (1,))})
    assert env.action_keys == ["a", "b"] and isinstance(env.action_spec, Composite)
    with pytest.raises(KeyError, match="2 action keys"):
        _ = env.action_key


def test_set_seed_gives_the_next_seed_of_the_chain():
    env = CountingEnv()
    assert env.set_seed(0) == 795726461
    assert env.set_seed(0, static_seed=True) == 0


def test_fake_tensordict_looks_like_a_step():
    env = CountingEnv(batch_size=[2], truncate=True)
    fake, real = env.fake_tensordict(), env.rand_step()
    assert set(fake.keys(True, True)) == set(real.keys(True, True))
    for key in real.keys(True, True):
        assert fake[key].shape == real[key].shape and fake[key].dtype is real[key].dtype


def test_a_closed_environment_says_so_and_closes_twice():
    env = CountingEnv()
    env.close()
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.reset()


class Talker(EnvBase):
    """Says its step number in text."""

    def __init__(self, batch_size=()):
        super().__init__(batch_size=batch_size)
        self.observation_spec = Composite(
            {"x": Unbounded((*batch_size, 1)), "text": NonTensor(shape=batch_size)}, shape=batch_size
        )
        self.action_spec = Bounded(-1.0, 1.0, (*batch_size, 1))
        self.t = 0

    def _observe(self):
        n = self.batch_size.numel()
        td = TensorDict({"x": torch.full((*self.batch_size, 1), float(self.t))}, self.batch_size)
        if len(self.batch_size):
            td.set("text", [f"t{self.t} row{i}" for i in range(n)])
        else:
            td.set_non_tensor("text", f"t{self.t}")
        return td

    def _reset(self, tensordict=None, **kwargs):
        self.t = 0
        return self._observe()

    def _step(self, tensordict):
        self.t += 1
        return self._observe().set("reward", torch.zeros(*self.batch_size, 1))


def test_text_survives_rollouts_at_the_right_row_and_time():
    data = Talker().rollout(4)
    assert data["text"] == ["t0", "t1", "t2", "t3"]
    assert data["next", "text"] == ["t1", "t2", "t3", "t4"]


def test_text_survives_batched_rollouts():
    data = Talker(batch_size=(2,)).rollout(3)
    assert data.batch_size == (2, 3)
    assert [list(row) for row in data["next", "text"]] == [[f"t{t} row{i}" for t in (1, 2, 3)] for i in range(2)]
