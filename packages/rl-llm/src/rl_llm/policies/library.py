"""The import of transformers, with the pip command where it is not installed."""

from __future__ import annotations

from rl_core.registry import missing_extra

try:
    import transformers as transformers
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise missing_extra("transformers", "rl-llm", "transformers") from error

__all__ = ["transformers"]
