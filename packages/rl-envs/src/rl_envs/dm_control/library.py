"""The import of dm_control, with the pip command where it is not installed or does not fit its simulator."""

from __future__ import annotations

from rl_core.errors import PluginImportError
from rl_core.registry import missing_extra

try:
    import dm_env as dm_env
    from dm_control import suite as suite
    from dm_control.rl import control as control
except ModuleNotFoundError as error:
    if error.name not in ("dm_control", "dm_env"):
        raise
    raise missing_extra("dm_control", "rl-envs", "dm_control") from error
except AttributeError as error:  # dm_control up to 1.0.50 beside mujoco 4
    raise PluginImportError(
        f"dm_control cannot be imported beside the mujoco that is installed ({error}): pip install 'mujoco<4'"
    ) from error

__all__ = ["control", "dm_env", "suite"]
