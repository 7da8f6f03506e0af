"""The import of vllm, with the pip command where it is not installed.

It is imported when an engine is made or used, not with the modules that are about it: it takes seconds and gigabytes,
and their names should be there for documentation and type checks without it.
"""

from __future__ import annotations

from typing import Any

from rl_core.registry import missing_extra

__all__ = ["vllm_module"]


def vllm_module() -> Any:
    """The module ``vllm``.

    Raises:
        PluginNotInstalledError: it is absent.
    """
    try:
        import vllm
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise missing_extra("vllm", "rl-llm", "vllm") from error
    return vllm
