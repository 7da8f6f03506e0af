"""Weights of a trained model reach the copies that generate, with a version."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from rl_core import WeightSync
from rl_core.errors import CollectorError
from rl_llm.policies.transformers import TransformersWrapper
from rl_llm.testing.tiny import tiny_llama
from rl_llm.weights.module_sync import ModuleWeightSync, named_weights
from rl_llm.weights.vllm_worker import WeightsExtension


def actors(count=2):
    return [TransformersWrapper(tiny_llama(20, seed=i), input_mode="tokens") for i in range(count)]


def same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_it_is_a_weight_sync():
    assert isinstance(ModuleWeightSync(actors(1)), WeightSync)


def test_all_actors_get_the_weights_and_the_version():
    learner, policies = tiny_llama(20, seed=9), actors()
    sync = ModuleWeightSync(policies)
    assert sync.version == 0
    assert [policy.policy_version for policy in policies] == [0, 0]
    assert sync.send(learner) == 1
    assert all(same(policy.model, learner) for policy in policies)
    assert sync.send(learner.state_dict()) == 2 == sync.version
    assert [policy.policy_version for policy in policies] == [2, 2]


def test_a_chosen_actor_alone_is_updated():
    learner, (first, second) = tiny_llama(20, seed=9), actors()
    before = copy.deepcopy(first.model)
    ModuleWeightSync([first, second]).send(learner, worker_ids=[1])
    assert same(first.model, before) and same(second.model, learner)
    assert (first.policy_version, second.policy_version) == (0, 1)


def test_all_versions_of_a_policy_see_the_new_version():
    (policy,) = actors(1)
    scorer = policy.get_new_version(generate=False)
    ModuleWeightSync([policy]).send(tiny_llama(20, seed=9))
    assert scorer.policy_version == 1


def test_another_model_is_refused_and_nothing_is_copied():
    learner = tiny_llama(20, seed=9, layers=1)
    policies = actors()
    before = copy.deepcopy(policies[0].model)
    sync = ModuleWeightSync(policies)
    with pytest.raises(CollectorError, match=r"missing .*layers\.1"):
        sync.send(learner)
    with pytest.raises(CollectorError, match="another shape"):
        sync.send(tiny_llama(20, hidden=32))
    assert sync.version == 0
    assert same(policies[0].model, before)


def test_the_learner_may_be_a_policy_and_targets_may_be_plain_modules():
    learner, target = nn.Linear(2, 3), nn.Linear(2, 3)
    assert ModuleWeightSync([target]).send(learner) == 1
    assert torch.equal(target.weight, learner.weight)
    (policy,) = actors(1)
    twin = tiny_llama(20, seed=5)
    ModuleWeightSync([twin]).send(policy)
    assert same(twin, policy.model)


def test_weights_stay_apart_after_a_send():
    learner, (policy,) = tiny_llama(20, seed=9), actors(1)
    ModuleWeightSync([policy]).send(learner)
    with torch.no_grad():
        learner.lm_head.weight.add_(1.0)
    assert not same(policy.model, learner)


def test_what_is_no_weights_is_refused():
    with pytest.raises(CollectorError, match="got int"):
        named_weights(3)
    with pytest.raises(CollectorError, match="not empty"):
        named_weights({})
    with pytest.raises(CollectorError, match="at least one module"):
        ModuleWeightSync([])
    with pytest.raises(CollectorError, match=r"asked for \[4\]"):
        ModuleWeightSync(actors(1)).send(tiny_llama(20), worker_ids=[4])


def test_an_engines_worker_answers_with_the_version_it_has_taken():
    class Worker(WeightsExtension):
        def reload_weights(self, weights_iterator):
            self.taken = dict(weights_iterator)

    worker = Worker()
    assert worker.rl_llm_version() == 0
    assert worker.rl_llm_update(3, [("a", torch.ones(1))]) == 3
    assert worker.rl_llm_version() == 3
    assert worker.taken == {"a": torch.ones(1)}
