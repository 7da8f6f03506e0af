import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core import ContainerRunner, RowRunner, checked_mode
from rl_core.errors import PolicyError, SpecError
from rl_core.testing import ArrayCountingEnv, CountingEnv


@pytest.mark.parametrize("runner, kind", [(RowRunner, ArrayCountingEnv), (ContainerRunner, CountingEnv)])
def test_runs_go_on_where_the_last_one_ended(runner, kind):
    run = runner(kind(length=[2, 3], batch_size=[2]), None, 2)
    first, second = run.run(), run.run()
    assert first["observation"].squeeze(-1).tolist() == [[0, 1], [0, 1]]
    assert second["observation"].squeeze(-1).tolist() == [[0, 1], [2, 0]]
    assert second["next", "observation"].squeeze(-1).tolist() == [[1, 2], [3, 1]]


@pytest.mark.parametrize("batch, steps", [((), 3), ((1,), 3), ((3,), 1), ((1, 1), 3), ((2, 1), 3)])
def test_a_batch_is_safe_to_keep(batch, steps):
    run = RowRunner(ArrayCountingEnv(length=9, batch_size=batch), None, steps)
    first = run.run()
    kept = first.clone()
    run.run()
    assert (first == kept).all()


def test_one_row_keeps_the_end_of_its_episode_and_the_beginning_of_the_next():
    batch = RowRunner(ArrayCountingEnv(length=2, batch_size=[1]), None, 4).run()
    assert batch["observation"].flatten().tolist() == [0, 1, 0, 1]
    assert batch["next", "observation"].flatten().tolist() == [1, 2, 1, 2]
    assert batch["next", "done"].flatten().tolist() == [False, True, False, True]


def test_shorter_runs_go_on_too():
    run = RowRunner(ArrayCountingEnv(length=9), None, 4)
    assert run.run(2)["observation"].flatten().tolist() == [0, 1]
    assert run.run(1)["observation"].flatten().tolist() == [2]
    assert run.run()["observation"].flatten().tolist() == [3, 4, 5, 6]


def test_a_planned_policy_equals_the_policy_on_a_tensordict():
    policy = TensorDictModule(nn.Linear(1, 1), ["observation"], ["action"])
    with torch.no_grad():
        planned = RowRunner(ArrayCountingEnv(length=9, batch_size=[3]), policy, 5).run()
        plain = RowRunner(ArrayCountingEnv(length=9, batch_size=[3]), lambda td: policy(td), 5).run()
    assert torch.allclose(planned["action"], plain["action"])


class Memory:
    """Carries a hidden state: written under "next", read at the root of the step after."""

    in_keys, out_keys = ["hidden", "observation"], ["action", ("next", "hidden")]

    def forward_tensors(self, hidden, observation):
        return observation * 0, hidden + observation


class RememberingEnv(ArrayCountingEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        spec = self.observation_spec.clone()
        spec["hidden"] = spec["observation"].clone()
        self.observation_spec = spec

    def row_program(self, columns):
        program = super().row_program(columns)

        def reset(t, mask):
            program.reset(t, mask)
            columns["hidden"][t][... if mask is None else mask] = 0

        return type(program)(program.step, reset)


def test_recurrent_state_travels_to_the_next_row_and_resets_with_it():
    data = RowRunner(RememberingEnv(length=[3, 9], batch_size=[2]), Memory(), 5).run()
    assert data["hidden"].squeeze(-1).tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 3, 6]]
    assert data["next", "hidden"].squeeze(-1).tolist() == [[0, 1, 3, 0, 1], [0, 1, 3, 6, 10]]


def test_checked_mode_checks_whole_batches():
    def far(observation):
        return observation * 0 + 7

    with checked_mode(), pytest.raises(SpecError):
        RowRunner(ArrayCountingEnv(), _policy(far), 3).run()


def _policy(function):
    from rl_core import wrap_policy

    return wrap_policy(function, ArrayCountingEnv())


@pytest.mark.parametrize("kind", [ArrayCountingEnv, CountingEnv])
def test_an_action_is_never_broadcast_into_its_place(kind):
    with pytest.raises(PolicyError, match=r"'action' of shape \(2, 2\); its spec says \(2, 1\)"):
        kind(batch_size=[2]).rollout(3, lambda observation: observation.expand(2, 2))


def test_a_rollout_lives_on_the_environments_device():
    env = ArrayCountingEnv()
    env.device = torch.device("cpu")
    assert env.rollout(2).device == torch.device("cpu")


def test_checked_mode_names_the_entry():
    with checked_mode(), pytest.raises(SpecError, match="the action 'action' is not in its spec"):
        CountingEnv().step(CountingEnv().reset().set("action", torch.full((1,), 7.0)))


def test_state_goes_on_in_another_runner():
    env = ArrayCountingEnv(length=9)
    one = RowRunner(env, None, 3)
    one.run()
    two = RowRunner(env, None, 3)
    two.load_state_dict(one.state_dict())
    assert two.run()["observation"].flatten().tolist() == [3, 4, 5]


def test_inputs_that_a_module_takes_by_name_arrive_under_their_names():
    class Difference(nn.Module):
        def forward(self, minuend, subtrahend):
            return minuend.float() - subtrahend

    policy = TensorDictModule(
        Difference(), in_keys={"subtrahend": "observation", "minuend": "done"}, out_keys=["action"]
    )
    data = RowRunner(ArrayCountingEnv(length=9), policy, 3).run()
    assert data["action"].squeeze(-1).tolist() == [0.0, -1.0, -2.0]


class HandsOutItsWeight:
    """A policy whose action is a view of its parameter, which is written in place before the third call."""

    def __init__(self):
        self.weight, self.calls, self.runner = torch.ones(1), 0, None

    def __call__(self, tensordict):
        if self.calls == 2:
            self.runner.keep()
            self.weight.fill_(5.0)
        self.calls += 1
        return tensordict.set("action", self.weight.expand((*tensordict.shape, 1)))


@pytest.mark.parametrize("runner, kind", [(RowRunner, ArrayCountingEnv), (ContainerRunner, CountingEnv)])
def test_steps_that_were_kept_outlast_new_weights(runner, kind):
    policy = HandsOutItsWeight()
    policy.runner = runner(kind(length=9, batch_size=[2]), policy, 4)
    assert policy.runner.run()["action"].squeeze(-1).tolist() == [[1, 1, 5, 5]] * 2
