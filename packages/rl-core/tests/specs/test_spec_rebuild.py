"""C02: every spec survives every rebuild, with its kind, bounds, counts, offset and mask."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core import (
    Binary,
    Bounded,
    Categorical,
    Choice,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
    spec_from_dict,
)

SETTINGS = settings(max_examples=20, deadline=None, derandomize=True)

shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
starts = st.integers(-2, 3)


@st.composite
def bounded(draw):
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8]))
    shape = draw(shapes)
    low = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    per_element = draw(st.booleans())
    return Bounded(low if per_element else 1, low + 3 if per_element else 4, shape=shape, dtype=dtype)


@st.composite
def masks(draw, lead, n):
    """A mask of the full lead or of none, with at least one legal category per row; or no mask."""
    kind = draw(st.sampled_from(["none", "row", "full"]))
    if kind == "none":
        return None
    shape = (*lead, n) if kind == "full" else (n,)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) > 0.5
    mask[..., draw(st.integers(0, n - 1))] = True
    return mask


@st.composite
def categorical(draw):
    n, lead = draw(st.integers(1, 5)), draw(shapes)
    return Categorical(n, lead, mask=draw(masks(lead, n)), start=draw(starts))


@st.composite
def one_hot(draw):
    n, lead = draw(st.integers(1, 5)), draw(shapes)
    return OneHot(n, (*lead, n), mask=draw(masks(lead, n)), start=draw(starts))


@st.composite
def multi(draw, kind):
    nvec = torch.tensor(draw(st.sampled_from([[3, 2], [5, 5], [4], [[3, 2], [1, 4]], [[2, 2], [2, 2]]])))
    lead, total = draw(shapes), int(nvec.sum())
    mask_kind = draw(st.sampled_from(["none", "parts", "joint"]))
    mask = None
    if mask_kind == "parts":
        mask = torch.arange(total).expand(*lead, total) % 5 != 1
        mask = torch.cat([part if part.any() else ~part for part in mask.split(nvec.flatten().tolist(), -1)], -1)
    if mask_kind == "joint" and nvec.numel() > 1:
        mask = torch.arange(int(nvec.prod())).reshape(nvec.flatten().tolist()) % 3 != 1
    last = nvec.shape if kind is MultiCategorical else (total,)
    return kind(nvec, (*lead, *last), mask=mask, start=draw(starts))


leaves = st.one_of(
    bounded(),
    categorical(),
    one_hot(),
    multi(MultiCategorical),
    multi(MultiOneHot),
    shapes.map(Unbounded),
    shapes.map(lambda shape: Unbounded(shape, dtype=torch.int32)),
    shapes.map(lambda shape: Binary(shape=(*shape, 3))),
    shapes.map(lambda shape: NonTensor(shape, example_data="text")),
    bounded().map(lambda spec: Choice([spec, spec.replace(low=spec.low + 10, high=spec.high + 10)])),
)


@st.composite
def composites(draw):
    inner = Composite({name: draw(leaves) for name in "xy"}, device="cpu")
    return Composite(a=draw(leaves), b=draw(leaves), nested=Composite(deep=inner, device="cpu"), device="cpu")


specs = st.one_of(leaves, composites())


def expanded(spec: TensorSpec, *sizes: int) -> TensorSpec:
    return spec.expand(*sizes, *spec.shape)


UNCHANGED = {
    "clone": lambda s: s.clone(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda s: pickle.loads(pickle.dumps(s)),
    "replace": lambda s: s.replace(),
    "to device": lambda s: s.to("cpu"),
    "cpu": lambda s: s.cpu(),
    "expand then index": lambda s: expanded(s, 2)[0],
    "expand then last": lambda s: expanded(s, 2, 3)[1, -1],
    "expand then unbind": lambda s: expanded(s, 2).unbind(0)[1],
    "unsqueeze then squeeze": lambda s: s.unsqueeze(0).squeeze(0),
    "torch.unsqueeze then torch.squeeze": lambda s: torch.squeeze(torch.unsqueeze(s, 0), 0),
    "stack then index": lambda s: torch.stack([s, s.clone()])[1],
    "flatten then unflatten": lambda s: expanded(s, 2, 3).flatten(0, 1).unflatten(0, (2, 3))[0, 0],
    "reshape": lambda s: expanded(s, 4).reshape(2, 2, *s.shape)[1][1],
    "permute": lambda s: expanded(s, 2, 3).permute(1, 0, *range(2, 2 + s.ndim))[2, 1],
    "to_dict": lambda s: spec_from_dict(s.to_dict()),
}

LARGER = {
    "expand": lambda s: expanded(s, 2),
    "slice": lambda s: expanded(s, 4)[1:3],
    "tensor index": lambda s: expanded(s, 4)[torch.tensor([0, 3])],
    "list index": lambda s: expanded(s, 4)[[0, 3]],
    "boolean mask": lambda s: expanded(s, 3)[torch.tensor([True, False, True])],
    "index_select": lambda s: torch.index_select(expanded(s, 4), 0, torch.tensor([0, 3])),
    "torch.stack": lambda s: torch.stack([s, s]),
    "None": lambda s: s[None].expand(2, *s.shape),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_rebuild_that_changes_nothing_gives_an_equal_spec(name):
    @SETTINGS
    @given(specs)
    def check(spec):
        if name in ("reshape", "permute") and isinstance(spec, Composite):
            return  # these speak of the batch dimensions only, of which the Composite has none
        rebuilt = UNCHANGED[name](spec)
        assert type(rebuilt) is type(spec)
        assert rebuilt == spec
        assert hash(rebuilt) == hash(spec)
        assert rebuilt.is_in(spec.rand()) and spec.is_in(rebuilt.rand())

    check()


@pytest.mark.parametrize("name", LARGER)
def test_a_rebuild_with_a_batch_keeps_kind_counts_and_members(name):
    @SETTINGS
    @given(specs)
    def check(spec):
        rebuilt = LARGER[name](spec)
        assert type(rebuilt) is type(spec)
        assert rebuilt.shape == (2, *spec.shape)
        assert rebuilt.is_in(rebuilt.rand()) and rebuilt.is_in(rebuilt.rand((5,)))
        assert rebuilt[0] == spec and rebuilt[1] == spec
        for attribute in ("n", "nvec", "start", "domain"):
            if hasattr(spec, attribute):
                assert str(getattr(rebuilt, attribute)) == str(getattr(spec, attribute))

    check()


@SETTINGS
@given(specs)
def test_zero_one_rand_and_projection_are_members(spec):
    for value in (spec.rand(), spec.rand((3,)), spec.zero(), spec.zero((2, 2)), spec.one(), spec.sample((1,))):
        assert spec.contains(value)
        spec.assert_is_in(value)
        assert spec.explain(value) is None
    for value in (spec.blank(), spec.blank((3,))):
        assert spec.is_in(spec.project(value))


@SETTINGS
@given(specs)
def test_projecting_a_member_returns_it(spec):
    value = spec.rand((2,))
    assert spec.project(value) is value


@SETTINGS
@given(st.one_of(categorical(), multi(MultiCategorical)))
def test_one_hot_and_back_is_the_identity(spec):
    hot = spec.to_one_hot_spec()
    assert hot.to_categorical_spec() == spec
    value = spec.rand((2,))
    encoded = spec.to_one_hot(value)
    assert hot.is_in(encoded)
    assert torch.equal(hot.to_categorical(encoded), value)
    assert torch.equal(hot.encode(value), encoded)
    assert spec.is_in(hot.to_categorical(hot.rand((3,))))


@SETTINGS
@given(st.one_of(bounded(), categorical(), one_hot(), multi(MultiCategorical), multi(MultiOneHot)))
def test_to_another_dtype_keeps_the_rest(spec):
    for dtype in (torch.float64, torch.int32):
        cast = spec.to(dtype)
        assert type(cast) is type(spec) and cast.dtype == dtype and cast.shape == spec.shape
        assert cast.is_in(cast.rand((3,))) and cast.is_in(cast.zero())
        assert not cast.is_in(spec.rand())
        assert cast.to(spec.dtype) == spec


@SETTINGS
@given(st.one_of(categorical(), one_hot(), multi(MultiCategorical), multi(MultiOneHot)))
def test_encode_and_to_numpy_are_inverse(spec):
    value = spec.rand((2,))
    assert torch.equal(spec.encode(spec.to_numpy(value)), value)


@SETTINGS
@given(st.one_of(categorical(), one_hot(), multi(MultiCategorical), multi(MultiOneHot)))
def test_enumerate_gives_each_member_once(spec):
    if spec.cardinality() > 300:
        return
    everything = spec.enumerate()
    assert len(everything) == spec.cardinality() == len({str(row.tolist()) for row in everything})
    legal = spec.enumerate(use_mask=True)
    assert len(legal) == sum(spec.is_in(row) for row in everything)
    assert all(spec.is_in(row) for row in legal)


@pytest.mark.parametrize("spec", [Categorical(3), Unbounded(()), Bounded(0.0, 1.0, ())])
def test_a_single_number_is_expanded_to_nothing_more(spec):
    assert spec.expand(()) == spec.expand() == spec and spec.expand(2).shape == (2,)
