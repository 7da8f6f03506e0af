"""The estimators on a TensorDict, values given; of V-trace the function, whose log-probabilities are given as well."""

from __future__ import annotations

from collections.abc import Callable

from _data import GAMMA, trajectories

from rl_objectives import GAE, TDLambdaEstimator
from rl_objectives.functional import vtrace_advantage_estimate


def build(estimator: str, batch: int, time: int) -> Callable[[], object]:
    """One repetition is one estimate of the whole batch."""
    data = trajectories(batch, time)
    if estimator == "vtrace":
        inputs = [data["log_pi"], data["log_mu"], data["state_value"]]
        inputs += [data["next", name] for name in ("state_value", "reward", "done", "terminated")]
        return lambda: vtrace_advantage_estimate(GAMMA, *inputs, time_dim=1)
    module = (GAE if estimator == "gae" else TDLambdaEstimator)(gamma=GAMMA, lmbda=0.95, value_network=None)
    return lambda: module(data)
