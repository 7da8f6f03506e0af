"""Supervised fine-tuning of a language model on the answers of a task, in one flat script.

Read :meth:`SFT.train` from top to bottom: a teacher that knows the answers takes the policy's part in the chat, the
collector brings its dialogs, and the loss is the negative log-likelihood of what the teacher said.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from tensordict import TensorDictBase
from torch import nn
from typing_extensions import Self

from rl_core import registry
from rl_core.errors import KeyMissingError
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.completions import completions_table
from rl_trainers.plots import plot_learning_curve
from rl_trainers.progress import number
from rl_trainers.recipes.chats import answer_all, chat_id, long_lived, written
from rl_trainers.recipes.language_models import TINY_CHARACTERS, load_language_model, save_language_model
from rl_trainers.recipes.presets import SFT_MODEL_PRESETS, SFT_PRESETS
from rl_trainers.recipes.recipe import Recipe

__all__ = ["SFT"]


@dataclass(frozen=True, kw_only=True)
class SFT(Recipe):
    """Train a language model on given answers; a frame is an example.

    The trained model lies in the run's folder, from where ``rl train grpo --model`` goes on.
    """

    recipe: ClassVar[str] = "sft"
    about: ClassVar[str] = "task"
    deciding: ClassVar[tuple[str, ...]] = ("model",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = SFT_PRESETS

    task: str = "addition"
    """Whose questions and answers: "letters", "addition", or the registry id of another chat, "provider:id"."""
    model: str = "tiny_llama"
    """The language model: "tiny_llama" (random weights), "smollm2" (135M, from pip), or a folder with one."""
    frames: int = 6_000
    """Examples to train on, repetitions included."""
    batch_size: int = 50
    """Examples in one optimiser step."""
    max_new_tokens: int = 4
    """Longest answer in the evaluations, in tokens."""
    system_prompt: str = ""
    """First message of every chat."""
    answer_key: str = "answer"
    """The column of the data with the answer."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    max_grad_norm: float = 1.0
    """Longest gradient; longer ones are scaled down."""
    hidden: int = 64
    """Width of the tiny model."""
    layers: int = 2
    """Blocks of the tiny model."""
    characters: str = TINY_CHARACTERS
    """Vocabulary of the tiny model; another character is the unknown token."""
    eval_every: int = 0
    """Examples between two evaluations; 0 makes ten of them in the run."""
    eval_prompts: int = 100
    """Prompts of an evaluation, answered greedily."""
    table_rows: int = 8
    """Rows of the table of answers."""

    @classmethod
    def preset(cls, subject: str, **changes: Any) -> Self:
        """The configuration that suits a task and a model, with changes."""
        model = SFT_MODEL_PRESETS.get(changes.get("model", cls.model), {})
        return cls(**{cls.about: subject, **cls.presets.get(subject, {}), **model, **changes})

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The last evaluation: mean and deviation of rewards, and ``accuracy``, the share of greedy answers that are
            the given ones, blanks around them aside.
        """
        seed_everything(self.seed)
        train_seed, eval_seed = spawn_seeds(self.seed, 2)

        # The model, the chats, and a teacher who answers in them.
        model, tokenizer = load_language_model(
            self.model, hidden=self.hidden, layers=self.layers, characters=self.characters, seed=self.seed
        )
        system = self.system_prompt or None
        env = registry.envs.make(chat_id(self.task), num_envs=self.batch_size, system_prompt=system)
        eval_env = registry.envs.make(
            chat_id(self.task), num_envs=self.eval_prompts, system_prompt=system, tokenizer=tokenizer, input_mode="text"
        )
        collector = registry.collectors.get("llm")(
            env,
            lambda td: _with_answers(td, self.answer_key),
            dialog_turns_per_batch=self.batch_size,
            total_dialog_turns=self.frames,
            yield_completed_trajectories=True,
        )
        stack.callback(collector.shutdown)

        # The policy that learns, and how it answers in evaluations.
        policy = registry.modules.get("transformers_wrapper")(
            model,
            tokenizer=tokenizer,
            input_mode="text",
            generate_kwargs={"max_new_tokens": self.max_new_tokens},
        )
        greedy = policy.get_new_version(generate_kwargs={"max_new_tokens": self.max_new_tokens, "temperature": 0.0})
        loss = registry.losses.get("sft")(policy, tokenizer)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)

        run = self.open_run(folder, stack, model=model, optimizer=optimizer, collector=collector)
        if not self.resume:
            collector.set_seed(train_seed)
        stack.enter_context(long_lived())

        # The algorithm.
        eval_every = self.eval_every or max(1, self.frames // 10)
        with run:
            for batch in run.batches(collector):  # [N] examples
                losses = loss(batch)
                optimizer.zero_grad()
                losses.total_loss.backward()
                grad_norm = nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)
                optimizer.step()
                run.record({**losses, "grad_norm": grad_norm})
                if run.due(eval_every) and run.frames < self.frames:
                    run.log_evaluation(self._evaluate(eval_env, greedy, tokenizer, eval_seed)[0])
            result, answers = self._evaluate(eval_env, greedy, tokenizer, eval_seed)
            run.log_evaluation(result)
        save_language_model(model, tokenizer, folder / "model")
        curve = plot_learning_curve(
            folder / "metrics.csv",
            folder / "learning_curve.png",
            title=f"Supervised fine-tuning on {self.task} ({self.model}), seed {self.seed}",
            train_key="optim/loss_sft",
            train_label="loss of an update",
            eval_key="eval/accuracy",
            eval_std_key="eval/none",
            eval_label="accuracy of greedy answers",
            x_label="examples",
            y_label="loss (nats per token), accuracy",
        )
        self._show(answers, tokenizer, folder)
        share = f"accuracy {number(result['accuracy'])}, reward {number(result['return_mean'])}"
        rows = {
            "evaluation": f"{share} ({int(result['episodes'])} greedy answers)",
            "learning curve": curve.name,
            "answers": "completions.txt",
            "model": "model/",
        }
        self.report(folder, run, rows)
        return result

    def _evaluate(self, env: Any, policy: Any, tokenizer: Any, seed: int) -> tuple[dict[str, float], TensorDictBase]:
        """Rewards and accuracy of greedy answers, and the answers."""
        metrics, answers = answer_all(env, policy, seed=seed)
        _, completions = written(answers, tokenizer)
        wanted = [str(row[self.answer_key]) for row in answers.unbind(0)]
        right = [a.strip() == b.strip() for a, b in zip(completions, wanted, strict=True)]
        return {**metrics, "accuracy": sum(right) / len(right)}, answers

    def _show(self, answers: TensorDictBase, tokenizer: Any, folder: Path) -> None:
        """A table of the last evaluation's answers, on the screen and in a file."""
        prompts, completions = written(answers, tokenizer)
        table = completions_table(
            prompts,
            completions,
            answers["next", "reward"].flatten().tolist(),
            title="greedy answers",
            rows=self.table_rows,
        )
        Console().print(table)
        with (folder / "completions.txt").open("w", encoding="utf-8") as file:
            Console(file=file, width=120).print(table)


def _with_answers(td: TensorDictBase, answer_key: str) -> TensorDictBase:
    """The teacher's turn: the answers of the data as messages."""
    history = td["history"]
    if td.get(answer_key, None) is None:
        raise KeyMissingError(
            f"the data of the task have no column {answer_key!r} to learn from; a chat has "
            f"{', '.join(sorted(map(str, td.keys())))}. Name the column of answers with --answer-key"
        )
    chats = [
        [*chat, {"role": "assistant", "content": str(answer)}]
        for chat, answer in zip(history.prompt.to_chats(), td[answer_key], strict=True)
    ]
    full = type(history.prompt).from_chats(chats)
    return td.set("history", type(history)(prompt=history.prompt, full=full, batch_size=td.batch_size))
