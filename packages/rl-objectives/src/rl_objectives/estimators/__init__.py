"""Value estimators: modules that write advantages and value targets into a batch of trajectories."""

from rl_objectives.estimators.gae import GAE
from rl_objectives.estimators.td import TD0Estimator, TD1Estimator, TDLambdaEstimator

__all__ = ["GAE", "TD0Estimator", "TD1Estimator", "TDLambdaEstimator"]
