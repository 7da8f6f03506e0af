import torch

from rl_core import ContainerRunner
from rl_core.testing import CountingEnv


class SelfResetting(CountingEnv):
    """Starts over by itself, as many accelerated simulators do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.auto_reset = True
        self.resets = 0

    def _reset(self, tensordict=None, **kwargs):
        self.resets += 1
        return super()._reset(tensordict, **kwargs)

    def _step(self, tensordict):
        td = super()._step(tensordict)
        self.count = torch.where(td["terminated"], torch.zeros_like(self.count), self.count)
        return td.set("observation", self.count.clone())


def test_the_observation_returned_at_an_end_starts_the_next_episode():
    env = SelfResetting(length=[2, 3], batch_size=[2])
    data = ContainerRunner(env, None, 5).run()
    assert data["observation"].squeeze(-1).tolist() == [[0, 1, 0, 1, 0], [0, 1, 2, 0, 1]]
    assert env.resets == 1


def test_the_lost_last_observation_is_marked():
    env = SelfResetting(length=[2, 3], batch_size=[2])
    following = ContainerRunner(env, None, 3).run()["next", "observation"].squeeze(-1)
    assert torch.equal(following.isnan(), torch.tensor([[False, True, False], [False, False, True]]))
    assert following[0, 2] == 1


def test_a_reset_that_was_not_the_simulators_own_resets_it():
    env = SelfResetting(length=9)
    env.step(env.rand_action(env.reset()))
    assert env.reset()["observation"].item() == 0 and env.resets == 2
