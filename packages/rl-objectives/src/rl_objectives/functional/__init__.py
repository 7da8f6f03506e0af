"""Returns, advantages and surrogate objectives on plain tensors: no keys, no reduction, no module.

Time series are shaped ``[*B, T, F]`` unless ``time_dim`` says otherwise. ``done`` ends the trace, ``terminated`` stops
bootstrapping; where ``terminated`` is left out, every end counts as a termination.
"""

from rl_objectives.functional.gae import generalized_advantage_estimate, vec_generalized_advantage_estimate
from rl_objectives.functional.masked_gae import masked_generalized_advantage_estimate
from rl_objectives.functional.n_step import n_step_return_estimate
from rl_objectives.functional.retrace import retrace_return_estimate
from rl_objectives.functional.reward_to_go import reward2go
from rl_objectives.functional.td import (
    td0_advantage_estimate,
    td0_return_estimate,
    td1_advantage_estimate,
    td1_return_estimate,
    td_lambda_advantage_estimate,
    td_lambda_return_estimate,
    vec_td1_advantage_estimate,
    vec_td1_return_estimate,
    vec_td_lambda_advantage_estimate,
    vec_td_lambda_return_estimate,
)
from rl_objectives.functional.vtrace import vtrace_advantage_estimate

__all__ = [
    "generalized_advantage_estimate",
    "masked_generalized_advantage_estimate",
    "n_step_return_estimate",
    "retrace_return_estimate",
    "reward2go",
    "td0_advantage_estimate",
    "td0_return_estimate",
    "td1_advantage_estimate",
    "td1_return_estimate",
    "td_lambda_advantage_estimate",
    "td_lambda_return_estimate",
    "vec_generalized_advantage_estimate",
    "vec_td1_advantage_estimate",
    "vec_td1_return_estimate",
    "vec_td_lambda_advantage_estimate",
    "vec_td_lambda_return_estimate",
    "vtrace_advantage_estimate",
]
