"""The limit: a C++ loop compiled here, called with bare pointers and outputs made per call."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _data import GAMMA, LMBDA, batch_of

SOURCE = """
#include <cstdint>
extern "C" void gae(const float* r, const float* v, const float* nv, const uint8_t* done, const uint8_t* term,
                    float* adv, float* target, int64_t batch, int64_t time, float gamma, float lmbda) {
  for (int64_t b = 0; b < batch; ++b) {
    float trace = 0.f;
    for (int64_t i = (b + 1) * time - 1; i >= b * time; --i) {
      const float delta = r[i] + (term[i] ? 0.f : gamma * nv[i]) - v[i];
      trace = delta + (done[i] ? 0.f : gamma * lmbda * trace);
      adv[i] = trace;
      target[i] = trace + v[i];
    }
  }
}
"""


def build(batch: int, time: int) -> Callable[[], object]:
    """One repetition is one estimate of the whole batch."""
    function = _compile()
    data = batch_of(batch, time)
    inputs = [data["next", "reward"], data["state_value"], data["next", "state_value"]]
    inputs += [data["next", "done"], data["next", "terminated"]]
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in inputs]
    sizes = (ctypes.c_int64(batch), ctypes.c_int64(time), ctypes.c_float(GAMMA), ctypes.c_float(LMBDA))

    def estimate() -> tuple[torch.Tensor, torch.Tensor]:
        advantage, target = torch.empty(batch, time, 1), torch.empty(batch, time, 1)
        function(*pointers, ctypes.c_void_p(advantage.data_ptr()), ctypes.c_void_p(target.data_ptr()), *sizes)
        return advantage, target

    estimate.inputs = inputs  # type: ignore[attr-defined]  # keeps the memory behind the pointers alive
    return estimate


def _compile() -> Callable[..., None]:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "gae.cpp"), Path(folder, "gae.so")
        source.write_text(SOURCE, encoding="utf-8")
        subprocess.run(["g++", "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
        function: Callable[..., None] = ctypes.CDLL(str(library)).gae
    return function
