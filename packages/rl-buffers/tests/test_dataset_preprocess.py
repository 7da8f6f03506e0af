"""A function over the rows of a dataset, chunk by chunk, in this process and in others, into memory and into files."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from rl_buffers import DatasetError, LeRobotExperienceReplay, TensorDictReplayBuffer


def dataset(**kwargs) -> LeRobotExperienceReplay:
    columns = {
        "observation": torch.arange(12.0).reshape(12, 1),
        "action": torch.arange(12),
        "episode_index": [0] * 6 + [1] * 6,
    }
    return LeRobotExperienceReplay.from_columns(columns, missing_last="repeat", **kwargs)


def doubled(rows: TensorDict) -> TensorDict:
    return TensorDict({"x": rows["observation"] * 2, "next": {"a": rows["action"]}}, rows.batch_size)


def even(rows: TensorDict) -> TensorDict:
    return rows.select("action")[rows["action"] % 2 == 0]


def failing(rows: TensorDict) -> TensorDict:
    if (rows["action"] == 7).any():
        raise ZeroDivisionError("row seven")
    return rows


@pytest.mark.parametrize("num_workers", [0, 2])
def test_chunks_come_back_in_order_and_the_dataset_stays_as_it_is(num_workers):
    data = dataset()
    storage = data.preprocess(doubled, num_workers, chunksize=5, mp_start_method="fork")
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=4)
    assert buffer[:]["x"].flatten().tolist() == [2.0 * i for i in range(12)]
    assert buffer[:]["next", "a"].tolist() == list(range(12)) and data[1]["observation"].item() == 1


def test_a_function_may_drop_rows():
    assert dataset().preprocess(even, chunksize=5).get(torch.arange(6))["action"].tolist() == [0, 2, 4, 6, 8, 10]


def test_the_result_may_lie_in_files(tmp_path):
    storage = dataset().preprocess(doubled, chunksize=5, dest=tmp_path / "rows", num_frames=7)
    assert len(storage) == 7 and (tmp_path / "rows" / "x.bin").stat().st_size == 28
    assert storage.get(torch.tensor([6]))["x"].item() == 12


def test_rows_of_whole_episodes_are_mapped_too():
    storage = dataset(split_trajs=True).preprocess(lambda rows: rows.select("observation"), chunksize=1)
    assert storage.get(torch.arange(2)).batch_size == (2, 6)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_failure_names_the_rows(num_workers):
    with pytest.raises(DatasetError, match="rows 5 to 9: ZeroDivisionError: row seven"):
        dataset().preprocess(failing, num_workers, chunksize=5, mp_start_method="fork")


def test_a_failure_leaves_no_files(tmp_path):
    with pytest.raises(DatasetError):
        dataset().preprocess(failing, chunksize=5, dest=tmp_path / "rows")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (lambda rows: rows["action"], "returned Tensor"),
        (lambda rows: TensorDict({}, []), "batch size"),
        (lambda rows: TensorDict({"x": "text"}, rows.batch_size), "no tensors: 'x'"),
        (lambda rows: rows.select("action") if rows["action"][0] else rows, "for some chunks"),
    ],
)
def test_another_result_than_rows_of_one_structure_is_an_error(fn, text):
    with pytest.raises(DatasetError, match=text):
        dataset().preprocess(fn, chunksize=5)


@pytest.mark.parametrize("options", [{"chunksize": 0}, {"num_workers": -1}])
def test_counts_below_their_least_are_errors(options):
    with pytest.raises(DatasetError, match="at least"):
        dataset().preprocess(doubled, **options)
