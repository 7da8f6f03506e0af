"""The loss of the example keeps the promises of a loss, and learns."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from rl_core.errors import LossError
from rl_core.testing import LossKit

SCRIPT = Path(__file__).parent / "custom_loss.py"
spec = importlib.util.spec_from_file_location("custom_loss_example", SCRIPT)
example = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = example  # dataclasses look their module up
spec.loader.exec_module(example)


class TestTheLossKeepsItsPromises(LossKit):
    """The kit of rl_core, as a plugin's author runs it."""

    gradients = {"loss_actor": {"actor_network"}, "loss_value": {"critic_network"}}

    def make_loss(self, **options):
        torch.manual_seed(0)
        return example.SelfImitationLoss(*example.make_networks(), **options)

    def make_batch(self):
        torch.manual_seed(1)
        data = {"observation": torch.randn(16, 4), "action": torch.randint(3, (16,)), "returns": torch.randn(16, 1)}
        return TensorDict(data, [16])


def test_the_equation_by_hand():
    actor, critic = example.self_imitation(
        torch.tensor([-2.0, -2.0]), torch.tensor([1.0, 1.0]), torch.tensor([4.0, 0.0])
    )
    assert actor.tolist() == [6.0, 0.0] and critic.tolist() == [4.5, 0.0]
    with pytest.raises(LossError, match="must have one shape"):
        example.self_imitation(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, 1))


def test_the_script_learns_the_best_arm():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    shares = [float(line.split(":")[1]) for line in done.stdout.splitlines()]
    assert len(shares) == 3 and shares[0] < 0.6 and shares[-1] > 0.9
