"""The same with TRL's GRPOTrainer: one optimiser step for 128 answers of the same model to the same prompts.

    OMP_NUM_THREADS=1 python benchmarks/llm_grpo/trl_trainer.py FOLDER [--steps 60] [--warmup 10]

Settings that would cost time and that ours has no counterpart of are off: gradient checkpointing, bfloat16, saves,
progress bar, reports.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from typing import Any

import torch
import transformers
from _clock import Clock
from _settings import CLIP_HIGH, CLIP_LOW, GROUP, LEARNING_RATE, LETTERS, MAX_GRAD_NORM, NEW_TOKENS, PROMPTS, reward
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


class OnStep(transformers.TrainerCallback):
    """Tells the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.clock.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.clock.step()


def train(folder: str, steps: int) -> Clock:
    """Train with a plain reward function."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    clock = Clock()

    def letters(completions: Any, completion_ids: Any, answer: list[str], **_: Any) -> list[float]:
        rewards = [reward(said[0]["content"], wanted) for said, wanted in zip(completions, answer, strict=True)]
        clock.rewards.append(sum(rewards) / len(rewards))
        clock.lengths.append(sum(map(len, completion_ids)) / len(completion_ids))
        return rewards

    rows = [{"prompt": [{"role": "user", "content": letter}], "answer": letter} for letter in LETTERS] * 16
    with tempfile.TemporaryDirectory() as output:
        config = GRPOConfig(
            output_dir=output,
            use_cpu=True,
            bf16=False,
            fp16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=PROMPTS * GROUP,
            gradient_accumulation_steps=1,
            num_generations=GROUP,
            num_iterations=1,
            max_completion_length=NEW_TOKENS,
            temperature=1.0,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=MAX_GRAD_NORM,
            beta=0.0,
            epsilon=CLIP_LOW,
            epsilon_high=CLIP_HIGH,
            optim="adamw_torch",
            max_steps=steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=0,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=letters,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[OnStep(clock)],
        )
        trainer.train()
    return clock


def main() -> None:
    """Run, and print one line."""
    parser = argparse.ArgumentParser(description="GRPO on letters with TRL.")
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        clock = train(options.folder, options.warmup + options.steps)
    clock.show(options.warmup, ("torch", "transformers", "trl", "accelerate"))


if __name__ == "__main__":
    main()
