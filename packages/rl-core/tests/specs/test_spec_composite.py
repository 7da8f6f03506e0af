"""Composite: the nested dictionary, its shape rules, locks and shape operations."""

import copy
import pickle

import pytest
import torch
from tensordict import TensorDict

from rl_core import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiOneHot,
    NonTensor,
    OneHot,
    Unbounded,
    make_composite_from_td,
)
from rl_core.errors import KeyMissingError, SpecError


@pytest.fixture
def spec():
    return Composite(a=Unbounded(3), nested=Composite(b=Categorical(2), deep=Composite(c=OneHot(3))))


def test_nested_keys_are_read_with_tuples(spec):
    assert spec["nested", "deep", "c"] == OneHot(3) and spec.get(("nested", "b")).n == 2
    assert ("nested", "b") in spec and ("nested", "z") not in spec and "a" in spec
    assert spec.get("z", None) is None
    with pytest.raises(KeyMissingError, match="no entry 'z'; it has"):
        spec["z"]


def test_keys_items_and_values_walk_the_tree(spec):
    assert list(spec.keys()) == ["a", "nested"] and list(spec) == ["a", "nested"]
    assert list(spec.keys(True, True)) == ["a", ("nested", "b"), ("nested", "deep", "c")]
    assert list(spec.keys(True)) == ["a", "nested", ("nested", "b"), ("nested", "deep"), ("nested", "deep", "c")]
    assert list(spec.keys(False, True)) == ["a"]
    assert list(dict(spec.items(True, True))) == list(spec.keys(True, True))
    assert len(spec.values(include_nested=True, leaves_only=True)) == 3
    assert list(spec.keys(True, True, is_leaf=lambda kind: kind is Composite)) == ["a", "nested"]


def test_setting_a_tuple_key_makes_the_composites_on_the_way():
    spec = Composite(shape=(4,))
    spec["x", "y"] = Unbounded((4, 2))
    assert spec["x"].shape == (4,) and spec["x", "y"].shape == (4, 2)
    assert Composite({("x", "y"): Unbounded(2)})["x"]["y"] == Unbounded(2)
    assert Composite({"x": {"y": Unbounded(2)}})["x", "y"] == Unbounded(2)


def test_entries_are_removed_separated_selected_and_merged(spec):
    assert spec.clone().pop(("nested", "b")) == Categorical(2) and spec.pop("zz", None) is None
    rest = spec.clone()
    taken = rest.separates("a", ("nested", "b"))
    assert list(taken.keys(True, True)) == ["a", ("nested", "b")]
    assert list(rest.keys(True, True)) == [("nested", "deep", "c")]
    assert rest.separates("zz", default=None) is None
    assert spec.select("a") == Composite(a=Unbounded(3)) and "a" not in spec.exclude("a")
    merged = spec.clone().update(Composite(nested=Composite(e=Unbounded(1))))
    assert list(merged.keys(True, True)) == [*spec.keys(True, True), ("nested", "e")]
    del merged["nested"]
    assert list(merged.keys()) == ["a"]


def test_emptiness(spec):
    assert spec.empty().is_empty() and not spec.is_empty() and spec.empty().shape == spec.shape
    hollow = Composite(a=Composite())
    assert not hollow.is_empty() and hollow.is_empty(recurse=True)


def test_a_leaf_that_does_not_begin_with_the_shape_is_refused_with_the_cure():
    with pytest.raises(SpecError, match=r"does not begin with the Composite's shape \[4\].*expand\(4, 3\)"):
        Composite(a=Unbounded(3), shape=(4,))


def test_composites_and_texts_of_fewer_dimensions_are_expanded():
    spec = Composite(nested=Composite(b=Unbounded(3)), text=NonTensor(), shape=(4,))
    assert spec["nested"].shape == (4,) and spec["nested", "b"].shape == (4, 3) and spec["text"].shape == (4,)


def test_what_is_no_spec_is_refused():
    with pytest.raises(SpecError, match="must be a spec, found int"):
        Composite(a=3)
    for name in ("shape", "device", "dtype", "space"):
        with pytest.raises(SpecError, match="cannot be a key"):
            Composite().set(name, Unbounded(1))


def test_batch_size_is_another_name_of_shape():
    assert Composite(a=Unbounded((4, 1)), batch_size=(4,)).batch_size == (4,)
    with pytest.raises(SpecError, match="differ"):
        Composite(shape=(3,), batch_size=(4,))


def test_an_entry_on_another_device_is_refused_with_the_cure():
    with pytest.raises(SpecError, match=r"on meta. Use spec.to\('cpu'\)"):
        Composite(a=Unbounded(1, device="meta"), device="cpu")
    assert Composite(a=Unbounded(1, device="meta")).device is None
    moved = Composite(a=Unbounded(1), n=Composite(b=OneHot(2))).to("meta")
    assert moved.device.type == "meta" and moved["n", "b"].device.type == "meta" and moved.rand()["a"].is_meta


def test_values_have_the_batch_size_and_the_names():
    spec = Composite(
        a=Unbounded((4, 3)), nested=Composite(b=Unbounded((4, 2, 1)), shape=(4, 2)), shape=(4,), names=["env"]
    )
    td = spec.rand((5,))
    assert td.batch_size == (5, 4) and td["nested"].batch_size == (5, 4, 2) and td["a"].shape == (5, 4, 3)
    assert td.names == [None, "env"]
    assert spec.zero().batch_size == (4,) and spec.blank((2,))["a"].shape == (2, 4, 3)


def test_a_locked_composite_does_not_change(spec):
    spec.lock_()
    assert spec.is_locked and spec["nested"].is_locked and spec.locked
    for change in (
        lambda: spec.set("z", Unbounded(1)),
        lambda: spec.pop("a"),
        lambda: spec["nested"].set("z", Unbounded(1)),
        lambda: spec.set(("nested", "z"), Unbounded(1)),
    ):
        with pytest.raises(SpecError, match="Cannot modify a locked Composite"):
            change()
    assert not spec.clone().is_locked and pickle.loads(pickle.dumps(spec)).is_locked
    spec.unlock_().set("z", Unbounded(1))
    assert "z" in spec


def test_shape_operations_act_on_the_batch_dimensions_of_every_entry():
    spec = Composite(a=OneHot(3, (4, 5, 3)), n=Composite(b=Unbounded((4, 5, 2)), shape=(4, 5)), shape=(4, 5))
    assert spec[0].shape == (5,) and spec[0]["a"].shape == (5, 3) and spec[0]["n"].shape == (5,)
    assert spec[..., 0].shape == (4,) and spec[..., 0]["n", "b"].shape == (4, 2)
    assert spec.flatten().shape == (20,) and spec.flatten()["a"].shape == (20, 3)
    assert spec.reshape(2, 10)["n", "b"].shape == (2, 10, 2) and spec.view(-1)["a"].shape == (20, 3)
    assert spec.unsqueeze(-1).shape == (4, 5, 1) and spec.unsqueeze(-1)["a"].shape == (4, 5, 1, 3)
    assert spec.unsqueeze(0).squeeze(0) == spec and spec.permute(1, 0)["a"].shape == (5, 4, 3)
    assert spec[torch.arange(20).reshape(4, 5) % 3 == 0]["a"].shape == (7, 3)
    assert len(spec.unbind(1)) == 5 and spec.unbind(1)[0]["a"].shape == (4, 3)
    assert spec.make_neg_dim(0).shape == (-1, 5) and spec.make_neg_dim(0).rand().batch_size == (1, 5)
    with pytest.raises(SpecError):
        spec.reshape(7)


def test_rebuilding_does_not_share_what_can_change(spec):
    for other in (spec.clone(), copy.deepcopy(spec), spec.expand(2)):
        other.set(("nested", "new"), Unbounded((*other.shape, 1)))
        other["nested", "b"].update_mask([True, False])
    assert ("nested", "new") not in spec and spec["nested", "b"].mask is None


def test_conversions_map_every_category(spec):
    td = spec.rand((2,))
    hot = spec.to_one_hot(td)
    assert hot["nested", "b"].shape == (2, 2) and spec.to_one_hot_spec().is_in(hot)
    back = spec.to_categorical_spec()
    assert back["nested", "deep", "c"] == Categorical(3) and back.is_in(spec.to_categorical(td))


def test_counting_multiplies_the_entries():
    spec = Composite(a=Categorical(3), b=Binary(2), m=MultiOneHot([2, 1]))
    everything = spec.enumerate()
    assert spec.cardinality() == 24 and everything.batch_size == (24,) and spec.is_in(everything)
    assert len({str(row.to_dict()) for row in everything.unbind(0)}) == 24
    assert Composite(a=Unbounded(1)).cardinality() == float("inf")


def test_map_leaves_changes_every_leaf(spec):
    assert all(leaf.shape[0] == 2 for leaf in spec.map_leaves(lambda s: s.expand(2, *s.shape)).values(True, True))


def test_casting_casts_every_leaf():
    cast = Composite(a=Bounded(0, 1, shape=(2,)), t=NonTensor()).to(torch.float64)
    assert cast["a"].dtype == torch.float64 and cast.is_in(cast.rand())


# ---- from a TensorDict


def test_a_tensordict_gives_its_spec():
    td = TensorDict(
        {"a": torch.zeros(4, 3), "n": {"b": torch.zeros(4, dtype=torch.int64)}, "text": "hi"}, batch_size=[4]
    )
    spec = make_composite_from_td(td)
    assert spec.shape == (4,) and spec["a"] == Unbounded((4, 3))
    assert spec["n", "b"] == Unbounded((4, 1), dtype=torch.int64) and spec["text"].example_data == "hi"
    exact = make_composite_from_td(td, unsqueeze_null_shapes=False)
    assert exact["n", "b"].shape == (4,) and exact.is_in(td)
    assert make_composite_from_td(td, dynamic_shape=True)["a"].shape == (4, -1)


def test_a_lazy_stack_gives_a_stacked_spec():
    tds = [TensorDict({"a": torch.zeros(size)}) for size in (2, 3)]
    spec = make_composite_from_td(TensorDict.lazy_stack(tds))
    assert spec.shape == (2,) and spec["a"].shape == (2, -1) and spec.is_in(TensorDict.lazy_stack(tds))
