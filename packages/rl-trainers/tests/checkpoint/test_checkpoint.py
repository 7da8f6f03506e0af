"""rl_trainers.checkpoint: nested states come back exactly; damaged, foreign and incomplete files say so."""

import json
import math
import random
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_core.errors import CheckpointError
from rl_trainers import Checkpoint, GlobalRNGState

DRIVER = Path(__file__).with_name("resume_driver.py")


class Box:
    """A component whose state is whatever it is given."""

    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        return {"state": self.state}

    def load_state_dict(self, state_dict):
        self.state = state_dict["state"]


def round_trip(state, path, **kwargs):
    Checkpoint(box=Box(state)).save(path)
    box = Box()
    Checkpoint(box=box).load(path, **kwargs)
    return box.state


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
tensors = st.lists(st.integers(-9, 9), max_size=4).map(lambda x: torch.tensor(x, dtype=torch.int16))
keys = st.text(max_size=3) | st.integers() | st.sampled_from(["$tensor", "$dict"])
trees = st.recursive(
    scalars | tensors,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(state=trees)
def test_any_tree_of_data_comes_back(state, tmp_path_factory):
    assert same(state, round_trip(state, tmp_path_factory.mktemp("tree") / "checkpoint"))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
def test_every_dtype_and_shape_comes_back(dtype, tmp_path):
    values = torch.randint(0, 2, (2, 3)).to(dtype)
    state = [values, values.t(), values[0, 0], values[:0]]
    assert same(state, round_trip(state, tmp_path / "c"))


def test_arrays_dtypes_devices_and_tensordicts_come_back(tmp_path):
    td = TensorDict({"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}}, [3])
    array = np.arange(6, dtype=">f8").reshape(2, 3)
    back = round_trip([td, array, torch.float16, torch.device("cpu"), np.float32(0.5)], tmp_path / "c")
    assert (back[0] == td).all() and back[0].batch_size == (3,)
    assert (back[1] == array).all() and back[1].dtype == np.dtype("f8")
    assert back[2:] == [torch.float16, torch.device("cpu"), 0.5]


def test_loaded_tensors_may_be_changed_in_place(tmp_path):
    back = round_trip({"a": torch.zeros(3), "b": np.zeros(3)}, tmp_path / "c")
    back["a"] += 1
    back["b"] += 1


def test_an_object_is_refused_by_its_place(tmp_path):
    with pytest.raises(CheckpointError, match=r"state at box\.state\.fn\[0\] is a builtins\.function"):
        round_trip({"fn": [lambda: 0]}, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_files_hold_no_pickle(tmp_path):
    Checkpoint(net=torch.nn.Linear(2, 2)).save(tmp_path / "c")
    assert sorted(file.name for file in (tmp_path / "c").iterdir()) == ["manifest.json", "tensors.bin"]
    assert json.loads((tmp_path / "c" / "manifest.json").read_text())["format"] == 1


def test_a_component_without_a_state_is_refused_by_name():
    with pytest.raises(CheckpointError, match="component 'loss' is a function without state_dict"):
        Checkpoint(loss=lambda: 0)


def test_a_missing_component_is_named_and_nothing_is_loaded(tmp_path):
    Checkpoint(a=Box(1)).save(tmp_path / "c")
    a, b = Box(0), Box(0)
    with pytest.raises(CheckpointError, match="has no component 'b'; it holds 'a'"):
        Checkpoint(a=a, b=b).load(tmp_path / "c")
    assert a.state == 0
    result = Checkpoint(a=a, b=b).load(tmp_path / "c", strict=False)
    assert (result.loaded, result.missing, a.state, b.state) == (("a",), ("b",), 1, 0)


def test_only_the_components_asked_for_are_loaded(tmp_path):
    Checkpoint(a=Box(1), b=Box(1)).save(tmp_path / "c")
    a, b = Box(0), Box(0)
    Checkpoint(a=a, b=b).load(tmp_path / "c", components=["b"])
    assert (a.state, b.state) == (0, 1)


def test_components_that_nobody_asked_for_warn(tmp_path):
    Checkpoint(a=Box(1), b=Box(1)).save(tmp_path / "c")
    with pytest.warns(UserWarning, match="also holds 'b'"):
        assert Checkpoint(a=Box()).load(tmp_path / "c").unexpected == ("b",)


def test_unknown_fields_of_the_manifest_warn(tmp_path):
    manifest = Checkpoint(a=Box(1)).save(tmp_path / "c") / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "colour": "red"}))
    with pytest.warns(UserWarning, match="unknown fields 'colour'"):
        Checkpoint(a=Box()).load(tmp_path / "c")


def test_a_newer_format_names_the_upgrade(tmp_path):
    manifest = Checkpoint(a=Box(1)).save(tmp_path / "c") / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))
    with pytest.raises(CheckpointError, match="format 2; this version reads up to 1"):
        Checkpoint(a=Box()).load(tmp_path / "c")


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_tensor_file_is_noticed(tmp_path, damage):
    file = Checkpoint(a=Box(torch.arange(100))).save(tmp_path / "c") / "tensors.bin"
    raw = bytearray(file.read_bytes())
    raw[50] ^= 1
    file.write_bytes(raw if damage == "flip" else raw[:-1])
    with pytest.raises(CheckpointError, match=r"tensors\.bin is damaged"):
        Checkpoint(a=Box()).load(tmp_path / "c")


def test_a_folder_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        Checkpoint(a=Box()).load(tmp_path)


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CheckpointError, match="is no checkpoint; it will not be overwritten"):
        Checkpoint(a=Box(1)).save(tmp_path)


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path):
    Checkpoint(a=Box(1)).save(tmp_path / "c")
    with pytest.raises(CheckpointError):
        Checkpoint(a=Box(object())).save(tmp_path / "c")
    assert round_trip(2, tmp_path / "other") == 2
    box = Box()
    Checkpoint(a=box).load(tmp_path / "c")
    assert box.state == 1


def test_a_crash_between_the_renames_loses_nothing(tmp_path):
    path = Checkpoint(a=Box(1)).save(tmp_path / "c")
    path.rename(tmp_path / ".c.old")
    box = Box()
    Checkpoint(a=box).load(path)
    assert box.state == 1


def test_saving_twice_leaves_one_folder(tmp_path):
    for state in (1, 2):
        Checkpoint(a=Box(state)).save(tmp_path / "c", metadata={"frames": state})
    assert [file.name for file in tmp_path.iterdir()] == ["c"]
    assert Checkpoint.metadata(tmp_path / "c") == {"frames": 2}


def test_a_component_that_refuses_its_state_is_named(tmp_path):
    Checkpoint(net=torch.nn.Linear(2, 2)).save(tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"component 'net' \(Linear\) refuses its state(.|\n)*size mismatch"):
        Checkpoint(net=torch.nn.Linear(3, 2)).load(tmp_path / "c")


def test_ordered_dicts_of_modules_load(tmp_path):
    assert isinstance(torch.nn.BatchNorm1d(2).state_dict(), OrderedDict)
    net, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    net(torch.randn(8, 2))
    Checkpoint(net=net).save(tmp_path / "c")
    Checkpoint(net=other).load(tmp_path / "c")
    assert torch.equal(net.running_mean, other.running_mean) and other.num_batches_tracked == 1


def test_the_global_generators_go_on_where_they_were(tmp_path):
    def draw():
        return random.random(), random.gauss(0, 1), np.random.randn(3).tolist(), torch.randn(3).tolist()

    random.gauss(0, 1)  # leaves a second number waiting inside the generator
    np.random.randn()
    Checkpoint(rng=GlobalRNGState()).save(tmp_path / "c")
    first = draw()
    Checkpoint(rng=GlobalRNGState()).load(tmp_path / "c")
    assert draw() == first


def test_a_run_resumed_in_a_new_process_equals_one_that_never_stopped(tmp_path):
    def drive(*arguments):
        subprocess.run([sys.executable, str(DRIVER), *map(str, arguments)], check=True)

    drive("--updates", 20, "--save", tmp_path / "straight")
    drive("--updates", 10, "--save", tmp_path / "half")
    drive("--updates", 20, "--load", tmp_path / "half", "--save", tmp_path / "resumed")
    straight, resumed = (json.loads((tmp_path / run / "manifest.json").read_text()) for run in ("straight", "resumed"))
    assert straight["components"] == resumed["components"]
    assert straight["tensors"] == resumed["tensors"]  # length and checksum of every tensor's bytes
    half = json.loads((tmp_path / "half" / "manifest.json").read_text())
    assert half["tensors"]["crc32"] != straight["tensors"]["crc32"]
