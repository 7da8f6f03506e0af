"""Networks called on bare tensors: whichever way their keys are written, and only where nothing is added to a call."""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn

from rl_core.errors import KeyMissingError
from rl_core.losses import call_on_tensors
from rl_core.policy import tensor_call


class Twice(nn.Module):
    """A network with keys of its own, and a form for bare tensors."""

    in_keys = ("observation",)

    def __init__(self, out_keys):
        super().__init__()
        self.out_keys = out_keys

    def forward_tensors(self, observation):
        return observation, 2 * observation


@pytest.mark.parametrize("out_keys", [["a", "b"], ("a", "b"), [("a",), ("b",)]])
def test_an_output_is_found_by_its_key_however_the_keys_are_written(out_keys):
    assert call_on_tensors(Twice(out_keys), [torch.ones(3)], "b", [3]).tolist() == [2, 2, 2]
    with pytest.raises(KeyMissingError, match='Twice writes "a", "b", not "c"'):
        call_on_tensors(Twice(out_keys), [torch.ones(3)], "c", [3])


def test_a_hooked_network_is_called_on_a_container_so_that_the_hook_runs():
    module = TensorDictModule(nn.Linear(2, 1), ["observation"], ["value"])
    assert tensor_call(module) is not None
    plain = call_on_tensors(module, [torch.ones(3, 2)], "value", [3])
    module.register_forward_hook(lambda module, inputs, output: output.set("value", output["value"] + 1))
    assert tensor_call(module) is None
    torch.testing.assert_close(call_on_tensors(module, [torch.ones(3, 2)], "value", [3]), plain + 1)
