"""GRPO on letters with rl-llm: LLMCollector, MCAdvantage in a buffer, GRPOLoss; one optimiser step for 128 answers.

    OMP_NUM_THREADS=1 python benchmarks/llm_grpo/ours.py FOLDER [--steps 60] [--warmup 10] [--profile]

The parts and their order are those of ``rl train grpo --task letters --epochs 1``; FOLDER has the model and its
tokenizer (made by compare.py). ``--profile`` prints how the time of a step divides instead of the steps.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import transformers
from _clock import Clock
from _settings import CLIP_HIGH, CLIP_LOW, GROUP, LEARNING_RATE, LETTERS, MAX_GRAD_NORM, NEW_TOKENS, PROMPTS, reward
from tensordict import TensorDictBase

from rl_core import registry
from rl_llm import DatasetChatEnv, GRPOLoss, LLMCollector, MCAdvantage, TransformersWrapper

ANSWERS = PROMPTS * GROUP
STORED = (
    ("tokens", "full"),
    ("tokens", "prompt"),
    ("masks", "all_attention_mask"),
    ("masks", "all_assistant_mask"),
    ("log_probs", "full"),
    ("next", "reward"),
    ("next", "done"),
    "group_id",
)


def train(folder: str, steps: int, timed: Callable[[str, Any], Any]) -> Clock:
    """Train; ``timed(part, function)`` wraps each part of a step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    env = DatasetChatEnv(
        dataset=[{"query": letter, "answer": letter} for letter in LETTERS],
        reward=[reward],
        tokenizer=tokenizer,
        input_mode="text",
        num_envs=PROMPTS,
        repeats=GROUP,
        group_repeats=True,
    )
    policy = TransformersWrapper(
        model, tokenizer=tokenizer, input_mode="text", generate_kwargs={"max_new_tokens": NEW_TOKENS}
    )
    policy.sample = timed("  of it: generate", policy.sample)  # type: ignore[method-assign]
    collector = LLMCollector(
        env,
        policy,
        dialog_turns_per_batch=ANSWERS,
        total_dialog_turns=steps * ANSWERS,
        yield_completed_trajectories=True,
        track_policy_version=True,
    )
    collector.set_seed(0)
    buffer = registry.buffers.get("tensordict_replay")(
        storage=registry.storages.get("list")(2 * ANSWERS),
        sampler=registry.samplers.get("without_replacement")(),
        transform=MCAdvantage(GROUP),
        batch_size=2 * ANSWERS,
    )
    loss = GRPOLoss(policy, clip_epsilon=(CLIP_LOW, CLIP_HIGH), aggregation="token")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def store(batch: TensorDictBase) -> TensorDictBase:
        buffer.empty()
        buffer.extend(batch.select(*STORED))
        (answers,) = buffer
        return answers

    def update(objective: torch.Tensor) -> None:
        optimizer.zero_grad()
        objective.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()

    gc.collect()
    gc.freeze()  # as the recipe does
    clock, batches = Clock(), iter(collector)
    collect = timed("collect", lambda: next(batches, None))
    advantages = timed("advantages, buffer", store)
    score = timed("loss", lambda answers: loss(answers).total_loss)
    step = timed("backward, optimiser", update)
    while (batch := collect()) is not None:
        step(score(advantages(batch)))
        collector.update_policy_weights_(None)
        clock.rewards.append(batch["next", "reward"].mean().item())
        clock.step()
        clock.lengths.append(answers_length(batch))
        clock.start()
    collector.shutdown()
    return clock


def answers_length(batch: TensorDictBase) -> float:
    """Tokens of an answer."""
    return sum(int(row["masks", "all_assistant_mask"].sum()) for row in batch.unbind(0)) / len(batch)


def main() -> None:
    """Run, and print one line."""
    parser = argparse.ArgumentParser(description="GRPO on letters with rl-llm.")
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--profile", action="store_true", help="how the time of a step divides")
    options = parser.parse_args()
    steps = options.warmup + options.steps
    if not options.profile:
        clock = train(options.folder, steps, lambda _, function: function)
        clock.show(options.warmup, ("torch", "transformers", "tensordict", "rl-llm"))
        return
    spent: dict[str, list[float]] = defaultdict(list)

    def timed(part: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            result = function(*args, **kwargs)
            spent[part].append(time.process_time() - start)
            return result

        return call

    train(options.folder, steps, timed)
    for part, seconds in spent.items():
        kept = sorted(seconds[options.warmup : steps])
        print(f"{part:20} {1e3 * kept[len(kept) // 2]:8.2f} ms of processor time (median of {len(kept)})")


if __name__ == "__main__":
    main()
