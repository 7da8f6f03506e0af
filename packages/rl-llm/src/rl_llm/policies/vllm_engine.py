"""``make_vllm_engine``: an engine inside of this process whose weights can be changed and whose log-probs are right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rl_llm.policies.vllm_library import vllm_module

__all__ = ["WORKER_EXTENSION", "make_vllm_engine"]

WORKER_EXTENSION = "rl_llm.weights.vllm_worker.WeightsExtension"
"""What every worker of the engine must be extended by for weight updates."""


def make_vllm_engine(
    model: str,
    *,
    dtype: str = "float32",
    enforce_eager: bool = True,
    max_num_seqs: int = 64,
    logprobs_mode: str = "processed_logprobs",
    distributed_executor_backend: str = "uni",
    worker_extension_cls: str = WORKER_EXTENSION,
    **engine_kwargs: Any,
) -> Any:
    """A ``vllm.LLM`` in this process.

    Args:
        model: name or path of a model.
        dtype: float32 by default: in bfloat16 the engine's log-probabilities visibly differ from the trainer's.
        enforce_eager: no graphs.
        max_num_seqs: the most sequences at a time.
        logprobs_mode: "processed_logprobs": log-probabilities of the distribution that is sampled from.
        distributed_executor_backend: "uni": one worker, in this process.
        worker_extension_cls: receives weights.
        **engine_kwargs: further arguments of ``vllm.LLM``. On a CPU, ``VLLM_CPU_KVCACHE_SPACE`` (GiB) in the
            environment sets the memory of its cache.

    Returns:
        The engine. torch's global generator is left as it was; the engine has a seed of its own (``seed=...``).
    """
    with _in_this_process(), torch.random.fork_rng():
        return vllm_module().LLM(
            model=str(model),
            dtype=dtype,
            enforce_eager=enforce_eager,
            max_num_seqs=max_num_seqs,
            logprobs_mode=logprobs_mode,
            distributed_executor_backend=distributed_executor_backend,
            worker_extension_cls=worker_extension_cls,
            **engine_kwargs,
        )


@contextmanager
def _in_this_process() -> Iterator[None]:
    """The engine reads the environment as it starts; it comes back as it was."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
