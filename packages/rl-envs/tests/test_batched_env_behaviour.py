"""Batches of environments, in one process and in several: steps, resets, shapes, policies, access, arguments."""

import sys

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

from rl_core import (
    Bounded,
    CarriedState,
    Categorical,
    Compose,
    Composite,
    EnvBase,
    RowRunner,
    StateCarrier,
    TensorEnv,
    TransformedEnv,
    Unbounded,
    reset_rows,
    supports_rows,
)
from rl_core.errors import EnvError
from rl_core.testing import ArrayCountingEnv, CountingEnv
from rl_envs import (
    EnvCreator,
    GymEnv,
    ParallelEnv,
    PendulumEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    TensorDictPrimer,
    WorkerError,
)


def transformed_cartpole():
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(StepCounter(max_steps=9), RewardSum()))


class WideEnv(CountingEnv):
    """Counts, and observes an entry of its own width."""

    def __init__(self, width, length):
        super().__init__(length=length)
        self.width = width
        self.observation_spec = Composite(observation=Unbounded((1,)), wide=Unbounded((width,)))

    def _reset(self, tensordict=None, **kwargs):
        return super()._reset(tensordict).set("wide", torch.zeros(self.width))

    def _step(self, tensordict):
        result = super()._step(tensordict)
        return result.set("wide", torch.full((self.width,), self.count.item()))


class KeywordEnv(CountingEnv):
    """Begins at the number that its reset is given."""

    def __init__(self):
        super().__init__(length=99)

    def _reset(self, tensordict=None, start=0, **kwargs):
        super()._reset(tensordict)
        self.count = self.count + start
        return TensorDict({"observation": self.count.clone()})


# ----------------------------------------------------------------------------------------------------------- stepping
def test_rows_are_stepped_on_columns_where_all_environments_write_rows():
    assert supports_rows(SerialEnv(2, "gym:CartPole-v1"))
    assert supports_rows(SerialEnv(2, transformed_cartpole))
    assert not supports_rows(SerialEnv(2, CountingEnv))
    assert type(SerialEnv(2, "gym:CartPole-v1")) is SerialEnv
    env = ParallelEnv(2, transformed_cartpole, mp_start_method="fork")
    assert supports_rows(env) and env.supports_rows and type(env) is ParallelEnv
    env.close()


def test_a_subclass_that_steps_in_its_own_way_is_stepped_that_way():
    class Shifted(SerialEnv):
        def _step(self, tensordict):
            result = super()._step(tensordict)
            return result.set("reward", result["reward"] + 10)

    class Named(SerialEnv):
        title = "named"

    assert not Shifted(2, ArrayCountingEnv).supports_rows and Named(2, ArrayCountingEnv).supports_rows
    rewards = Shifted(2, ArrayCountingEnv).rollout(2)["next", "reward"]
    assert rewards.squeeze(-1).tolist() == [[11, 12]] * 2


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_workers_columns_carry_what_transforms_count(make):
    """In a runner on columns: the counts of episodes of 2 and 3 steps, and their returns."""
    lengths = [{"length": 2}, {"length": 3}]
    env = make(2, counting_with_sum, create_env_kwargs=lengths, mp_start_method="fork")
    runner = RowRunner(env, None, 5)
    data = torch.cat([runner.run(), runner.run()], 1)
    env.close()
    assert data["step_count"].squeeze(-1).tolist() == [[0, 1] * 5, [0, 1, 2] * 3 + [0]]
    assert data["next", "episode_reward"].squeeze(-1).tolist() == [[1, 3] * 5, [1, 3, 6] * 3 + [1]]


def counting_with_sum(length):
    return TransformedEnv(ArrayCountingEnv(length=length), Compose(StepCounter(), RewardSum()))


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_partial_reset_touches_only_its_rows(make, inside):
    """Case: three environments, four steps, only the second is reset, two more steps."""

    def counting():
        env = ArrayCountingEnv(length=99)
        return TransformedEnv(env, Compose(StepCounter(), RewardSum())) if inside else env

    env = make(3, counting, mp_start_method="fork")
    if not inside:
        env = TransformedEnv(env, Compose(StepCounter(), RewardSum()))
    td = env.reset()
    for _ in range(4):
        td = env.step_mdp(env.rand_step(td))
    td = env.reset(td.set("_reset", torch.tensor([[False], [True], [False]])))
    assert td["step_count"].flatten().tolist() == [4, 0, 4]
    for _ in range(2):
        td = env.step_mdp(env.rand_step(td))
    env.close()
    assert td["observation"].flatten().tolist() == [6, 2, 6]
    assert td["step_count"].flatten().tolist() == [6, 2, 6]
    assert td["episode_reward"].flatten().tolist() == [21, 3, 21]


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_row_that_ended_stands_still_until_it_is_reset(make):
    lengths = [{"length": 2}, {"length": 4}]
    env = make(2, ArrayCountingEnv, create_env_kwargs=lengths, mp_start_method="fork")
    td = env.reset()
    seen = []
    for _ in range(4):
        td = env.rand_step(td)
        seen.append((td["next", "observation"].flatten().tolist(), td["next", "reward"].flatten().tolist()))
        td = env.step_mdp(td)
    env.close()
    assert seen == [([1, 1], [1, 1]), ([2, 2], [2, 2]), ([2, 3], [0, 3]), ([2, 4], [0, 4])]


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_rollout_until_all_have_ended_freezes_the_others(make):
    lengths = [{"length": 2}, {"length": 4}]
    env = make(2, CountingEnv, create_env_kwargs=lengths, mp_start_method="fork")
    data = env.rollout(9, break_when_all_done=True)
    env.close()
    assert data["next", "observation"].squeeze(-1).tolist() == [[1, 2, 2, 2], [1, 2, 3, 4]]


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_resets_take_arguments_for_all_or_for_each(make):
    env = make(3, KeywordEnv, mp_start_method="fork", **({"envs_per_worker": 2} if make is ParallelEnv else {}))
    assert env.reset(start=4)["observation"].flatten().tolist() == [4, 4, 4]
    each = [{"start": 1}, {}, {"start": 3}]
    assert env.reset(list_of_kwargs=each)["observation"].flatten().tolist() == [1, 0, 3]
    assert env.reset()["observation"].flatten().tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="2 entries of list_of_kwargs for 3 environments"):
        env.reset(list_of_kwargs=[{}, {}])
    env.close()


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_reset_with_a_seed_seeds_every_environment(make):
    env = make(2, "gym:CartPole-v1", mp_start_method="fork")
    first = env.reset(seed=4)["observation"]
    assert torch.equal(env.reset(seed=4)["observation"], first) and not torch.equal(first[0], first[1])
    env.set_seed(4)
    assert torch.equal(env.reset()["observation"], first)
    assert torch.equal(env.reset(seed=[8, 8])["observation"][0], env.reset(seed=[8, 9])["observation"][0])
    env.close()


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_environments_of_different_shapes_give_lazy_stacks(make):
    kwargs = [{"width": 2, "length": 3}, {"width": 3, "length": 2}]
    env = make(2, WideEnv, create_env_kwargs=kwargs, mp_start_method="fork")
    assert env.heterogeneous and env.batch_size == torch.Size([2])
    data = env.rollout(5, break_when_any_done=False)
    assert data.batch_size == torch.Size([2, 5]) and data.names[-1] == "time"
    assert data[0]["next", "wide"].tolist() == [[1, 1], [2, 2], [3, 3], [1, 1], [2, 2]]
    assert data[1]["wide"].tolist() == [[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1], [0, 0, 0]]
    td = env.reset()
    td = env.reset(env.step_mdp(env.rand_step(td)).set("_reset", torch.tensor([[False], [True]])))
    assert td[0]["wide"].tolist() == [1, 1] and td[1]["wide"].tolist() == [0, 0, 0]
    env.close()


def test_different_shapes_travel_through_shared_memory(monkeypatch):
    """With nothing written to the line, a batch has the numbers of one whose rows are sent over it."""
    kwargs = [{"width": 2, "length": 3}, {"width": 3, "length": 2}]
    sent, shared = (
        ParallelEnv(2, WideEnv, create_env_kwargs=kwargs, mp_start_method="fork", shared_memory=share)
        for share in (False, True)
    )
    torch.manual_seed(0)
    expected = sent.rollout(5, break_when_any_done=False)
    monkeypatch.setattr("rl_envs.vector.parallel.to_wire", None)
    torch.manual_seed(0)
    found = shared.rollout(5, break_when_any_done=False)
    sent.close()
    shared.close()
    assert all((row == other).all() for row, other in zip(expected.unbind(0), found.unbind(0), strict=True))


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_resets_of_different_shapes_take_arguments(make):
    class Begun(WideEnv):
        def _reset(self, tensordict=None, start=0, **kwargs):
            fresh = super()._reset(tensordict)
            self.count = self.count + start
            return fresh.set("observation", self.count.clone())

    widths = [{"width": 2, "length": 9}, {"width": 3, "length": 9}]
    env = make(2, Begun, create_env_kwargs=widths, mp_start_method="fork")
    assert env.reset(list_of_kwargs=[{"start": 4}, {"start": 5}])["observation"].flatten().tolist() == [4, 5]
    assert env.rand_step()["next", "observation"].flatten().tolist() == [1, 1]
    env.close()


class Filled(EnvBase):
    """Stateless: adds the constant that it is given, in an entry of its own width, in rows of two."""

    def __init__(self, width):
        super().__init__(batch_size=[2])
        self.observation_spec = Composite(x=Unbounded((2, width)), shape=[2])
        self.state_spec = Composite(x=Unbounded((2, width)), step=Unbounded((2, 1)), shape=[2])
        self.action_spec = Bounded(-1.0, 1.0, (2, 1))
        self.width = width

    def _reset(self, tensordict=None, **kwargs):
        given = None if tensordict is None else tensordict.get("step", None)
        step = torch.ones(2, 1) if given is None else given
        return TensorDict({"x": torch.zeros(2, self.width), "step": step}, batch_size=[2])

    def _step(self, tensordict):
        x = tensordict["x"] + tensordict["step"]
        return TensorDict({"x": x, "reward": x[:, :1], "terminated": x[:, :1] >= 3}, batch_size=[2])


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_states_of_different_shapes_are_the_data(make):
    """Batches of two; what a step reads is what stands in the TensorDict, and a reset takes what it is given."""
    env = make(2, Filled, create_env_kwargs=[{"width": 1}, {"width": 2}], mp_start_method="fork")
    td = env.reset()
    td[0]["x"][1], td[1]["x"][0] = 2, 1
    td = env.rand_step(td)
    assert td[0]["next", "x"].tolist() == [[1], [3]] and td[1]["next", "x"].tolist() == [[2, 2], [1, 1]]
    assert td["next", "done"].flatten().tolist() == [False, True, False, False]
    td = env.maybe_reset(env.step_mdp(td))
    assert td[0]["x"].tolist() == [[1], [0]] and td[1]["x"].tolist() == [[2, 2], [1, 1]]
    td[1]["step"][:] = 0.5
    td = env.rand_step(env.reset(td))
    assert td[0]["next", "x"].tolist() == [[1], [1]] and td[1]["next", "x"].tolist() == [[0.5, 0.5]] * 2
    env.close()


def test_a_reset_of_a_batch_that_has_stepped_takes_the_states_it_is_given():
    env = ParallelEnv(2, Filled, create_env_kwargs={"width": 1}, mp_start_method="fork")
    td = env.rand_step()
    td = env.rand_step(env.reset(env.step_mdp(td).set("step", torch.full((2, 2, 1), 0.5))))
    env.close()
    assert td["next", "x"].flatten().tolist() == [0.5] * 4


def test_transforms_around_different_shapes_are_refused_with_the_cure():
    env = SerialEnv(2, WideEnv, create_env_kwargs=[{"width": 2, "length": 3}, {"width": 3, "length": 2}])
    with pytest.raises(EnvError, match=r"different shapes.*SerialEnv\(n, \[lambda: TransformedEnv"):
        TransformedEnv(env, StepCounter()).reset()
    assert [row["wide"].shape[-1] for row in env.fake_tensordict().unbind(0)] == [2, 3]


def test_bounds_of_their_own_are_kept_by_row():
    class Bounds(CountingEnv):
        def __init__(self, high):
            super().__init__()
            self.action_spec = Bounded(-1.0, high, (1,))

    env = SerialEnv(2, Bounds, create_env_kwargs=[{"high": 1.0}, {"high": 5.0}])
    assert env.action_spec.space.high.flatten().tolist() == [1.0, 5.0]


def test_gradients_pass_through_a_serial_batch():
    env = SerialEnv(2, PendulumEnv)
    td = env.reset()
    action = torch.zeros(2, 1, requires_grad=True)
    for _ in range(2):
        td = env.step_mdp(env.step(td.set("action", action)))
    td["thdot"].sum().backward()
    assert (action.grad != 0).all()


# ------------------------------------------------------------------------------------------------ transforms, policies
class Memory(StateCarrier, torch.nn.Module):
    """A policy that counts its own steps in a carried state, and acts with the count."""

    in_keys = ["observation", "memory"]
    out_keys = ["action", ("next", "memory")]

    def carried_state(self):
        return CarriedState({"memory": Unbounded((1,))}, [])

    def forward_tensors(self, observation, memory):
        return (memory / 100, memory + 1)

    def forward(self, tensordict):
        action, memory = self.forward_tensors(tensordict["observation"], tensordict["memory"])
        return tensordict.set("action", action).set(("next", "memory"), memory)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("base", [ArrayCountingEnv, CountingEnv])
@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_a_policys_state_is_carried_and_starts_anew_with_each_episode(make, base, inside):
    def primed(length):
        env = base(length=length)
        return TransformedEnv(env, TensorDictPrimer(memory=Unbounded((1,)))) if inside else env

    env = make(2, primed, create_env_kwargs=[{"length": 2}, {"length": 3}], mp_start_method="fork")
    data = env.rollout(6, Memory(), break_when_any_done=False)
    env.close()
    assert data["memory"].squeeze(-1).tolist() == [[0, 1] * 3, [0, 1, 2] * 2]
    torch.testing.assert_close(data["action"], data["memory"] / 100)


def test_a_policy_module_acts_on_the_batch():
    policy = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])
    env = ParallelEnv(3, EnvCreator(lambda: GymEnv("Pendulum-v1", num_envs=0)), mp_start_method="fork")
    policy = TensorDictModule(torch.nn.Linear(3, 1), in_keys=["observation"], out_keys=["action"])
    data = env.rollout(4, policy)
    env.close()
    torch.testing.assert_close(data["action"], policy(data.clone())["action"])


# ------------------------------------------------------------------------------------------------------------- access
@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_methods_and_attributes_of_all_environments(make):
    env = make(3, CountingEnv, create_env_kwargs=[{"length": n} for n in (2, 3, 4)], mp_start_method="fork")
    assert [int(length) for length in env.call("length")] == [2, 3, 4]
    assert [each["count"].item() for each in env.call("state_dict")] == [0, 0, 0]
    env.set_attr("length", [torch.tensor([5]), torch.tensor([6]), torch.tensor([7])])
    assert [int(length) for length in env.call("length")] == [5, 6, 7]
    env.close()


def test_a_serial_batch_gives_its_environments():
    env = SerialEnv(2, CountingEnv, create_env_kwargs=[{"length": 2}, {"length": 3}])
    assert isinstance(env[1], CountingEnv) and int(env[1].length) == 3


def test_a_call_that_fails_leaves_the_batch_as_it_was():
    env = ParallelEnv(2, CountingEnv, mp_start_method="fork")
    with pytest.raises(WorkerError, match=r"environment 0 .*no attribute 'nothing'"):
        env.call("nothing")
    env.rollout(2)
    env.close()


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_training_mode_reaches_every_environment(make):
    env = make(2, CountingEnv, mp_start_method="fork")
    env.eval()
    assert env.call("training") == [False, False]
    env.train()
    assert env.call("training") == [True, True]
    env.close()


# ---------------------------------------------------------------------------------------------------------- arguments
@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_an_environment_that_exists_is_refused_with_the_cure(make):
    with pytest.raises(EnvError, match=r"got one that exists already.*lambda: CountingEnv"):
        make(2, CountingEnv())


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_wrong_arguments_are_told(make):
    with pytest.raises(ValueError, match="got 3 entries of create_env_fn"):
        make(2, [CountingEnv] * 3)
    with pytest.raises(ValueError, match="integer >= 1"):
        make(0, CountingEnv)
    with pytest.raises(EnvError, match="got int"):
        make(2, 3)
    with pytest.raises(EnvError, match="returned dict, not an environment"):
        make(2, dict, mp_start_method="fork")


def test_batch_sizes_that_differ_are_refused():
    with pytest.raises(EnvError, match="environment 1 has"):
        SerialEnv(2, CountingEnv, create_env_kwargs=[{"batch_size": [2]}, {"batch_size": [3]}])


def test_an_unknown_start_method_is_told():
    with pytest.raises(ValueError, match="spawn, fork, forkserver"):
        ParallelEnv(2, CountingEnv, mp_start_method="thread")


def test_a_lambda_needs_cloudpickle_for_a_new_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(EnvError, match=r"pip install 'rl-envs\[cloudpickle\]'.*mp_start_method='fork'"):
        ParallelEnv(2, lambda: CountingEnv())


def test_one_environment_may_stay_in_this_process():
    env = ParallelEnv(1, CountingEnv, serial_for_single=True)
    assert isinstance(env, SerialEnv) and env.batch_size == torch.Size([1])
    env = ParallelEnv(1, CountingEnv, mp_start_method="fork")
    assert isinstance(env, ParallelEnv) and env.num_processes == 1
    env.close()


def test_results_lie_on_the_batchs_device():
    env = ParallelEnv(2, ArrayCountingEnv, mp_start_method="fork", device="cpu")
    data = env.rollout(3)
    env.close()
    assert data.device == torch.device("cpu") and env.action_spec.device == torch.device("cpu")


def test_partial_resets_of_batches_of_batches():
    """Two batches of two: only the rows that ended begin anew."""

    class Rows(EnvBase):
        def __init__(self):
            super().__init__(batch_size=[2])
            self.count = torch.zeros(2, 1)
            self.observation_spec = Composite(observation=Unbounded((2, 1)), shape=[2])
            self.action_spec = Categorical(2, shape=(2,))

        def _reset(self, tensordict=None, **kwargs):
            rows = reset_rows(tensordict)
            self.count = self.count.clone()
            self.count[... if rows is None else rows] = 0
            return TensorDict({"observation": self.count.clone()}, batch_size=[2])

        def _step(self, tensordict):
            self.count = self.count + 1
            end = self.count >= torch.tensor([[2.0], [3.0]])
            return TensorDict(
                {"observation": self.count.clone(), "reward": self.count, "terminated": end}, batch_size=[2]
            )

    for make in (SerialEnv, ParallelEnv):
        env = make(2, Rows, mp_start_method="fork")
        data = env.rollout(6, break_when_any_done=False)
        env.close()
        assert data.batch_size == torch.Size([2, 2, 6])
        for row in data["observation"].squeeze(-1):
            assert row.tolist() == [[0, 1] * 3, [0, 1, 2] * 2]


class EndingTensorEnv(TensorEnv):
    """Counts by a tensor function; says that an episode ended only where one does."""

    def __init__(self, length):
        super().__init__()
        self.length = length
        self.observation_spec = Composite(count=Unbounded((1,)))
        self.state_spec = Composite(count=Unbounded((1,)))
        self.action_spec = Bounded(-1.0, 1.0, (1,))

    def _reset(self, tensordict=None, **kwargs):
        batch = torch.Size([]) if tensordict is None else tensordict.batch_size
        return TensorDict({"count": torch.zeros(*batch, 1)}, batch_size=batch)

    def _step_entries(self, entries):
        count = entries["count"] + 1
        written = {"count": count, "reward": count * entries["action"]}
        return {**written, "terminated": count >= self.length} if (count >= self.length).any() else written


@pytest.mark.parametrize("make", [SerialEnv, ParallelEnv])
def test_tensor_environments_end_each_by_itself(make):
    env = make(2, EndingTensorEnv, create_env_kwargs=[{"length": 2}, {"length": 3}], mp_start_method="fork")
    data = env.rollout(7, break_when_any_done=False)
    env.close()
    assert data["count"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0, 1, 0], [0, 1, 2, 0, 1, 2, 0]]
    assert data["next", "done"].squeeze(-1).int().tolist() == [[0, 1, 0, 1, 0, 1, 0], [0, 0, 1, 0, 0, 1, 0]]
    torch.testing.assert_close(data["next", "reward"], data["next", "count"] * data["action"])
