"""Environments of different shapes side by side: specs, rollouts and collectors, in one process and in several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase

from rl_collectors import Collector
from rl_core import Bounded, Composite, EnvBase, Unbounded, check_env_specs
from rl_envs import GymEnv, ParallelEnv, SerialEnv


class Line(EnvBase):
    """Walks along a line by its action; observes the place in an entry of its own width, and the number of steps."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.width, self.length, self.count = width, length, 0
        self.place = torch.zeros(())
        self.observation_spec = Composite(count=Unbounded((1,)), place=Unbounded((width,)))
        self.action_spec = Bounded(-1.0, 1.0, (width,))

    def _observed(self) -> dict[str, torch.Tensor]:
        return {"count": torch.tensor([float(self.count)]), "place": self.place.expand(self.width).clone()}

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.count, self.place = 0, torch.rand(())
        return TensorDict(self._observed())

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.count, self.place = self.count + 1, self.place + tensordict["action"].sum()
        ended = torch.tensor([self.count >= self.length])
        return TensorDict({**self._observed(), "reward": self.place.reshape(1).clone(), "terminated": ended})


LINES = [{"width": 2, "length": 3}, {"width": 3, "length": 2}, {"width": 2, "length": 4}]
MAKERS = {
    "serial": lambda **kwargs: SerialEnv(3, Line, create_env_kwargs=LINES, **kwargs),
    "parallel": lambda **kwargs: ParallelEnv(3, Line, create_env_kwargs=LINES, mp_start_method="fork", **kwargs),
    "two in a process": lambda **kwargs: ParallelEnv(
        3, Line, create_env_kwargs=LINES, mp_start_method="fork", envs_per_worker=2, **kwargs
    ),
}


@pytest.fixture(params=MAKERS)
def lines(request: pytest.FixtureRequest) -> Iterator[EnvBase]:
    env = MAKERS[request.param]()
    yield env
    env.close()


def test_the_specs_of_every_row_hold(lines: EnvBase) -> None:
    assert [row.action_spec.shape[-1] for row in lines.row_specs or []] == [2, 3, 2]
    check_env_specs(lines, seed=0)


def test_a_collector_yields_a_lazy_stack_of_rows_through_their_ends(lines: EnvBase) -> None:
    lines.set_seed(0)
    batches = list(Collector(lines, None, frames_per_batch=12, total_frames=24))
    assert all(isinstance(batch, LazyStackedTensorDict) and batch.batch_size == (3, 4) for batch in batches)
    assert batches[0].names[-1] == "time"
    for index, kwargs in enumerate(LINES):
        row = torch.cat([batch[index] for batch in batches])
        width, length = kwargs["width"], kwargs["length"]
        assert row["place"].shape == row["next", "place"].shape == row["action"].shape == (8, width)
        assert row["count"].flatten().tolist() == [t % length for t in range(8)]
        assert row["next", "count"].flatten().tolist() == [t % length + 1 for t in range(8)]
        assert row["next", "done"].flatten().tolist() == [t % length == length - 1 for t in range(8)]
        torch.testing.assert_close(row["next", "place"], row["place"] + row["action"].sum(-1, keepdim=True))
        torch.testing.assert_close(row["next", "reward"], row["next", "place"][:, :1])
        ids = row["collector", "traj_ids"]
        assert all((ids[t + 1] != ids[t]) == row["next", "done"][t].item() for t in range(7))


def test_a_policy_acts_on_each_row(lines: EnvBase) -> None:
    def policy(td: TensorDictBase) -> TensorDictBase:
        for row in td.unbind(0):
            row.set("action", torch.full_like(row["place"], 0.5))
        return td

    batch = next(iter(Collector(lines, policy, frames_per_batch=9)))
    for row, kwargs in zip(batch.unbind(0), LINES, strict=True):
        assert (row["action"] == 0.5).all()
        torch.testing.assert_close(row["next", "place"], row["place"] + 0.5 * kwargs["width"])


def test_all_give_the_same_numbers() -> None:
    found = []
    for make in MAKERS.values():
        env = make()
        env.set_seed(7)
        torch.manual_seed(0)
        found.append(env.rollout(9, break_when_any_done=False))
        env.close()
    for other in found[1:]:
        for expected, row in zip(found[0].unbind(0), other.unbind(0), strict=True):
            assert (expected == row).all()


def test_gym_environments_of_different_spaces_are_collected_together() -> None:
    names = ["CartPole-v1", "Acrobot-v1"]
    env = ParallelEnv(2, GymEnv, create_env_kwargs=[{"env_name": name} for name in names], mp_start_method="fork")
    check_env_specs(env)
    batch = next(iter(Collector(env, None, frames_per_batch=20)))
    env.close()
    assert [row["observation"].shape[-1] for row in batch.unbind(0)] == [4, 6]
    assert [row["action"].shape[-1] for row in batch.unbind(0)] == [2, 3]
