"""Transforms: the contract that environments and buffers share. Concrete ones live in plugins (``rl_envs``)."""

from rl_core.transforms.base import Transform as Transform
from rl_core.transforms.callable import CallableTransform as CallableTransform
from rl_core.transforms.compose import Compose as Compose
from rl_core.transforms.transformed_env import TransformedEnv as TransformedEnv
