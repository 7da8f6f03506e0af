"""Group relative policy optimisation of a language model (Shao et al. 2024, arXiv 2402.03300), in one flat script.

Read :meth:`GRPO.train` from top to bottom: a chat whose prompts come in groups, a policy over a language model, a
collector of whole dialogs, a buffer that compares the answers of a group, and epochs over it. The clip is wider above
than below and all tokens weigh alike, as in DAPO (Yu et al. 2025, arXiv 2503.14476).
"""

from __future__ import annotations

import copy
import shutil
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
from rl_core.errors import RLError
from rl_core.training.seeding import seed_everything, spawn_seeds
from rl_trainers.completions import completions_table
from rl_trainers.plots import plot_learning_curve
from rl_trainers.progress import number
from rl_trainers.recipes.chats import answer_all, chat_id, cut_completions, dialog_metrics, long_lived, written
from rl_trainers.recipes.language_models import TINY_CHARACTERS, load_language_model, save_language_model
from rl_trainers.recipes.presets import GRPO_MODEL_PRESETS, GRPO_PRESETS
from rl_trainers.recipes.recipe import Recipe

__all__ = ["GRPO"]

_STORED = (
    ("tokens", "full"),
    ("tokens", "prompt"),
    ("masks", "all_attention_mask"),
    ("masks", "all_assistant_mask"),
    ("log_probs", "full"),
    ("next", "reward"),
    ("next", "done"),
    "cut_answer",
    "group_id",
)
"""What the loss and the comparison of a group read of a batch."""

_ALL = 2**30
"""More answers than any batch has."""


@dataclass(frozen=True, kw_only=True)
class GRPO(Recipe):
    """Train a language model by comparing several answers to each prompt; a frame is an answer.

    ``letters`` and ``addition`` train a tiny model from random weights to a reward above 0.95 in about a minute.
    """

    recipe: ClassVar[str] = "grpo"
    about: ClassVar[str] = "task"
    deciding: ClassVar[tuple[str, ...]] = ("model",)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = GRPO_PRESETS

    task: str = "letters"
    """What is asked and paid: "letters", "addition", or the registry id of another chat, "provider:id"."""
    model: str = "tiny_llama"
    """The language model: "tiny_llama" (random weights), "smollm2" (135M, from pip), or a folder with one."""
    engine: str = "transformers"
    """What generates: "transformers" (the model itself), or "vllm" (an engine that gets its weights)."""
    frames: int = 20_000
    """Answers to train for."""
    prompts_per_batch: int = 16
    """Prompts between two updates."""
    group_size: int = 8
    """Answers to each prompt, which are compared with each other."""
    max_new_tokens: int = 12
    """Longest answer, in tokens."""
    temperature: float = 1.0
    """Sharpness of the distribution that answers are drawn from."""
    system_prompt: str = ""
    """First message of every chat."""
    epochs: int = 2
    """Passes over a batch in one update."""
    minibatch_size: int = 0
    """Answers in one optimiser step; 0: the whole batch."""
    learning_rate: float = 1e-3
    """Adam's step size at the start."""
    anneal_learning_rate: bool = True
    """Whether the step size falls linearly to zero at the end of the budget."""
    clip_low: float = 0.2
    """How far the ratio of new to old probability may fall below 1."""
    clip_high: float = 0.28
    """How far it may rise above 1."""
    advantage: str = "std"
    """What a group's rewards are compared with: "std" (mean and standard deviation), "mean", "leave_one_out"."""
    drop_dead_groups: bool = False
    """Whether groups whose rewards are all alike are left out."""
    aggregation: str = "token"
    """How token losses are averaged: "token" (all alike), "sequence" (each answer alike), "dr_grpo"."""
    ignore_cut_answers: bool = False
    """Whether answers that met the length limit are left out of the loss."""
    kl_to_ref_coeff: float = 0.0
    """Weight of the KL divergence to the model at the start; 0: no such term."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: float = 1.0
    """Longest gradient; longer ones are scaled down."""
    hidden: int = 64
    """Width of the tiny model."""
    layers: int = 2
    """Blocks of the tiny model."""
    characters: str = TINY_CHARACTERS
    """Vocabulary of the tiny model; another character is the unknown token."""
    eval_prompts: int = 64
    """Prompts that are answered greedily at the end."""
    table_rows: int = 8
    """Rows of the table of sampled answers."""

    @classmethod
    def preset(cls, subject: str, **changes: Any) -> Self:
        """The configuration that suits a task and a model, with changes."""
        model = GRPO_MODEL_PRESETS.get(changes.get("model", cls.model), {})
        return cls(**{cls.about: subject, **cls.presets.get(subject, {}), **model, **changes})

    def train(self, folder: Path, stack: ExitStack) -> dict[str, float]:
        """Train, evaluate and leave everything in the folder.

        Returns:
            The evaluation: mean and deviation of the rewards of greedy answers.
        """
        seed_everything(self.seed)
        train_seed, eval_seed = spawn_seeds(self.seed, 2)

        # The model, and chats that ask each prompt several times.
        model, tokenizer = load_language_model(
            self.model, hidden=self.hidden, layers=self.layers, characters=self.characters, seed=self.seed
        )
        chat = {"tokenizer": tokenizer, "input_mode": "text", "system_prompt": self.system_prompt or None}
        env = registry.envs.make(chat_id(self.task), num_envs=self.prompts_per_batch, repeats=self.group_size, **chat)
        eval_env = registry.envs.make(chat_id(self.task), num_envs=self.eval_prompts, **chat)

        # A policy that scores (and is trained), and one that generates: the same, unless an engine does it.
        generation = {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature}
        wrapper = registry.modules.get("transformers_wrapper")
        policy = wrapper(model, tokenizer=tokenizer, input_mode="text", generate_kwargs=generation)
        greedy = policy.get_new_version(generate_kwargs={**generation, "temperature": 0.0})
        sampler, weight_sync = self._sampler(folder, stack, model, tokenizer, policy, generation)
        reference = None
        if self.kl_to_ref_coeff:
            scoring = {"generate": False, "generate_kwargs": generation, "log_probs_key": "ref_log_probs"}
            reference = wrapper(copy.deepcopy(model), tokenizer=tokenizer, input_mode="tokens", **scoring)

        # Whole dialogs, a buffer that compares those of a group, the loss and the optimiser.
        answers_per_batch = self.prompts_per_batch * self.group_size
        collector = registry.collectors.get("llm")(
            env,
            sampler,
            dialog_turns_per_batch=answers_per_batch,
            total_dialog_turns=self.frames,
            yield_completed_trajectories=True,
            weight_sync=weight_sync,
            track_policy_version=True,
        )
        stack.callback(collector.shutdown)
        groups = registry.transforms.get("MCAdvantage")(
            self.group_size, baseline=self.advantage, drop_dead_groups=self.drop_dead_groups
        )
        buffer = registry.buffers.get("tensordict_replay")(
            storage=registry.storages.get("list")(),
            sampler=registry.samplers.get("without_replacement")(),
            transform=groups,
            batch_size=self.minibatch_size or _ALL,
        )
        loss = registry.losses.get("grpo")(
            policy,
            clip_epsilon=(self.clip_low, self.clip_high),
            aggregation=self.aggregation,
            max_completion_length=self.max_new_tokens if self.aggregation == "dr_grpo" else None,
            ignore_cut_answers=self.ignore_cut_answers,
            kl_to_ref_coeff=self.kl_to_ref_coeff or None,
            entropy_coeff=self.entropy_coeff,
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)

        run = self.open_run(folder, stack, model=model, optimizer=optimizer, collector=collector)
        if not self.resume:
            collector.set_seed(train_seed)
        elif weight_sync is not None:
            collector.update_policy_weights_(model)

        # The algorithm.
        stack.enter_context(long_lived())
        batch: TensorDictBase | None = None
        with run:
            for batch in run.batches(collector):  # [N] turns, dialog after dialog
                run.log({"optim/learning_rate": self._set_learning_rate(optimizer, run.frames - len(batch))})
                batch.set("cut_answer", cut_completions(batch, tokenizer.eos_token_id))
                run.log(dialog_metrics(batch))
                dead = groups.get_stats()["dead"]
                buffer.empty()
                buffer.extend(batch.select(*_STORED))  # writes "advantage"
                run.log({"train/dead_groups": (groups.get_stats()["dead"] - dead) / self.prompts_per_batch})
                for _ in range(self.epochs if len(buffer) else 0):
                    for answers in buffer:
                        if reference is not None:
                            with torch.no_grad():
                                answers = reference(answers)
                        losses = loss(answers)
                        optimizer.zero_grad()
                        losses.total_loss.backward()
                        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)
                        optimizer.step()
                        run.record({**losses, "grad_norm": grad_norm})
                collector.update_policy_weights_(None if weight_sync is None else model)
            result, _ = answer_all(eval_env, greedy, seed=eval_seed)
            run.log_evaluation(result)
        save_language_model(model, tokenizer, folder / "model")
        curve = plot_learning_curve(
            folder / "metrics.csv",
            folder / "learning_curve.png",
            title=f"GRPO on {self.task} ({self.model}), seed {self.seed}",
            train_key="train/reward",
            train_label="training (mean of an update's answers)",
            eval_label="greedy answers (mean ± std)",
            x_label="answers",
            y_label="reward",
        )
        if batch is not None:
            self._show(batch, tokenizer, folder)
        rows = {
            "evaluation": f"reward {number(result['return_mean'])} ± {number(result['return_std'])} "
            f"({int(result['episodes'])} greedy answers)",
            "learning curve": curve.name,
            "answers": "completions.txt",
            "model": "model/",
        }
        self.report(folder, run, rows)
        return result

    def _set_learning_rate(self, optimizer: torch.optim.Optimizer, frames: int) -> float:
        """The step size after so many answers."""
        left = max(0.0, 1 - frames / self.frames) if self.anneal_learning_rate else 1.0
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate * left
        return self.learning_rate * left

    def _sampler(
        self, folder: Path, stack: ExitStack, model: Any, tokenizer: Any, policy: Any, generation: dict[str, Any]
    ) -> tuple[Any, Any]:
        """What generates, and what brings it the trained weights (None where it is the trained policy itself)."""
        if self.engine == "transformers":
            return policy, None
        if self.engine != "vllm":
            raise RLError(f"--engine is 'transformers' or 'vllm'; got {self.engine!r}")
        path = save_language_model(model, tokenizer, folder.with_name(f".{folder.name}.engine"))
        stack.callback(shutil.rmtree, path, ignore_errors=True)
        engine = registry.modules.get("vllm_wrapper")(
            str(path), tokenizer=tokenizer, input_mode="text", generate_kwargs=generation
        )
        return engine, registry.weight_syncs.get("vllm")(engine)

    def _show(self, batch: TensorDictBase, tokenizer: Any, folder: Path) -> None:
        """A table of answers of the last batch, on the screen and in a file."""
        prompts, completions = written(batch, tokenizer)
        table = completions_table(
            prompts,
            completions,
            batch["next", "reward"].flatten().tolist(),
            title="answers of the last batch",
            rows=self.table_rows,
        )
        Console().print(table)
        with (folder / "completions.txt").open("w", encoding="utf-8") as file:
            Console(file=file, width=120).print(table)
