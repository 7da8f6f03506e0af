"""QValueModule and QValueActor: greedy actions by hand."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.specs import Binary, MultiOneHot, OneHot
from rl_core.specs import Categorical as CategoricalSpec
from rl_modules import QValueActor, QValueModule

VALUES = torch.tensor([[1.0, 5.0, 2.0], [7.0, 7.0, 7.0]])


def test_one_hot_actions_have_one_one_also_among_equals():
    action, values, chosen = QValueModule("one_hot").forward_tensors(VALUES)
    assert action.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert chosen.tolist() == [[5.0], [7.0]]
    assert torch.equal(values, VALUES)


def test_categorical_actions_have_no_trailing_dim_and_chosen_values_have_one():
    action, _, chosen = QValueModule(spec=CategoricalSpec(3)).forward_tensors(VALUES)
    assert (action.tolist(), chosen.shape) == ([1, 0], (2, 1))


def test_groups_of_one_hot_actions_are_chosen_each():
    values = torch.tensor([[1.0, 2.0, 9.0, 8.0, 7.0]])
    action, _, chosen = QValueModule(spec=MultiOneHot([2, 3])).forward_tensors(values)
    assert action.int().tolist() == [[0, 1, 1, 0, 0]]
    assert chosen.tolist() == [[11.0]]


def test_masked_actions_are_never_chosen():
    module = QValueModule("categorical", action_mask_key="mask")
    mask = torch.tensor([[True, False, True], [False, False, True]])
    data = module(TensorDict({"action_value": VALUES, "mask": mask}, [2]))
    assert data["action"].tolist() == [2, 2]
    assert data["chosen_action_value"].tolist() == [[2.0], [7.0]]
    with pytest.raises(RuntimeError, match="row 1"):
        module.forward_tensors(VALUES, torch.tensor([[True, True, True], [False, False, False]]))


def test_one_hot_actions_take_the_specs_dtype():
    spec = OneHot(3)
    assert spec.is_in(QValueModule(spec=spec).forward_tensors(VALUES)[0])


def test_an_action_space_that_cannot_be_told_raises():
    for spec in (None, Binary(3)):
        with pytest.raises(ValueError, match="action_space="):
            QValueModule(spec=spec)
    with pytest.raises(ValueError, match="knows the action spaces"):
        QValueModule("continuous")


def test_an_actor_on_a_plain_network():
    actor = QValueActor(nn.Linear(4, 3), spec=OneHot(3))
    data = actor(TensorDict({"observation": torch.randn(6, 4)}, [6]))
    assert (data["action"].shape, data["action_value"].shape) == ((6, 3), (6, 3))
    torch.testing.assert_close(data["chosen_action_value"], data["action_value"].max(-1, keepdim=True).values)


def test_an_actor_on_a_module_uses_its_key():
    actor = QValueActor(TensorDictModule(nn.Linear(4, 3), ["pixels"], ["q"]), action_space="categorical")
    assert actor.in_keys == ["pixels"]
    assert actor.out_keys == ["action", "q", "chosen_action_value"]
