"""Loggers: where a run's numbers and videos go. The contract is ``rl_core.Logger``."""
