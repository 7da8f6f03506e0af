"""GRPO steps of ours and TRL's on the same tiny model, processes taking turns: a table with the ratio of the pairs.

    python -m venv TRL; TRL/bin/pip install torch==2.13.0; TRL/bin/pip install -r requirements/trl.txt
    HF_HUB_OFFLINE=1 OURS/bin/python benchmarks/llm_grpo/compare.py --trl TRL/bin/python [--repeats 3] [--steps 60]

Ours runs with the Python that runs this file, which has the packages of this repository and transformers. A process
makes everything, does ``--warmup`` steps that do not count, and times each of ``--steps`` more; the order changes from
repeat to repeat. A ratio is the median over repeats of (median step of ours / median step of TRL's),
in seconds, and in seconds of the processor, which say more where other work keeps the machine busy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = {"ours": "ours.py", "TRL GRPOTrainer": "trl_trainer.py"}


def make_model(folder: str) -> None:
    """The recipe's tiny Llama (hidden 64, 2 layers, characters) with random weights, and its tokenizer."""
    from rl_trainers.recipes.language_models import load_language_model, save_language_model

    save_language_model(*load_language_model("tiny_llama"), Path(folder))


def run(python: str, script: str, folder: str, steps: int, warmup: int) -> dict[str, Any]:
    """One process; what it printed."""
    command = [python, str(HERE / script), folder, "--steps", str(steps), "--warmup", str(warmup)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if python != sys.executable:
        environment["PYTHONPATH"] = ""  # that of the packages of this repository
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    answer["load"] = os.getloadavg()[0]
    return answer


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="GRPO steps of ours and TRL's on the same tiny model.")
    parser.add_argument("--trl", required=True, help="the Python of an environment with requirements/trl.txt")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    options = parser.parse_args()
    pythons = {"ours": sys.executable, "TRL GRPOTrainer": options.trl}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SCRIPTS}
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder)
        for repeat in range(options.repeats):
            for name in list(SCRIPTS)[:: 1 if repeat % 2 == 0 else -1]:
                runs[name].append(run(pythons[name], SCRIPTS[name], folder, options.steps, options.warmup))
    print(table(runs))


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: one row per contender, then versions and the load."""
    medians, processor = (
        {name: [median(one[kind]) for one in found] for name, found in runs.items()}
        for kind in ("seconds", "processor")
    )
    columns = ["contender", "steps/s", "median ms", "min ms", "max ms", "ratio", "processor ms", "ratio"]
    columns += ["answer tokens", "reward, first to last"]
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 2) + "|---|"]
    for name, found in runs.items():
        seconds = [second for one in found for second in one["seconds"]]
        ratio, of_processor = (
            median(a / b for a, b in zip(kind[name], kind["TRL GRPOTrainer"], strict=True))
            for kind in (medians, processor)
        )
        length = median(one["length"] for one in found)
        first, last = (median(one[f"{which}_reward"] for one in found) for which in ("first", "last"))
        numbers = [f"{1 / median(seconds):.2f}", *(f"{1e3 * pick(seconds):.1f}" for pick in (median, min, max))]
        numbers += [f"{ratio:.2f}", f"{1e3 * median(processor[name]):.1f}", f"{of_processor:.2f}", f"{length:.1f}"]
        lines.append(f"| {name} | {' | '.join(numbers)} | {first:.2f} to {last:.2f} |")
    lines.append("")
    for name, found in runs.items():
        versions = ", ".join(f"{library} {version}" for library, version in found[0]["versions"].items())
        each = ", ".join(f"{1e3 * value:.1f}" for value in medians[name])
        lines.append(f"- {name}: {versions}; medians of the runs {each} ms")
    loads = [one["load"] for found in runs.values() for one in found]
    lines.append(f"- load of the machine ({os.cpu_count()} cores): {min(loads):.1f} to {max(loads):.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
