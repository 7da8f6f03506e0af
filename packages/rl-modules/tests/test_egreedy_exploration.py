"""EGreedyModule and its alias: when it acts, masks, annealing."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from rl_core import ExplorationType, set_exploration_type
from rl_core.specs import Bounded, Composite, OneHot
from rl_core.specs import Categorical as CategoricalSpec
from rl_modules import Actor, EGreedyModule, EGreedyWrapper, QValueActor


def acts(**options):
    return EGreedyModule(CategoricalSpec(4), eps_init=1.0, eps_end=1.0, **options)


def test_it_acts_under_random_or_outside_of_a_context_only():
    torch.manual_seed(0)
    action = torch.zeros(1000, dtype=torch.int64)
    for how, changes in ((None, True), (ExplorationType.RANDOM, True), (ExplorationType.DETERMINISTIC, False)):
        with set_exploration_type(how):
            (found,) = acts().forward_tensors(action)
        assert bool((found != 0).any()) is changes


def test_a_masked_action_is_never_taken():
    mask = torch.tensor([True, False, True, False]).expand(1000, 4)
    data = TensorDict({"action": torch.zeros(1000, dtype=torch.int64), "mask": mask}, [1000])
    assert acts(action_mask_key="mask")(data)["action"].unique().tolist() == [0, 2]


def test_masks_fit_one_hot_actions():
    module = EGreedyModule(OneHot(3), 1.0, 1.0, action_mask_key="mask")
    action = torch.tensor([True, False, False]).expand(500, 3)
    (found,) = module.forward_tensors(action, torch.tensor([False, True, True]).expand(500, 3))
    assert found.dtype == torch.bool
    assert found.sum(0)[0] == 0
    assert (found.sum(-1) == 1).all()


def test_an_all_false_mask_raises_naming_the_row():
    mask = torch.tensor([[True] * 4, [False] * 4])
    with pytest.raises(ValueError, match="row 1"):
        acts(action_mask_key="mask").forward_tensors(torch.zeros(2, dtype=torch.int64), mask)


def test_rows_explore_on_their_own_and_as_a_whole():
    torch.manual_seed(0)
    module = EGreedyModule(Bounded(low=-1.0, high=1.0, shape=(2,)), 0.5, 0.5)
    (found,) = module.forward_tensors(torch.full((4000, 2), 9.0))
    kept = (found == 9.0).all(-1)
    assert ((found == 9.0).any(-1) == kept).all()
    assert kept.float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_a_batched_spec_keeps_its_batch():
    spec = Composite({"action": Bounded(low=-1.0, high=1.0, shape=(3, 2))}, shape=(3,))
    data = TensorDict({"action": torch.full((3, 2), 9.0)}, [3])
    assert (EGreedyModule(spec, 1.0, 1.0)(data)["action"].abs() <= 1).all()


def test_epsilon_falls_linearly_and_stops_at_its_end():
    module = EGreedyModule(CategoricalSpec(2), 1.0, 0.2, annealing_num_steps=100)
    module.step(50)
    assert module.eps.item() == pytest.approx(0.6)
    module.step(1000)
    assert module.eps.item() == pytest.approx(0.2)
    assert "eps" in module.state_dict()


def test_an_action_that_does_not_fit_the_spec_raises():
    with pytest.raises(RuntimeError, match="shape"):
        EGreedyModule(OneHot(3), 1.0, 1.0).forward_tensors(torch.zeros(5, 4))


def test_one_environments_index_explores_too():
    module = EGreedyModule(CategoricalSpec(2), 1.0, 1.0)
    with set_exploration_type(ExplorationType.RANDOM):
        actions = [module.forward_tensors(torch.tensor(0))[0] for _ in range(50)]
    assert {action.shape for action in actions} == {torch.Size([])} and {int(action) for action in actions} == {0, 1}


@pytest.mark.parametrize("eps", [(0.1, 0.5), (1.5, 0.1)])
def test_bad_epsilons_raise(eps):
    with pytest.raises(ValueError, match="eps_end"):
        EGreedyModule(CategoricalSpec(2), *eps)


def test_the_wrapper_takes_the_policys_spec():
    policy = QValueActor(nn.Linear(3, 2), spec=OneHot(2))
    explorer = EGreedyWrapper(policy, eps_init=1.0)
    data = TensorDict({"observation": torch.zeros(200, 3)}, [200])
    with set_exploration_type(ExplorationType.RANDOM):
        assert len(explorer(data.copy())["action"].int().argmax(-1).unique()) == 2
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        assert len(explorer(data.copy())["action"].int().argmax(-1).unique()) == 1


def test_the_wrapper_without_any_spec_raises():
    with pytest.raises(RuntimeError, match=r"spec=env\.action_spec"):
        EGreedyWrapper(Actor(nn.Linear(3, 1)))
