"""rl_core.training.logger: what every logger inherits."""

import pytest
import torch
from tensordict import TensorDict

from rl_core import Logger, Stateful
from rl_core.training.logger import flatten_metrics


class ListLogger(Logger):
    def __init__(self):
        super().__init__("run", "logs")
        self.scalars = []

    def log_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def log_hparams(self, cfg):
        pass

    def log_video(self, name, video, step, *, fps=None):
        pass


def test_nested_metrics_become_names_joined_by_a_slash():
    logger = ListLogger()
    logger.log_metrics({"loss": {"actor": torch.tensor(0.5)}, ("a", "b"): 2}, step=10)
    assert logger.scalars == [("loss/actor", 0.5, 10), ("a/b", 2.0, 10)]


def test_a_tensordict_is_a_mapping_of_metrics():
    losses = TensorDict({"loss_actor": torch.tensor(1.0), "inner": {"x": torch.tensor([2.0])}})
    assert dict(flatten_metrics(losses)) == {"loss_actor": 1.0, "inner/x": 2.0}


def test_a_metric_that_is_no_scalar_is_named():
    with pytest.raises(TypeError, match=r"metric 'loss' must be a number .* got Tensor\[3\]"):
        list(flatten_metrics({"loss": torch.zeros(3)}))


def test_a_histogram_falls_back_to_quantiles():
    logger = ListLogger()
    logger.log_histogram("w", torch.arange(5.0), step=3)
    assert [(name, value) for name, value, _ in logger.scalars] == [
        ("w/min", 0.0),
        ("w/q25", 1.0),
        ("w/median", 2.0),
        ("w/q75", 3.0),
        ("w/max", 4.0),
    ]


def test_a_histogram_of_nothing_writes_nothing():
    logger = ListLogger()
    logger.log_histogram("w", torch.zeros(0), step=3)
    assert logger.scalars == []


def test_modules_and_optimisers_are_stateful():
    module = torch.nn.Linear(1, 1)
    assert isinstance(module, Stateful)
    assert isinstance(torch.optim.Adam(module.parameters()), Stateful)
    assert not isinstance(object(), Stateful)
