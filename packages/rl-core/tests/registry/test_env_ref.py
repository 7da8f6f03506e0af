"""EnvRef: a picklable name of an environment."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError

import pytest

from rl_core import EnvRef, registry
from rl_core.errors import UnknownNameError


class Echo:
    def make(self, id, **kwargs):
        return id, kwargs

    def ids(self):
        return []

    def describe(self, id):
        return ""


def test_calling_and_making_build_the_env_and_changes_win():
    with registry.isolated(entry_points=[]):
        registry.envs.register("echo", Echo())
        ref = EnvRef("echo:x-v0", {"a": 1, "b": 2})
        assert ref() == ref.make() == ("x-v0", {"a": 1, "b": 2})
        assert ref(b=3) == ("x-v0", {"a": 1, "b": 3})


def test_it_survives_pickle_and_json():
    ref = EnvRef("gym:CartPole-v1", {"render_mode": "rgb_array"})
    assert pickle.loads(pickle.dumps(ref)) == ref
    assert EnvRef.from_dict(json.loads(json.dumps(ref.to_dict()))) == ref


def test_it_does_not_see_later_changes_of_its_arguments():
    kwargs = {"a": 1}
    ref = EnvRef("gym:x", kwargs)
    kwargs["a"] = 2
    assert ref.kwargs == {"a": 1}
    ref.to_dict()["kwargs"]["a"] = 3
    assert ref.kwargs == {"a": 1}


def test_it_is_frozen_and_hashable_with_unhashable_arguments():
    ref = EnvRef("gym:x", {"sizes": [1, 2]})
    assert len({ref, EnvRef("gym:x", {"sizes": [1, 2]})}) == 1
    with pytest.raises(FrozenInstanceError):
        ref.id = "gym:y"


def test_a_malformed_id_fails_where_it_is_written():
    with pytest.raises(UnknownNameError, match="'provider:id'"):
        EnvRef("CartPole-v1")


def test_data_with_other_keys_is_refused():
    with pytest.raises(ValueError, match="got the keys"):
        EnvRef.from_dict({"id": "gym:x", "kwarg": {}})
