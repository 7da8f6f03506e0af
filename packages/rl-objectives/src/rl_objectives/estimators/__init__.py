"""Value estimators: modules that write advantages and value targets into a batch of trajectories."""

from rl_objectives.estimators.gae import GAE
from rl_objectives.estimators.retrace import RetraceEstimator
from rl_objectives.estimators.td import TD0Estimator, TD1Estimator, TDLambdaEstimator
from rl_objectives.estimators.vtrace import VTrace

__all__ = ["GAE", "RetraceEstimator", "TD0Estimator", "TD1Estimator", "TDLambdaEstimator", "VTrace"]
