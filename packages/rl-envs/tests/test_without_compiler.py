"""Worker processes load their libraries without torch's compiler, which hears what it missed if it is loaded later."""

import subprocess
import sys

PROGRAM = """
import sys
import torch.compiler
from rl_envs.vector.worker import _load
from rl_envs.vector.without_compiler import compiler_left_out

ours = torch.compiler.assume_constant_result
_load()
assert "tensordict" in sys.modules and "torch._dynamo" not in sys.modules, "the compiler was loaded"
assert torch.compiler.assume_constant_result is ours, "the compiler's functions were not put back"

def early(): return 1
def late(): return 2

with compiler_left_out():
    assume = torch.compiler.assume_constant_result
    assert assume(early) is early
import torch._dynamo
assume(late)
assert early._dynamo_marked_constant and late._dynamo_marked_constant, "the compiler was not told"
with compiler_left_out():
    assert torch.compiler.assume_constant_result is ours, "there is nothing to leave out any more"

import tensordict
td = tensordict.TensorDict(a=torch.ones(3), batch_size=[3])
compiled = torch.compile(lambda td: td.replace(a=td["a"] + 1), backend="eager")
assert compiled(td)["a"].tolist() == [2, 2, 2]
"""


def test_the_compiler_is_left_out_and_told_later():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
