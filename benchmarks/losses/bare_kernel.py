"""The return scans of rl-objectives called with bare pointers: neither keys nor checks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from _data import GAMMA, trajectories

from rl_objectives.native import library


def build(estimator: str, batch: int, time: int) -> Callable[[], object]:
    """One repetition is one estimate of the whole batch."""
    data = trajectories(batch, time)
    value, next_value, reward = data["state_value"], data["next", "state_value"], data["next", "reward"]
    ends = [data["next", "done"], data["next", "terminated"]]
    kernels = library()
    if kernels is None:
        raise SystemExit("rl-objectives was built without its kernels: there is nothing to compare with")
    if estimator == "gae":
        function, inputs, numbers, count = kernels.rl_gae_f32, [value, next_value, reward, *ends], (GAMMA, 0.95), 2
    elif estimator == "td_lambda":
        function, inputs, numbers, count = kernels.rl_td_lambda_f32, [next_value, reward, *ends], (GAMMA, 0.95), 1
    else:
        log_ratio = data["log_pi"] - data["log_mu"]
        inputs = [log_ratio, value, next_value, reward, *ends]
        function, numbers, count = kernels.rl_vtrace_f32, (GAMMA, 1.0, 1.0), 2
    pointers = [tensor.data_ptr() for tensor in inputs]

    def estimate() -> list[torch.Tensor]:
        outputs = [torch.empty_like(reward) for _ in range(count)]
        function(*pointers, batch, time, 1, *numbers, *[output.data_ptr() for output in outputs])
        return outputs

    estimate.inputs = inputs  # type: ignore[attr-defined]  # keeps the memory behind the pointers alive
    return estimate
