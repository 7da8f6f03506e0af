"""What recipes for language models share: reading batches of dialogs, and answering prompts for an evaluation."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

__all__ = ["answer_all", "chat_id", "cut_completions", "dialog_metrics", "long_lived", "written"]


def chat_id(task: str) -> str:
    """The registry id of a task: ``chat:`` unless it names a provider.

    >>> chat_id("letters"), chat_id("mine:riddles")
    ('chat:letters', 'mine:riddles')
    """
    return task if ":" in task else f"chat:{task}"


@contextmanager
def long_lived() -> Iterator[None]:
    """Keep the garbage collector from what there is already.

    Batches of dialogs are many small objects, so that it runs all the time; walking through all that Transformers has
    imported then takes a third of the training.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def cut_completions(batch: TensorDictBase, eos_token_id: int | None) -> Tensor:
    """Whether the completions of a batch [N] met the length limit: bool [N, 1], True where the last token ends nothing.

    A completion without tokens counts as cut.
    """
    last = [int(row[-1]) if len(row) else None for row in _responses(batch)]
    return torch.tensor([[token is None or token != eos_token_id] for token in last])


def dialog_metrics(batch: TensorDictBase) -> dict[str, float]:
    """What a batch of whole dialogs was like.

    Args:
        batch: [N] turns, dialog after dialog, with "cut_answer".

    Returns:
        ``train/reward`` and ``train/reward_std`` of dialogs, ``train/completion_length`` (tokens of a turn) and
        ``train/cut_completions``, the share that met the length limit.
    """
    _, dialog = batch["collector", "traj_ids"].unique(return_inverse=True)
    reward = batch["next", "reward"].reshape(len(dialog), -1).sum(-1).double()
    total = reward.new_zeros(int(dialog.max()) + 1).index_add(0, dialog, reward)
    lengths = [len(row) for row in _responses(batch)]
    return {
        "train/reward": total.mean().item(),
        "train/reward_std": total.std(unbiased=False).item(),
        "train/completion_length": sum(lengths) / len(lengths),
        "train/cut_completions": batch["cut_answer"].double().mean().item(),
    }


def written(batch: TensorDictBase, tokenizer: Any) -> tuple[list[str], list[str]]:
    """The questions and the completions, without special tokens, of each row."""
    questions = [str(row["query"]) for row in batch.unbind(0)]
    return questions, [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in _responses(batch)]


def _responses(batch: TensorDictBase) -> list[Tensor]:
    return [row["tokens", "response"] for row in batch.unbind(0)]


@torch.no_grad()
def answer_all(env: Any, policy: Any, *, seed: int) -> tuple[dict[str, float], TensorDictBase]:
    """One turn in each row of a chat environment, as an evaluation.

    Args:
        env: its questions are drawn in the order of the seed.
        policy: writes the turns.
        seed: torch's global generator is left as it was.

    Returns:
        ``return_mean``, ``return_std`` (of the population) and ``episodes``; and the turns, [N].
    """
    with torch.random.fork_rng(devices=[]):
        env.set_seed(seed)
        turns = env.step(policy(env.reset()))
    returns = turns["next", "reward"].flatten().double()
    metrics = {
        "return_mean": returns.mean().item(),
        "return_std": returns.std(unbiased=False).item(),
        "episodes": float(len(returns)),
    }
    return metrics, turns
