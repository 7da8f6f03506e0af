"""Environments: ``EnvBase``, ``ArrayEnv``, rollouts and the checker. Concrete environments live in plugins."""

from rl_core.envs.array_env import ArrayEnv as ArrayEnv
from rl_core.envs.base import EnvBase as EnvBase
from rl_core.envs.columns import Columns as Columns
from rl_core.envs.columns import RowProgram as RowProgram
from rl_core.envs.partial_reset import reset_rows as reset_rows
from rl_core.envs.step_mdp import step_mdp as step_mdp
